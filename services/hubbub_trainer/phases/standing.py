"""Where a trainer stands in a run: the states, what it knows there, and what it asks of its shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from hubbub.errors import Objection
from hubbub.ids import PartyId, Role
from hubbub.machine.effects import Effect, Job, Key, Persist, Publish, Record
from hubbub.messages.manifest import Manifest
from hubbub.messages.runs import PartyFailed, RunJoined, RunKey, RunReady, RunRefused
from hubbub.messages.snapshots import Voucher


class State(Enum):
    """Where this trainer stands in a run."""

    INVITED = "invited"
    PREPARING = "preparing"
    PLEDGED = "pledged"
    AGREEING = "agreeing"
    INHERITING = "inheriting"
    JOINED = "joined"
    LEAVING = "leaving"
    REFUSED = "refused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidCaps:
    """How many rounds may be void after their first phase was released: of one model, and of the run."""

    per_model: int = 1
    per_run: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The snapshots that a peer was given in this run: how many, and the round of the last."""

    count: int = 0
    number: int = -1
    sending: bool = False
    """The last one is still being sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """The manifest, how far the clients agree, the last round that was ordered and the last that is over."""

    me: PartyId
    key: Key
    manifest: Manifest
    objections: tuple[Objection, ...] = ()
    """What this trainer, and the data owner's policy, have against taking part."""
    run_key: RunKey | None = None
    caps: VoidCaps = VoidCaps()
    snapshots_per_peer: int = 3
    """How many snapshots each peer may be given in this run."""
    runs_per_model: int = 1
    """How many runs the policy lets begin from one model."""
    score_members: frozenset[PartyId] = field(default_factory=frozenset)
    """Over whom the run's scores are summed; nobody before the first time."""
    on_target: bool = False
    """Whether the scores of the last round that is over met the manifest's target."""
    lacks_model: bool = False
    """The run begins with a model that is not here yet."""
    publics: Mapping[PartyId, bytes] = field(default_factory=dict)
    keys_sha256: str = ""
    contributions: frozenset[PartyId] = field(default_factory=frozenset)
    confirmation: str = ""
    confirmed: Mapping[PartyId, str] = field(default_factory=dict)
    ordered: int = 0
    over: int = 0
    released: int = 0
    """How many of those that are over were released: the manifest says how many may be."""
    begun: int = 0
    """The last round that we began; beyond `over` it is open."""
    models: tuple[str, ...] = field(default=(), repr=False)
    """Digests of the models since the last larger step. They count as one; the last is the present one."""
    steps: tuple[float, ...] = ()
    """How far each released round of this run moved the model, but for those that counted as void."""
    wasted_on_model: int = 0
    """Void rounds of the present model, in any run."""
    wasted: int = 0
    """The same in this run, of any model."""
    lost: int = 0
    """Rounds up to this one are not all in our inbox; beyond `over`, only a peer's model leads past it."""
    catching: int = 0
    """Which machine is after a peer's model: the round up to which something was lost when it began."""
    vouchers: tuple[Voucher, ...] = ()
    """Of the last rounds, oldest first."""
    given: Mapping[PartyId, Given] = field(default_factory=dict)
    last: int = 0
    """The last round of the run that has ended; one that was not ordered here is on its way, or lost."""
    leave_by_s: float = 0.0
    out_of_time: bool = False
    """It is later than that: what is not here when we come to wait for it will not come."""

    @property
    def peers(self) -> tuple[PartyId, ...]:
        """The other clients, in manifest order."""
        return tuple(client for client in self.manifest.clients if client != self.me)

    @property
    def catch_up_key(self) -> Key:
        """The machine that is after a peer's model, if one is."""
        return Key("catchup", self.key.run, self.catching)

    @property
    def complete(self) -> bool:
        """As many rounds were released as the manifest has."""
        return self.released == self.manifest.rounds

    @property
    def caught_up(self) -> bool:
        """No round that there was is still to be taken in; what was ordered beyond the last is never begun."""
        return self.complete or self.over >= max(self.ordered, self.last)

    @property
    def may_begin(self) -> bool:
        """Nothing that was lost stands before the next round."""
        return self.over >= self.lost


@dataclass(frozen=True, slots=True)
class PrepareTask(Job):
    """Load the task and rebuild the initial model."""


@dataclass(frozen=True, slots=True)
class RememberRun(Effect):
    """Never join this run again."""


@dataclass(frozen=True, slots=True)
class NoteVoid(Persist):
    """Note in the ledger that a round of these models, which count as one, was void."""

    models: tuple[str, ...] = field(repr=False)
    number: int | None
    """None if the models became one by a round that we sent nothing in."""


@dataclass(frozen=True, slots=True)
class SetUpRound(Effect):
    """Set up the machine of a round."""

    number: int


@dataclass(frozen=True, slots=True)
class SaveModel(Effect):
    """Write the model and its digest to our own disk."""


@dataclass(frozen=True, slots=True)
class EndorseModel(Effect):
    """Sign the model of this round, and keep what a run that goes on from it needs."""

    number: int


@dataclass(frozen=True, slots=True)
class AcceptKeys(Effect):
    """Keep everybody's run keys."""

    publics: Mapping[PartyId, bytes]


@dataclass(frozen=True, slots=True)
class DealContribution(Effect):
    """Draw our part of the group secret and seal it to every other client."""


@dataclass(frozen=True, slots=True)
class KeepContribution(Persist):
    """Keep the delivery's payload: a part of the group secret, sealed."""

    client: PartyId


@dataclass(frozen=True, slots=True)
class ReportOldCopy(Effect):
    """Tell the owner that our folder is an old copy; shares of the run have left that it knows nothing of."""

    evidence: str


@dataclass(frozen=True, slots=True)
class SetUpCatchUp(Effect):
    """Set up the machine that asks the peers for a model."""

    number: int


@dataclass(frozen=True, slots=True)
class AbandonRounds(Effect):
    """Forget the rounds up to this one: our model is of a later one, and nobody waits for us there."""

    number: int


@dataclass(frozen=True, slots=True)
class SendSnapshot(Job):
    """Seal the model that we hold after this round to a client that has lost sums."""

    client: PartyId
    number: int
    again: bool = False
    """We were sending it when this party died: some of it may have left."""


@dataclass(frozen=True, slots=True)
class AgreeOnSecret(Job):
    """Open all parts of the group secret and put them together."""


def answer(data: Enrolment, body: RunJoined | RunRefused | RunReady | PartyFailed) -> Effect:
    """Tell the coordinator."""
    return Publish(data.manifest.coordinator, Role.COORDINATOR, body)


def record_end(outcome: str) -> Effect:
    """Write down how the run ended for us."""
    return Record("ended", {"outcome": outcome})
