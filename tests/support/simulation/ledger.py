"""What must be true of every history, checked on what parties send, compute and leave behind."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest
from hubbub.messages.rounds import PhaseReleased, PhaseVoided, RoundApplied, SumChunk, VoidNotice
from hubbub.messages.runs import GroupConfirmed, RunEnded, RunJoined
from hubbub.messages.shares import ResendSet, ShareChunk
from hubbub.protocol.dense import Digits
from hubbub.strategies.phase_plan import phases_of, plan_phase
from hubbub.strategies.registry import find_strategy
from hubbub.strategies.scores import SCORES
from hubbub_trainer.learning.task import Task
from support.plain_run import run_plainly
from support.recorder import Said, add_residues

VOID: frozenset[PartyId] = frozenset()


@dataclass(slots=True)
class Ledger:
    """Everything that was said and done, and what of it cannot be."""

    manifest: Manifest
    violations: list[str] = field(default_factory=list)
    said: dict[tuple[PartyId, int, str], Said] = field(default_factory=dict)
    """What each client went into each phase with, before it was dealt and sealed."""
    models: dict[tuple[PartyId, int], str] = field(default_factory=dict)
    """The digest of the model that each client moved on to in each round."""
    idle: dict[tuple[PartyId, int], bool] = field(default_factory=dict)
    """Whether a client had no part in a round from its beginning, and so learnt nothing in it."""
    caught_up: set[tuple[PartyId, int]] = field(default_factory=set)
    """Who took the model after a round from a peer; what it had not sent yet was lost."""
    overflowed: set[PartyId] = field(default_factory=set)
    """Whose inbox may have lost messages."""
    damaged: set[PartyId] = field(default_factory=set)
    """Whose disk may have damaged share sets."""
    trace: list[tuple[float, str]] = field(default_factory=list)
    _once: dict[Hashable, object] = field(default_factory=dict)

    def blame(self, violation: str) -> None:
        if violation not in self.violations:
            self.violations.append(violation)

    def _only(self, what: str, value: object, *place: Hashable) -> None:
        """There is one of this for ever."""
        before = self._once.setdefault((what, *place), value)
        if before != value:
            self.blame(f"{what} at {place} was {_show(before)} and became {_show(value)}")

    # What is sent ---------------------------------------------------------------------------------------

    def watch(self, now_s: float, envelope: Envelope) -> None:
        """Look at a message as the broker takes it."""
        about = f"{envelope.sender} to {envelope.recipient}: {envelope.kind} {envelope.round} {envelope.phase}"
        self.trace.append((round(now_s, 6), about))
        match envelope.body:
            case RunJoined(run_key=run_key):
                self._only("run key", run_key.public_key, envelope.sender)
            case GroupConfirmed(confirmation=confirmation):
                self._only("group secret", confirmation)
            case ShareChunk() as body:
                what = (body.set_id, body.vectors, body.transcript, body.weight)
                self._only("share set", what, envelope.sender, envelope.round, envelope.phase)
            case ResendSet() if envelope.sender not in self.damaged:
                self.blame(f"{envelope.sender} has lost a share set that no disk has damaged")
            case SumChunk(members=members):
                self._watch_sum(envelope, envelope.body)
                self._watch_verdict(envelope, frozenset(members))
            case PhaseReleased(members=members):
                self._watch_verdict(envelope, frozenset(members))
            case VoidNotice() | PhaseVoided():
                self._watch_verdict(envelope, VOID)
            case RoundApplied(model_hmac=model_hmac):
                self._only("model", model_hmac, envelope.round)
            case RunEnded(outcome=outcome):
                self._only("outcome", outcome)

    def _watch_sum(self, envelope: Envelope, body: SumChunk) -> None:
        place = (envelope.sender, envelope.recipient, envelope.round, envelope.phase)
        self._only("key of a sum", body.wrapped_key, *place)
        self._only("sum", envelope.payload, *place, body.index)

    def _watch_verdict(self, envelope: Envelope, members: frozenset[PartyId]) -> None:
        """One verdict on a phase by everybody, and one member set in a round, and for all scores of a run.

        A phase that may lose members has some of those of the phases before.
        """
        self._only("verdict", members, envelope.round, envelope.phase)
        if members:
            scores, wire = envelope.phase == SCORES.name, plan_phase(self.manifest, envelope.phase)
            if not wire.may_lose:
                self._only("member set", members, "all scores" if scores else envelope.round)
            for phase in phases_of(self.manifest)[: wire.place] if wire.may_lose else ():
                before = self._verdicts_on(phase.name).get(envelope.round, VOID)
                if not wire.may_close(members, before) or not before:
                    self.blame(f"{envelope.phase} of round {envelope.round} was released after fewer: {members}")
            if self.manifest.organisations_of(members) < self.manifest.min_clients:
                self.blame(f"round {envelope.round} was released over too few: {sorted(members)}")

    # What is computed -----------------------------------------------------------------------------------

    def note_said(self, client: PartyId, key: Key, phase: str, said: Said) -> None:
        """A client deals its values; after a restart they are the same."""
        before = self.said.setdefault((client, key.round, phase), said)
        same = all(np.array_equal(one, other) for one, other in zip(before.values, said.values, strict=True))
        if before.vectors != said.vectors or not same:
            self.blame(f"{client} dealt other values of round {key.round}, {phase}, after a restart")

    def note_sum(
        self, client: PartyId, key: Key, phase: str, members: frozenset[PartyId], sums: Sequence[Digits]
    ) -> None:
        """A client has recombined a sum; it must be that of its members' values."""
        if plan_phase(self.manifest, phase).phase.gathers:
            return  # What comes of it is seen in the models.
        parts = [self.said.get((member, key.round, phase)) for member in sorted(members)]
        named = f"the sum of round {key.round}, {phase}, at {client}"
        if None in parts:
            self.blame(f"{named} is over somebody who has said nothing")
            return
        for place, total in enumerate(sums):
            spoken = [part for part in parts if part is not None]
            modulus = spoken[0].vectors[place].modulus
            if not np.array_equal(total, add_residues([part.values[place] for part in spoken], modulus)):
                self.blame(f"{named} is not what its members said")

    def note_model(self, client: PartyId, number: int, model: str) -> None:
        """A client moves on to another model."""
        if (client, number) in self.models and number:
            self.blame(f"{client} has applied round {number} twice")
        self.models[client, number] = model

    # What is left ---------------------------------------------------------------------------------------

    def released_rounds(self) -> dict[int, frozenset[PartyId]]:
        """The rounds whose last phase was released, with those whose updates are in the sum."""
        verdicts = self._verdicts_on(find_strategy(self.manifest.strategy).phases[-1].name)
        summed = self._verdicts_on("masked") if self.manifest.strategy == "bonawitz" else verdicts
        return {number: summed[number] for number, members in sorted(verdicts.items()) if members}

    def _verdicts_on(self, phase: str) -> dict[int, frozenset[PartyId]]:
        """By round, the members that a phase was released over; nobody if it was void."""
        return {
            place[1]: members
            for place, members in self._once.items()
            if isinstance(place, tuple) and place[::2] == ("verdict", phase) and isinstance(members, frozenset)
        }

    def _reasons_to_leave(self) -> tuple[str, ...]:
        """A client leaves if two rounds were void after their first phase was released: a model may have one."""
        phases = find_strategy(self.manifest.strategy).phases
        united, *later = (self._verdicts_on(phase.name) for phase in phases)
        voids = {number for verdicts in later for number, members in verdicts.items() if not members}
        wasted = [number for number in voids if united.get(number)]
        return ("(policy-void-rounds)",) if len(wasted) > 1 else ()

    def check_models(self, task: Task, *, demo_seed: int) -> dict[int, str]:
        """Every model must be that of the plaintext algorithm over the same history; they are returned."""
        plain = run_plainly(self.manifest, task, demo_seed=demo_seed)
        expected, released = {0: plain.digest()}, self.released_rounds()
        # Who catches up with a round that was void takes the model that was before it.
        for number in sorted({*released, *(number for _, number in self.caught_up)}):
            if number in released:
                chosen = [place for place, name in enumerate(self.manifest.clients) if name in released[number]]
                idle = [place for place, name in enumerate(self.manifest.clients) if self.idle.get((name, number))]
                plain.play_round(number, chosen, idle=idle)
            for place, name in enumerate(self.manifest.clients):
                if (name, number) in self.caught_up:
                    plain.forget(place)
            expected[number] = plain.digest()
        for (client, number), model in self.models.items():
            if expected.get(number) != model:
                self.blame(f"{client} went on from round {number} with another model than the plain algorithm's")
        return expected

    def check_outcome(
        self, outcome: str, reason: str, left: Mapping[PartyId, str | None], expected: Mapping[int, str]
    ) -> None:
        """A run that is completed has left its model with every client; one that failed has a good reason."""
        lost_keys = ("did not check the keys",) if self.overflowed else ()
        reasons = {
            "completed": ("all ",),
            "failed": ("rounds were void", *self._reasons_to_leave(), *lost_keys),
            "cancelled": ("an operator",),
        }[outcome]
        if not any(each in reason for each in reasons):
            self.blame(f"the run is {outcome}: {reason}")
        if outcome == "completed":
            last = expected[max(self.released_rounds())]
            for client, model in left.items():
                if model is None and client in self.overflowed:
                    continue  # What it lost at the end nobody can send it: the keys of the run are erased.
                if model != last:
                    self.blame(f"{client} was left without the last model")


def _show(value: object) -> str:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else repr(value)
