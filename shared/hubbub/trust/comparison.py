"""Comparison of several parties' audit logs: finds where they differ, and which stop too early."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, TypeVar

from pydantic import Field, JsonValue, StringConstraints, ValidationError

from hubbub.errors import ConfigurationError
from hubbub.ids import PARTY_ID_PATTERN, PartyId, RunId
from hubbub.messages.envelope import Claim
from hubbub.messages.manifest import LOSES_MEMBERS, SCORES_PHASE, Manifest, Name, RunName, describe, read_manifest
from hubbub.trust.audit import Log

SHOWN_DIGITS = 16

_Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{0,128}$")]


class DifferenceKind(StrEnum):
    """Kind of a difference between logs."""

    MANIFESTS = "different-manifests"
    ROSTERS = "different-rosters"
    KEYS = "different-keys"
    CONFIRMATIONS = "different-confirmations"
    VERDICTS = "released-and-void"
    MEMBERS = "different-members"
    MEMBERS_OF_PHASES = "different-members-in-one-round"
    TRANSCRIPTS = "different-transcripts"
    MODELS = "different-models"
    ENDED_TWICE = "ended-twice"
    REPEATED = "repeated"
    CUT_OFF = "cut-off"
    ABSENT = "absent"
    FORKED = "forked"
    UNREADABLE = "unreadable"
    UNRELATED = "unrelated"

    @property
    def is_note(self) -> bool:
        """True if nobody need be wrong: a restart writes a verdict again, and some logs have nothing in common."""
        return self in {DifferenceKind.REPEATED, DifferenceKind.UNRELATED}


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between logs: where it is, and who says what. An empty run means the logs as such."""

    kind: DifferenceKind
    run: str
    place: str
    what: str
    parties: tuple[PartyId, ...]


@dataclass(frozen=True, slots=True)
class Common:
    """Number of runs and phases that at least two logs have."""

    runs: int
    phases: int


class _Fact(Claim, extra="ignore"):
    """Fields of an entry that are compared; others are ignored."""

    run: RunName


class _Joined(_Fact):
    manifest: Mapping[str, JsonValue]
    roster_sha256: _Hex


class _Keys(_Fact):
    keys_sha256: _Hex


class _Group(_Fact):
    confirmation: _Hex


class _Verdict(_Fact):
    round: Annotated[int, Field(ge=1)]
    phase: Annotated[str, StringConstraints(pattern=PARTY_ID_PATTERN)]


class _Released(_Verdict):
    members: list[Name]
    transcript: _Hex


class _Applied(_Fact):
    round: Annotated[int, Field(ge=1)]
    model_hmac: _Hex


class _Ended(_Fact):
    outcome: str


_FACTS: Mapping[str, type[_Fact]] = {
    "joined": _Joined,
    "keys": _Keys,
    "group": _Group,
    "released": _Released,
    "void": _Verdict,
    "applied": _Applied,
    "ended": _Ended,
}

_F = TypeVar("_F", bound=_Fact)
_T = TypeVar("_T", bound=Hashable)
_Place = TypeVar("_Place", int, tuple[int, str])


@dataclass(frozen=True, slots=True)
class _Run:
    """Facts of each party about one run, in the order of its log."""

    id: RunId
    facts: Mapping[PartyId, Sequence[_Fact]]
    manifest: Manifest | None

    def by_party(self, kind: type[_F]) -> dict[PartyId, list[_F]]:
        """Return the facts of a kind, by party; parties without any are left out."""
        said = {party: [fact for fact in facts if isinstance(fact, kind)] for party, facts in self.facts.items()}
        return {party: facts for party, facts in said.items() if facts}

    def by_place(
        self, kind: type[_F], place_of: Callable[[_F], _Place]
    ) -> list[tuple[_Place, dict[PartyId, list[_F]]]]:
        """Return the facts of a kind by round, or by round and phase, and there by party."""
        said: dict[_Place, dict[PartyId, list[_F]]] = defaultdict(lambda: defaultdict(list))
        for party, facts in self.by_party(kind).items():
            for fact in facts:
                said[place_of(fact)][party].append(fact)
        return list(said.items())

    def differ(
        self, kind: DifferenceKind, place: str, said: Mapping[PartyId, _T], show: Callable[[_T], str]
    ) -> Iterator[Difference]:
        """Yield a difference unless all parties say the same."""
        if len(set(said.values())) > 1:
            yield Difference(kind, self.id, place, _tell(said, show), tuple(said))


def compare(logs: Sequence[Log]) -> tuple[Difference, ...]:
    """Compare the logs of several parties; return everything they cannot all be right about."""
    latest, forks = _take_latest(logs)
    runs, unreadable = _gather(latest)
    found = [*forks, *unreadable, *_compare_nonces(runs)]
    for run in runs:
        found += [*_check_manifests(run), *_check_enrolment(run), *_check_verdicts(run)]
        found += [*_check_rounds(run), *_check_models(run), *_check_tails(run)]
    found += _find_absent(runs, latest)
    return (*found, *_find_unrelated(runs, latest, found))


def find_common(logs: Sequence[Log]) -> Common:
    """Count the runs, and their phases, that at least two logs have."""
    runs, _ = _gather(_take_latest(logs)[0])
    phases = [said for run in runs for _, said in run.by_place(_Verdict, _phase_of)]
    return Common(sum(len(run.facts) > 1 for run in runs), sum(len(said) > 1 for said in phases))


def runs_of(log: Log) -> tuple[RunId, ...]:
    """Return the runs that a log has, in its order."""
    facts, _ = _read_facts(log)
    return tuple(dict.fromkeys(fact.run for fact in facts))


def _take_latest(logs: Sequence[Log]) -> tuple[list[Log], list[Difference]]:
    """Return the longest log of each party, and the forks: an earlier copy must be a prefix of it."""
    latest: dict[PartyId, Log] = {}
    forks = []
    for log in sorted(logs, key=lambda log: len(log.entries), reverse=True):
        longest = latest.setdefault(log.party, log)
        pairs = zip(longest.entries, log.entries, strict=False)
        parts = next((mine.sequence for mine, other in pairs if mine.digest != other.digest), None)
        if parts is not None:
            what = f"{log.party} has two logs that part at line {parts}: one of them was written anew"
            forks.append(Difference(DifferenceKind.FORKED, "", f"line {parts}", what, (log.party,)))
    return [latest[party] for party in dict.fromkeys(log.party for log in logs)], forks


def _read_facts(log: Log) -> tuple[list[_Fact], list[Difference]]:
    facts, unreadable = [], []
    for entry in log.entries:
        if entry.kind not in _FACTS:
            continue
        try:
            facts.append(_FACTS[entry.kind].model_validate(entry.fields))
        except ValidationError as error:
            what = f"{log.party}'s entry of kind {entry.kind} cannot be read: {describe(error)}"
            place = f"line {entry.sequence}"
            unreadable.append(Difference(DifferenceKind.UNREADABLE, "", place, what, (log.party,)))
    return facts, unreadable


def _gather(logs: Sequence[Log]) -> tuple[list[_Run], list[Difference]]:
    """Group the facts by run, and find each run's manifest."""
    said: dict[RunId, dict[PartyId, list[_Fact]]] = {}
    unreadable = []
    for log in logs:
        facts, problems = _read_facts(log)
        unreadable += problems
        for fact in facts:
            said.setdefault(fact.run, {}).setdefault(log.party, []).append(fact)
    return [_Run(run, parts, _find_manifest(run, parts)) for run, parts in said.items()], unreadable


def _find_manifest(run: RunId, parts: Mapping[PartyId, Sequence[_Fact]]) -> Manifest | None:
    """Return the manifest of this run, if any party has it."""
    for fact in (fact for facts in parts.values() for fact in facts if isinstance(fact, _Joined)):
        with suppress(ConfigurationError):
            manifest = read_manifest(json.dumps(fact.manifest))
            if manifest.run_id == run:
                return manifest
    return None


def _compare_nonces(runs: Sequence[_Run]) -> Iterator[Difference]:
    """Find runs that share a nonce: it belongs to one manifest, so parties were given different ones."""
    for twins in _with_one_nonce(runs):
        joined = [next(iter(run.by_party(_Joined).values()))[0].manifest for run in twins]
        fields = [
            name for name in Manifest.model_fields if any(each.get(name) != joined[0].get(name) for each in joined)
        ]
        parties = tuple(dict.fromkeys(party for run in twins for party in run.by_party(_Joined)))
        sides = "; ".join(f"{_names(run.by_party(_Joined))} joined {_short(run.id)}" for run in twins)
        what = f"one nonce, but {sides}; the manifests differ in {', '.join(fields) or 'unknown fields'}"
        yield Difference(DifferenceKind.MANIFESTS, twins[0].id, "manifest", what, parties)


def _with_one_nonce(runs: Sequence[_Run]) -> list[list[_Run]]:
    nonces: dict[str, list[_Run]] = defaultdict(list)
    for run in runs:
        for nonce in {said[0].manifest.get("nonce") for said in run.by_party(_Joined).values()}:
            if isinstance(nonce, str):
                nonces[nonce].append(run)
    return [twins for twins in nonces.values() if len(twins) > 1]


def _check_manifests(run: _Run) -> Iterator[Difference]:
    for party, said in run.by_party(_Joined).items():
        try:
            manifest = read_manifest(json.dumps(said[0].manifest))
        except ConfigurationError as error:
            what = f"{party} joined with something else: {error}"
            yield Difference(DifferenceKind.UNREADABLE, run.id, "manifest", what, (party,))
            continue
        if manifest.run_id != run.id:
            what = (
                f"{party}'s manifest is that of run {_short(manifest.run_id)}, not of the run it is logged under"
            )
            yield Difference(DifferenceKind.MANIFESTS, run.id, "manifest", what, (party,))


def _check_enrolment(run: _Run) -> Iterator[Difference]:
    rosters = {party: said[0].roster_sha256 for party, said in run.by_party(_Joined).items()}
    keys = {party: frozenset(fact.keys_sha256 for fact in said) for party, said in run.by_party(_Keys).items()}
    tags = {party: frozenset(fact.confirmation for fact in said) for party, said in run.by_party(_Group).items()}
    yield from run.differ(DifferenceKind.ROSTERS, "roster", rosters, _short)
    yield from run.differ(DifferenceKind.KEYS, "run keys", keys, _show_digests)
    yield from run.differ(DifferenceKind.CONFIRMATIONS, "group secret", tags, _show_digests)


def _check_verdicts(run: _Run) -> Iterator[Difference]:
    """Check that each phase ended the same way at all parties, and once at each."""
    for (number, phase), said in sorted(run.by_place(_Verdict, _phase_of), key=lambda item: item[0][0]):
        place = _show_place(number, phase)
        for party, verdicts in said.items():
            yield from _check_final(run, place, party, verdicts)
        yield from _compare_phase(run, place, {party: verdicts[0] for party, verdicts in said.items()})


def _check_final(run: _Run, place: str, party: PartyId, verdicts: Sequence[_Verdict]) -> Iterator[Difference]:
    if len(verdicts) == 1:
        return
    words = ", then ".join(_word(verdict) for verdict in verdicts)
    if all(verdict == verdicts[0] for verdict in verdicts):
        kind, what = DifferenceKind.REPEATED, f"{party} wrote the same verdict {len(verdicts)} times: {words}"
    else:
        kind, what = DifferenceKind.ENDED_TWICE, f"{party} ended this phase in different ways: {words}"
    yield Difference(kind, run.id, place, what, (party,))


def _compare_phase(run: _Run, place: str, said: Mapping[PartyId, _Verdict]) -> Iterator[Difference]:
    released = {party: verdict for party, verdict in said.items() if isinstance(verdict, _Released)}
    members = {party: frozenset(verdict.members) for party, verdict in released.items()}
    transcripts = {party: verdict.transcript for party, verdict in released.items()}
    words = {party: _word(verdict) for party, verdict in said.items()}
    yield from run.differ(DifferenceKind.VERDICTS, place, words, str)
    yield from run.differ(DifferenceKind.MEMBERS, place, members, _show_members(members.values()))
    yield from run.differ(DifferenceKind.TRANSCRIPTS, place, transcripts, _short)


def _check_rounds(run: _Run) -> Iterator[Difference]:
    """Check that all phases of a round but the scores were released over one member set, across all logs.

    With a strategy that may lose members, of two phases one has all that the other has.
    """
    may_lose = run.manifest is not None and run.manifest.strategy in LOSES_MEMBERS
    for number, said in sorted(run.by_place(_Released, _round_of)):
        phases: dict[str, set[frozenset[PartyId]]] = defaultdict(set)
        for verdict in (verdict for verdicts in said.values() for verdict in verdicts):
            if verdict.phase != SCORES_PHASE:
                phases[verdict.phase].add(frozenset(verdict.members))
        sets = list(phases.values())
        if all(each == sets[0] for each in sets) or (may_lose and _are_nested(frozenset().union(*sets))):
            continue
        show = _show_members(members for each in sets for members in each)
        told = "; ".join(
            f"phase {phase} has {' or '.join(sorted(map(show, each)))}" for phase, each in phases.items()
        )
        what = f"by {_names(said)}, {told}"
        yield Difference(DifferenceKind.MEMBERS_OF_PHASES, run.id, f"round {number}", what, tuple(said))


def _are_nested(sets: Collection[frozenset[PartyId]]) -> bool:
    in_order = sorted(sets, key=len)
    return all(fewer <= more for fewer, more in pairwise(in_order))


def _check_models(run: _Run) -> Iterator[Difference]:
    for number, said in sorted(run.by_place(_Applied, _round_of)):
        digests = {party: frozenset(fact.model_hmac for fact in facts) for party, facts in said.items()}
        yield from run.differ(DifferenceKind.MODELS, f"round {number}", digests, _show_digests)


@dataclass(frozen=True, slots=True, order=True)
class _Step:
    """Position of a log in a run: all parties take the steps in the same order."""

    round: int
    rank: int
    name: str = field(compare=False)
    shown: str = field(compare=False)

    def __str__(self) -> str:
        return self.shown


_JOINED = _Step(0, 0, "joined", "joining")
_KEYS = _Step(0, 1, "keys", "the exchange of run keys")
_GROUP = _Step(0, 2, "group", "the group secret")


def _check_tails(run: _Run) -> Iterator[Difference]:
    """Find logs that stop while the run goes on elsewhere, and do not say that their party left."""
    steps = _steps_of(run)
    ended = run.by_party(_Ended)
    for party in run.facts:
        last = max(steps[party], default=_JOINED)
        beyond = None if party in ended else _find_beyond(run, party, steps, last)
        if beyond:
            other, where = beyond
            stops = f"{party}'s log stops after {last}, but {other}'s goes on to {where}"
            what = f"{stops}: it was cut off or copied early, or the party went down"
            yield Difference(DifferenceKind.CUT_OFF, run.id, str(last), what, (party, other))


def _find_beyond(
    run: _Run, party: PartyId, steps: Mapping[PartyId, Sequence[_Step]], last: _Step
) -> tuple[PartyId, str] | None:
    """Return the party whose log goes furthest beyond a party's last step; one that left earlier has no say."""
    for other in run.by_party(_Ended):
        if max(steps[other], default=last) >= last:
            return other, "the end of the run"
    expected = _expected(run, party, steps)
    later = [(step, other) for other, taken in steps.items() for step in taken if step.name in expected]
    step, other = max(later, key=lambda each: each[0], default=(last, party))
    return (other, str(step)) if step > last else None


def _steps_of(run: _Run) -> dict[PartyId, list[_Step]]:
    order = _order_of_phases(run)
    return {party: [step for fact in facts if (step := _step(fact, order))] for party, facts in run.facts.items()}


def _order_of_phases(run: _Run) -> list[str]:
    """Return the phases of a round, in the order of the most complete log of one."""
    tellings: dict[tuple[PartyId, int], dict[str, None]] = defaultdict(dict)
    for party, verdicts in run.by_party(_Verdict).items():
        for verdict in verdicts:
            tellings[party, verdict.round][verdict.phase] = None
    fullest_first = sorted(tellings.values(), key=len, reverse=True)
    return list(dict.fromkeys(phase for telling in fullest_first for phase in telling))


def _step(fact: _Fact, order: Sequence[str]) -> _Step | None:
    match fact:
        case _Joined():
            return _JOINED
        case _Keys():
            return _KEYS
        case _Group():
            return _GROUP
        case _Verdict(round=number, phase=phase):
            # A void phase ends the whole round.
            rank = order.index(phase) if isinstance(fact, _Released) else len(order)
            return _Step(number, rank, phase, _show_place(number, phase))
        case _Applied(round=number):
            return _Step(number, len(order), "applied", f"the model of round {number}")
    return None


def _expected(run: _Run, party: PartyId, steps: Mapping[PartyId, Sequence[_Step]]) -> frozenset[str]:
    """Return the steps that a party takes if others do; a phase can be for the first aggregator alone."""
    names = {other: {step.name for step in taken} for other, taken in steps.items()}
    if run.manifest is None or party == run.manifest.coordinator:
        return frozenset(names[party])
    if party in run.manifest.clients:
        return frozenset().union(*names.values())
    if party == run.manifest.aggregators[0]:
        return frozenset().union(*names.values()) - {"group", "applied"}
    peers = run.manifest.aggregators[1:]
    return frozenset({"keys"}).union(*(names[peer] for peer in peers if peer in names))


def _find_absent(runs: Sequence[_Run], logs: Sequence[Log]) -> Iterator[Difference]:
    """Find parties that a manifest names and whose log does not have the run."""
    knows = {(run.id, party) for run in runs for party in run.facts}
    for twins in _with_one_nonce(runs):
        knows |= {(run.id, party) for run in twins for twin in twins for party in twin.facts}
    for run in runs:
        for log in logs:
            if (run.id, log.party) in knows or not _has_to_know(run, log):
                continue
            what = (
                f"{log.party} is named in the manifest that {_names(run.facts)} joined, its log has nothing of it"
            )
            yield Difference(DifferenceKind.ABSENT, run.id, "whole run", what, (log.party, *run.facts))


def _has_to_know(run: _Run, log: Log) -> bool:
    """Say whether a party is named in a run and cannot have declined: a run begins when all have joined."""
    if run.manifest is None:
        return False
    named = {*run.manifest.clients, *run.manifest.aggregators, run.manifest.coordinator}
    began = any(isinstance(fact, _Keys | _Verdict) for facts in run.facts.values() for fact in facts)
    refused = any(entry.kind == "refused" and entry.fields.get("run") == run.id for entry in log.entries)
    return log.party in named and (began or not refused)


def _find_unrelated(
    runs: Sequence[_Run], logs: Sequence[Log], found: Sequence[Difference]
) -> Iterator[Difference]:
    """Find logs that were compared with nothing."""
    related = {party for run in runs if len(run.facts) > 1 for party in run.facts}
    related |= {party for difference in found for party in difference.parties}
    for log in logs:
        if log.party not in related:
            what = f"{log.party} shares no run with the others, so nothing in its log was compared"
            yield Difference(DifferenceKind.UNRELATED, "", "whole log", what, (log.party,))


def _tell(said: Mapping[PartyId, _T], show: Callable[[_T], str]) -> str:
    """Return who says what, the largest group first."""
    sides: dict[_T, list[PartyId]] = defaultdict(list)
    for party, value in said.items():
        sides[value].append(party)
    by_size = sorted(sides.items(), key=lambda side: len(side[1]), reverse=True)
    return "; ".join(
        f"{_names(parties)} {'says' if len(parties) == 1 else 'say'} {show(value)}" for value, parties in by_size
    )


def _names(parties: Iterable[PartyId]) -> str:
    *most, last = parties
    return f"{', '.join(most)} and {last}" if most else last


def _short(digest: str) -> str:
    return f"{digest[:SHOWN_DIGITS]}…" if len(digest) > SHOWN_DIGITS else digest


def _show_digests(digests: frozenset[str]) -> str:
    return " and also ".join(map(_short, sorted(digests)))


def _show_members(sets: Iterable[frozenset[PartyId]]) -> Callable[[frozenset[PartyId]], str]:
    """Return a formatter that shows a member set by its size and the members that not all sets have."""
    every = list(sets)
    everywhere = every[0].intersection(*every) if every else frozenset()

    def show(members: frozenset[PartyId]) -> str:
        extra = sorted(members - everywhere)
        return f"{len(members)} members" + (f" with {_names(extra)}" if extra else "")

    return show


def _word(verdict: _Verdict) -> str:
    return "released" if isinstance(verdict, _Released) else "void"


def _phase_of(verdict: _Verdict) -> tuple[int, str]:
    return verdict.round, verdict.phase


def _round_of(fact: _Verdict | _Applied) -> int:
    return fact.round


def _show_place(number: int, phase: str) -> str:
    return f"round {number}, phase {phase}"
