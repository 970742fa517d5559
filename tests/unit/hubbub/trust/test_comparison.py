"""Logs of the parties of one run, held against each other.

A story is what each party writes; a test changes the story of somebody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hubbub.ids import PartyId
from hubbub.messages.manifest import Manifest
from hubbub.trust.audit import AuditLog, Log, read_log
from hubbub.trust.comparison import Common, DifferenceKind, compare, find_common, runs_of
from support.builders import make_manifest


@pytest.fixture(scope="module", autouse=True)
def quick_disk() -> Iterator[None]:
    """Nothing here loses power, and a sync takes longer than all the rest of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


Part = list[tuple[str, dict[str, Any]]]
Story = dict[str, Part]

MANIFEST = make_manifest(clients=3, servers=2, strategy="sec-union", roster_sha256="cd" * 32)
CLIENTS = ["client-1", "client-2", "client-3"]
AGGREGATORS = ["aggregator-1", "aggregator-2"]
PARTIES = [*CLIENTS, *AGGREGATORS, "coordinator"]


def tell_story(manifest: Manifest = MANIFEST) -> Story:
    """Two rounds of two phases, the second void, as every party writes them when all goes well."""
    return {party: tell_part(party, manifest) for party in PARTIES}


def tell_part(party: str, manifest: Manifest) -> Part:
    run: dict[str, Any] = {"run": manifest.run_id}
    part = [("joined", {**run, "manifest": manifest.model_dump(mode="json"), "roster_sha256": "cd" * 32})]
    if party != "coordinator":
        part.append(("keys", {**run, "keys_sha256": "11" * 32}))
    if party in CLIENTS:
        part.append(("group", {**run, "confirmation": "22" * 32}))
    for phase in ("union", "signs"):
        released = {"members": CLIENTS, "transcript": f"{len(phase):02}" * 32}
        part.append(("released", {**run, "round": 1, "phase": phase, **released}))
    if party in CLIENTS:
        part.append(("applied", {**run, "round": 1, "model_hmac": "33" * 32}))
    part.append(("void", {**run, "round": 2, "phase": "union"}))
    part.append(("ended", {**run, "outcome": "completed"}))
    return part


def write_story(folder: Path, story: Story) -> list[Log]:
    for party, part in story.items():
        log = AuditLog(folder / party, PartyId(party))
        for kind, fields in part:
            log.append(kind, **fields)
        log.close()
    return [read_log(folder / party) for party in story]


def find(part: Part, kind: str, **where: object) -> dict[str, Any]:
    """The fields of the one entry of a kind that fits."""
    (fields,) = [fields for each, fields in part if each == kind and where.items() <= fields.items()]
    return fields


def cut_after(part: Part, kind: str, **where: object) -> None:
    del part[part.index((kind, find(part, kind, **where))) + 1 :]


def test_parties_that_tell_the_same_story_agree(tmp_path: Path) -> None:
    logs = write_story(tmp_path, tell_story())

    assert compare(logs) == ()
    assert find_common(logs) == Common(runs=1, phases=3)
    assert {runs_of(log) for log in logs} == {(MANIFEST.run_id,)}


Change = Callable[[Story], object]


def say(party: str, kind: str, what: dict[str, Any], **where: object) -> Change:
    """Change the fields of one entry of a party."""
    return lambda story: find(story[party], kind, **where).update(what)


def release_what_is_void(story: Story) -> None:
    at = story["aggregator-2"].index(("void", find(story["aggregator-2"], "void")))
    released = {"members": CLIENTS, "transcript": "55" * 32}
    story["aggregator-2"][at] = ("released", {**story["aggregator-2"][at][1], **released})


def sum_fewer_signs(story: Story) -> None:
    for part in story.values():
        find(part, "released", phase="signs")["members"] = ["client-1", "client-2"]


def end_a_phase_twice(story: Story) -> None:
    story["aggregator-1"].insert(-1, ("void", {"run": MANIFEST.run_id, "round": 1, "phase": "signs"}))


def refuse_a_run_that_began(story: Story) -> None:
    story["aggregator-2"][:] = [("refused", {"run": MANIFEST.run_id, "reason": "too-early"})]


OTHER_KEYS = say("client-3", "keys", {"keys_sha256": "44" * 32})
OTHER_MODEL = say("client-1", "applied", {"model_hmac": "77" * 32})
ONES, TWOS, THREES, FOURS = (f"{digit * 16}…" for digit in "1234")
DIFFERENCES: dict[DifferenceKind, list[tuple[Change, str, str]]] = {
    DifferenceKind.KEYS: [
        (OTHER_KEYS, "run keys", f"aggregator-1 and aggregator-2 say {ONES}; client-3 says {FOURS}"),
    ],
    DifferenceKind.CONFIRMATIONS: [
        (
            say("client-2", "group", {"confirmation": "44" * 32}),
            *("group secret", f"client-1 and client-3 say {TWOS}; client-2 says {FOURS}"),
        )
    ],
    DifferenceKind.ROSTERS: [
        (say("aggregator-1", "joined", {"roster_sha256": "44" * 32}), "roster", f"aggregator-1 says {FOURS}"),
    ],
    DifferenceKind.VERDICTS: [
        (
            *(release_what_is_void, "round 2, phase union"),
            "client-1, client-2, client-3, aggregator-1 and coordinator say void; aggregator-2 says released",
        )
    ],
    DifferenceKind.TRANSCRIPTS: [
        (
            say("client-1", "released", {"transcript": "66" * 32}, phase="signs"),
            *("round 1, phase signs", "client-1 says 6666666666666666…"),
        )
    ],
    DifferenceKind.MODELS: [
        (OTHER_MODEL, "round 1", f"client-2 and client-3 say {THREES}; client-1 says 7777777777777777…"),
    ],
    DifferenceKind.MEMBERS_OF_PHASES: [
        (sum_fewer_signs, "round 1", "phase union has 3 members with client-3; phase signs has 2 members"),
    ],
    DifferenceKind.ENDED_TWICE: [
        (
            *(end_a_phase_twice, "round 1, phase signs"),
            "aggregator-1 ended this phase in different ways: released, then void",
        )
    ],
    DifferenceKind.MANIFESTS: [
        (
            say("client-1", "joined", {"manifest": {**MANIFEST.model_dump(mode="json"), "rounds": 99}}),
            *("manifest", "client-1's manifest is that of run"),
        )
    ],
    DifferenceKind.UNREADABLE: [
        (
            say("client-1", "joined", {"manifest": {"nonce": "\x1b[2J"}}),
            *("manifest", "client-1 joined with something else"),
        ),
        (
            *(say("client-1", "applied", {"model_hmac": None}), "line 7"),
            "client-1's entry of kind applied cannot be read: model_hmac: Input should be a valid string",
        ),
    ],
    DifferenceKind.ABSENT: [
        (lambda story: story["aggregator-2"].clear(), "whole run", "aggregator-2 is named in the manifest that"),
        (refuse_a_run_that_began, "whole run", "aggregator-2 is named"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "change", "place", "what"), [(kind, *row) for kind, rows in DIFFERENCES.items() for row in rows]
)
def test_one_difference_is_found_where_it_is(
    tmp_path: Path, kind: DifferenceKind, change: Change, place: str, what: str
) -> None:
    story = tell_story()
    change(story)

    (found,) = compare(write_story(tmp_path, story))

    assert (found.kind, found.place) == (kind, place)
    assert what in found.what
    assert found.run == ("" if place.startswith("line") else MANIFEST.run_id)
    assert not found.kind.is_note


def test_different_members_are_found_in_every_phase(tmp_path: Path) -> None:
    story = tell_story()
    for phase in ("union", "signs"):
        find(story["aggregator-1"], "released", phase=phase)["members"] = ["client-1", "client-2"]

    found = compare(write_story(tmp_path, story))

    assert [(each.kind, each.place) for each in found] == [
        (DifferenceKind.MEMBERS, "round 1, phase union"),
        (DifferenceKind.MEMBERS, "round 1, phase signs"),
    ]
    assert found[0].what.endswith("say 3 members with client-3; aggregator-1 says 2 members")


@pytest.mark.parametrize(("strategy", "agrees"), [("bonawitz", True), ("sec-union", False)])
def test_phases_over_fewer_members_than_those_before_agree_if_the_strategy_allows_it(
    tmp_path: Path, strategy: str, *, agrees: bool
) -> None:
    manifest = make_manifest(clients=3, servers=2, strategy=strategy, roster_sha256="cd" * 32)
    story = tell_story(manifest)
    sum_fewer_signs(story)
    assert (compare(write_story(tmp_path / "fewer", story)) == ()) is agrees

    for part in story.values():
        find(part, "released", phase="union")["members"] = ["client-2", "client-3"]
    (difference,) = compare(write_story(tmp_path / "others", story))
    assert difference.kind is DifferenceKind.MEMBERS_OF_PHASES


def test_one_nonce_in_two_manifests_is_a_run_told_in_two_ways(tmp_path: Path) -> None:
    lowered = make_manifest(clients=3, servers=2, strategy="sec-union", roster_sha256="cd" * 32, min_clients=2)
    story = {**tell_story(), "client-3": tell_part("client-3", lowered)}

    (found,) = compare(write_story(tmp_path, story))

    assert found.kind is DifferenceKind.MANIFESTS
    assert f"client-3 joined {lowered.run_id[:16]}…" in found.what
    assert found.what.endswith("the manifests differ in min_clients")
    assert set(found.parties) == set(PARTIES)


@pytest.mark.parametrize(
    ("party", "last", "where", "stops"),
    [
        ("client-1", "joined", {}, "joining"),
        ("client-1", "group", {}, "the group secret"),
        ("client-1", "released", {"phase": "union"}, "round 1, phase union"),
        ("client-1", "applied", {}, "the model of round 1"),
        ("client-1", "void", {}, "round 2, phase union"),
        ("aggregator-1", "keys", {}, "the exchange of run keys"),
        ("aggregator-2", "released", {"phase": "union"}, "round 1, phase union"),
        ("coordinator", "released", {"phase": "signs"}, "round 1, phase signs"),
    ],
)
@pytest.mark.parametrize("over", [True, False], ids=["the run is over", "the run goes on"])
def test_a_tail_that_was_cut_off_is_found(
    tmp_path: Path, party: str, last: str, where: dict[str, object], stops: str, *, over: bool
) -> None:
    story = tell_story()
    cut_after(story[party], last, **where)
    if not over:
        for part in story.values():
            part[:] = [entry for entry in part if entry[0] != "ended"]

    found = compare(write_story(tmp_path, story))

    if last == "void" and not over:
        assert found == ()
        return
    assert [(each.kind, each.place, each.parties[0]) for each in found] == [(DifferenceKind.CUT_OFF, stops, party)]
    beyond = "the end of the run" if over else "round 2, phase union"
    assert f"{party}'s log stops after {stops}, but " in found[0].what
    assert f"'s goes on to {beyond}: " in found[0].what


def test_phases_follow_each_other_as_in_the_log_that_has_most_of_them(tmp_path: Path) -> None:
    story = tell_story()
    work_in_the_last_phase_alone_while_the_run_goes_on(story)
    for part in story.values():
        part[:] = [entry for entry in part if entry[0] not in {"void", "applied"}]
    cut_after(story["client-1"], "released", phase="union")

    (found,) = compare(write_story(tmp_path, {party: story[party] for party in reversed(PARTIES[:-1])}))

    assert (found.kind, found.parties[0]) == (DifferenceKind.CUT_OFF, "client-1")
    assert "goes on to round 1, phase signs" in found.what


def leave_early(story: Story) -> None:
    cut_after(story["client-1"], "applied")
    story["client-1"].append(("ended", {"run": MANIFEST.run_id, "outcome": "left"}))


def leave_early_while_the_others_go_on(story: Story) -> None:
    leave_early(story)
    for party in PARTIES[1:]:
        story[party].pop()


def work_in_the_last_phase_alone(story: Story) -> None:
    """As the second aggregator does where a phase is for the first one only."""
    story["aggregator-2"].remove(("released", find(story["aggregator-2"], "released", phase="union")))
    story["aggregator-2"].remove(("void", find(story["aggregator-2"], "void")))


def work_in_the_last_phase_alone_while_the_run_goes_on(story: Story) -> None:
    work_in_the_last_phase_alone(story)
    for part in story.values():
        part.pop()


def be_between_two_rounds(story: Story) -> None:
    for part in story.values():
        del part[-2:]


def score_over_others(story: Story) -> None:
    """Whoever was late for the round can still score its model."""
    scored = {"members": CLIENTS[:2], "transcript": "aa" * 32}
    for part in story.values():
        place = [kind for kind, _ in part].index("void")
        part.insert(place, ("released", {"run": MANIFEST.run_id, "round": 1, "phase": "scores", **scored}))


def void_the_other_phase_too(story: Story) -> None:
    """A void phase ends its round; who also writes that of the next phase is no further."""
    for party, part in story.items():
        part.pop()
        if party in AGGREGATORS:
            part.append(("void", {"run": MANIFEST.run_id, "round": 2, "phase": "signs"}))


def decline(story: Story) -> None:
    for part in story.values():
        part[1:-1] = []
    story["client-1"][:] = [("refused", {"run": MANIFEST.run_id, "reason": "policy"})]


def skip_a_round(story: Story) -> None:
    """As a client does that takes a snapshot of a later round."""
    story["client-1"][:] = [entry for entry in story["client-1"] if entry[1].get("round") != 1]


def add_fields_and_kinds(story: Story) -> None:
    find(story["client-1"], "applied")["phase"] = "signs"
    story["client-1"].append(("remarked", {"run": 5}))


@pytest.mark.parametrize(
    "change",
    [
        *(leave_early, leave_early_while_the_others_go_on),
        *(work_in_the_last_phase_alone, work_in_the_last_phase_alone_while_the_run_goes_on),
        *(
            be_between_two_rounds,
            score_over_others,
            void_the_other_phase_too,
            decline,
            skip_a_round,
            add_fields_and_kinds,
        ),
    ],
)
def test_what_may_happen_is_no_difference(tmp_path: Path, change: Change) -> None:
    story = tell_story()
    change(story)

    assert [each for each in compare(write_story(tmp_path, story)) if not each.kind.is_note] == []


def test_a_verdict_written_again_and_a_log_without_a_common_run_are_only_noted(tmp_path: Path) -> None:
    story = {**tell_story(), "hospital-z": []}
    story["aggregator-1"].insert(-1, ("void", find(story["aggregator-1"], "void")))

    repeated, unrelated = compare(write_story(tmp_path, story))

    assert (repeated.kind, unrelated.kind) == (DifferenceKind.REPEATED, DifferenceKind.UNRELATED)
    assert (repeated.kind.is_note, unrelated.kind.is_note) == (True, True)
    assert unrelated.what.startswith("hospital-z shares no run with the others")


def take_copy(folder: Path, party: str, lines: int) -> Log:
    copy = folder / "copy"
    copy.write_bytes(b"".join((folder / party).read_bytes().splitlines(keepends=True)[:lines]))
    return read_log(copy)


def test_an_earlier_copy_agrees_with_its_log_unless_the_log_was_written_anew(tmp_path: Path) -> None:
    logs = write_story(tmp_path, tell_story())
    copy = take_copy(tmp_path, "client-1", lines=4)
    assert compare([copy, *logs]) == ()
    (tmp_path / "client-1").unlink()
    anew = write_story(tmp_path, {"client-1": tell_story()["client-1"]})

    found = compare([copy, *anew, *logs[1:]])

    assert [(each.kind, each.place) for each in found] == [(DifferenceKind.FORKED, "line 1")]


def test_differences_come_in_the_order_of_the_run(tmp_path: Path) -> None:
    story = tell_story()
    for change in (OTHER_MODEL, OTHER_KEYS, release_what_is_void):
        change(story)

    found = compare(write_story(tmp_path, story))

    assert [each.kind for each in found] == [DifferenceKind.KEYS, DifferenceKind.VERDICTS, DifferenceKind.MODELS]
