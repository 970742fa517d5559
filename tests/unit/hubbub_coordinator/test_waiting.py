"""For whom a run waits while sums are released, on either wire."""

import pytest

from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.protocol.metrics import CLASSIFICATION
from hubbub_coordinator.phases import round as rounds
from hubbub_coordinator.phases import run as runs
from hubbub_coordinator.phases.round import CoordinatorRound, PhaseRecord
from hubbub_coordinator.progress import find_awaited, find_combiner
from support.builders import make_manifest
from support.coordinator_scene import REPORT


def awaited(manifest: Manifest, *ended: PartyId) -> tuple[PartyId, ...]:
    record = PhaseRecord(opened_at_s=10.0, closed_at_s=12.0, ended=frozenset(ended))
    data = CoordinatorRound(run=Key("run", manifest.run_id), number=1, manifest=manifest, records=(record,))
    waiting = find_awaited(
        runs.State.RUNNING, runs.CoordinatorRun(manifest=manifest, round=1), (rounds.State.RELEASING, data)
    )
    assert (waiting.what, waiting.since_s) == ("to release signs", 12.0)
    return waiting.parties


def combiner_of(manifest: Manifest) -> PartyId:
    data = CoordinatorRound(run=Key("run", manifest.run_id), number=1, manifest=manifest)
    combiner = find_combiner(data, "signs")
    assert combiner is not None
    return combiner


def test_on_the_papers_wire_everybody_is_waited_for_who_has_not_released() -> None:
    manifest = make_manifest(servers=3, wire="paper")
    first, *others = manifest.aggregators

    assert awaited(manifest, first) == tuple(others)


@pytest.mark.parametrize("released", [0, 1])
def test_a_combiner_is_not_blamed_for_sums_that_others_owe_it(released: int) -> None:
    manifest = make_manifest(servers=3, wire="compact")
    others = [name for name in manifest.aggregators if name != combiner_of(manifest)]

    assert awaited(manifest, *others[:released]) == tuple(others[released:])


def test_a_combiner_is_waited_for_when_all_others_have_released() -> None:
    manifest = make_manifest(servers=3, wire="compact")
    combiner = combiner_of(manifest)

    assert awaited(manifest, *(name for name in manifest.aggregators if name != combiner)) == (combiner,)


def test_who_has_applied_a_round_is_waited_for_until_it_says_what_the_scores_come_to() -> None:
    manifest = make_manifest(metrics=tuple(map(MetricClaim.of, CLASSIFICATION)))
    one, two, _ = manifest.clients
    data = CoordinatorRound(
        run=Key("run", manifest.run_id),
        number=1,
        manifest=manifest,
        is_scored=True,
        phase=1,
        records=(PhaseRecord(opened_at_s=10.0), PhaseRecord(opened_at_s=20.0, released_at_s=21.0)),
        applied=dict.fromkeys((one, two), REPORT),
        reported={one: ()},
    )
    run = runs.CoordinatorRun(manifest=manifest, round=1)

    waiting = find_awaited(runs.State.RUNNING, run, (rounds.State.REPORTING, data))

    assert (waiting.parties, waiting.what, waiting.since_s) == ((two,), "to report the scores", 21.0)
