"""What an adversary learns of how a model does on one client's data: nothing but sums over one member set.

A client's score on a model that somebody chose for it is an oracle on its data. Each attack is carried out with
the rule that stops it switched off, where it succeeds, and with it on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hubbub.errors import FalseSum, RejectReason
from hubbub.ids import PartyId
from hubbub.machine.effects import Key
from hubbub.machine.table import Step
from hubbub.messages.envelope import Envelope
from hubbub.messages.manifest import Manifest, MetricClaim
from hubbub.messages.rounds import ClosePhase, MaskedChunk, PhaseReleased, RoundScored, SumChunk
from hubbub.protocol.metrics import Metric, Scores, ScoreSheet, Trend
from hubbub.protocol.ring import Residues
from hubbub.strategies.base import Release, Theta
from hubbub.strategies.scores import SCORES, ScoreRound
from hubbub.strategies.verified import VerifiedRound
from hubbub.trust.seals import TagCoefficients
from hubbub_aggregator.journal import Journal
from hubbub_aggregator.phases.membership import Membership
from hubbub_coordinator.phases import round as coordinator_rounds
from hubbub_coordinator.phases import run as runs
from hubbub_trainer.events import Evaluated
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.learning.task import Learner
from hubbub_trainer.phases import catchup
from hubbub_trainer.phases import round as trainer_rounds
from support.corrupt_party import TASK, Rewrite, Scene, corrupt_federation, draw_up, is_said, say
from support.wrapped_learner import WrappedLearner, WrappedTask

ACCURACY = MetricClaim(name="accuracy")
HONEST, CORRUPT = draw_up().aggregators
VICTIM, SECOND, THIRD = draw_up().clients
SECRET = 0.125
"""The share of the victim's patients that have the attribute which the chosen model asks for."""
OTHERS = {SECOND: 0.5, THIRD: 0.75}


@dataclass
class FixedScore(WrappedLearner):
    """A learner that scores every model alike."""

    value: float

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        del theta, memory
        return {"accuracy": (self.value, 1)}


class ScoringTask(SyntheticTask):
    """Every client has a score of its own, whatever the model is."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (Metric("accuracy"),)

    def learner(self, *, index: int, clients: int, seed: int) -> FixedScore:  # type: ignore[override]
        inner = super().learner(index=index, clients=clients, seed=seed)
        return FixedScore(inner, (SECRET, *OTHERS.values())[index])


SCORING = ScoringTask(TASK.count_parameters())


def draw_up_scored(**overrides: object) -> Manifest:
    return draw_up(**{"metrics": (ACCURACY,), "strategy": "no-union", "rounds": 3, **overrides})


def reports(scene: Scene, client: PartyId) -> dict[int, Mapping[str, float]]:
    """What a client has told of the scores, by round."""
    return {
        each.round: {claim.name: claim.value for claim in each.body.scores}
        for each in scene.sent
        if each.sender == client and isinstance(each.body, RoundScored)
    }


# A model that was chosen for the victim -------------------------------------------------------------------


def shift_factor(values: list[Residues]) -> None:
    values[1] += np.uint32(1 << 20)


def tell_the_victim(scene: Scene) -> Rewrite:
    """The victim alone is told another sum of the first round."""

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        if is_said(envelope, SumChunk, to=VICTIM, phase="signs"):
            return [scene.change_sum(envelope, shift_factor)]
        if is_said(envelope, MaskedChunk, to=VICTIM, phase="signs"):
            return [scene.change_masked(envelope, shift_factor)]
        return [envelope]

    return rewrite


@pytest.fixture
def coordinator_looks_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not compare what the clients say of their models, because it is in league with the aggregator."""
    monkeypatch.setattr(coordinator_rounds, "_find_other_models", lambda _: "")


@pytest.fixture
def clients_tell_their_own_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is switched off: a client reports its own score of the model that it holds, and goes on."""
    end = trainer_rounds._end_scored

    def tell_own(
        data: trainer_rounds.ClientRound, metrics: Mapping[str, float]
    ) -> Step[trainer_rounds.State, trainer_rounds.ClientRound]:
        del metrics
        return end(data, data.own_metrics)

    monkeypatch.setattr(trainer_rounds, "_end_scored", tell_own)
    monkeypatch.setattr("hubbub_trainer.round_jobs.differs", lambda *_: False)


@pytest.mark.usefixtures("coordinator_looks_away", "clients_tell_their_own_score")
async def test_without_the_rule_a_chosen_model_asks_the_victim_about_its_data(tmp_path: Path) -> None:
    manifest = draw_up_scored()
    corrupt = {CORRUPT: tell_the_victim}
    async with corrupt_federation(manifest, tmp_path, corrupt, task=SCORING) as scene:
        await scene.run()

        assert reports(scene, VICTIM)[1] == {"accuracy": SECRET}


@pytest.mark.usefixtures("coordinator_looks_away")
@pytest.mark.parametrize("wire", ["paper", "compact"])
async def test_a_client_that_holds_another_model_is_in_no_sum_of_scores_and_tells_nothing(
    tmp_path: Path, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catchup, "ASK_AGAIN_S", 0.05)
    manifest = draw_up_scored(wire=wire)
    corrupt = {CORRUPT: tell_the_victim}
    async with corrupt_federation(manifest, tmp_path, corrupt, task=SCORING, unheard={2: VICTIM}) as scene:
        state, run = await scene.run()

        assert (state, run.released) == (runs.State.COMPLETED, 3)
        assert run.score_members == frozenset({SECOND, THIRD})
        assert {tuple(told.values()) for told in reports(scene, VICTIM).values()} <= {(), (0.625,)}
        assert reports(scene, SECOND) == {number: {"accuracy": 0.625} for number in (1, 2, 3)}


@pytest.mark.parametrize("wire", ["paper", "compact"])
async def test_what_is_told_of_scores_depends_on_their_sum_alone(tmp_path: Path, wire: str) -> None:
    manifest = draw_up_scored(wire=wire, rounds=1)
    async with corrupt_federation(manifest, tmp_path, task=SCORING) as scene:
        state, run = await scene.run()

        assert state is runs.State.COMPLETED
        assert run.metrics["accuracy"] == pytest.approx(11 / 24, abs=1e-6)
        assert {str(reports(scene, client)) for client in manifest.clients} == {str({1: run.metrics})}
        said = [each.body.model_dump_json() for each in scene.sent if each.recipient == manifest.coordinator]
        assert not [text for text in said if str(SECRET) in text]


# Sums over A, and over A without one ----------------------------------------------------------------------


def leave_out_the_victim(scene: Scene) -> Rewrite:
    """A coordinator that orders the second sum of scores over all but the victim."""
    del scene

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        if not is_said(envelope, ClosePhase, number=2, phase="scores"):
            return [envelope]
        assert isinstance(envelope.body, ClosePhase)
        return [say(envelope, body=ClosePhase(members=(SECOND, THIRD), receipts=envelope.body.receipts))]

    return rewrite


def say_what_was_ordered(scene: Scene) -> Rewrite:
    """Tell the coordinator's honest code that its first order was obeyed: a corrupt one would not mind."""

    def rewrite(envelope: Envelope) -> Sequence[Envelope]:
        if not is_said(envelope, PhaseReleased, number=2, phase="scores"):
            return [envelope]
        return [say(envelope, body=envelope.body.model_copy(update={"members": scene.manifest.clients}))]

    return rewrite


@pytest.fixture
def any_members_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is switched off: each sum of scores may have members of its own."""
    monkeypatch.setattr(Membership, "members_for", lambda *_: frozenset())
    check = Journal.check

    def check_no_scores(journal: Journal, key: Key, members: Sequence[PartyId], *, may_lose: bool = False) -> None:
        if key.phase != SCORES.name:
            check(journal, key, members, may_lose=may_lose)

    monkeypatch.setattr(Journal, "check", check_no_scores)
    monkeypatch.setattr(trainer_rounds, "_fits_members", lambda *_: True)


@pytest.mark.usefixtures("any_members_will_do")
async def test_without_the_rule_two_sums_subtract_to_the_victims_score(tmp_path: Path) -> None:
    manifest = draw_up_scored(rounds=2)
    corrupt = dict.fromkeys(manifest.aggregators, say_what_was_ordered)
    corrupt[manifest.coordinator] = leave_out_the_victim
    async with corrupt_federation(manifest, tmp_path, corrupt, task=SCORING) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        told = reports(scene, SECOND)
    assert 3 * told[1]["accuracy"] - 2 * told[2]["accuracy"] == pytest.approx(SECRET, abs=1e-5)


async def test_all_scores_of_a_run_are_summed_over_one_member_set(tmp_path: Path) -> None:
    manifest = draw_up_scored(rounds=2)
    corrupt = {manifest.coordinator: leave_out_the_victim}
    async with corrupt_federation(manifest, tmp_path, corrupt, task=SCORING) as scene:
        state, _ = await scene.run()

        assert state is runs.State.FAILED
        assert 2 not in reports(scene, SECOND)
        released = [each for each in scene.sent if is_said(each, PhaseReleased, number=2, phase="scores")]
        assert released == []
        for aggregator in manifest.aggregators:
            assert scene.refused_by(aggregator) == {RejectReason.DIFFERENT_MEMBERS: 1}


# A weight that vanishes -----------------------------------------------------------------------------------


def test_without_the_rule_a_weight_that_vanishes_with_a_nan_is_the_victims_number_of_examples() -> None:
    """The rule is that weights are fixed when a client joins. A first draft took those of the evaluation."""
    victim, others = 417, 1200
    sheet = ScoreSheet((Metric("accuracy"),), clients=3, weights="examples", max_examples=10_000)

    def total(scores: Scores, weight: int) -> int:
        return int(sheet.encode(scores, weight)[0]) + int(sheet.encode({"accuracy": (0.5, 1)}, others)[0])

    good, bad = {"accuracy": (100.0, 417.0)}, {"accuracy": (float("nan"), 0.0)}
    draft = total(good, int(good["accuracy"][1])) - total(bad, int(bad["accuracy"][1]))
    assert draft * sheet.max_examples / sheet.unit == pytest.approx(victim, abs=1.5)

    assert total(good, victim) - total(bad, victim) == 0


# A target that is not reached -----------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "endorsed"), [(0.4, True), (0.9, False)])
async def test_a_client_endorses_an_early_end_only_by_its_own_sum_of_the_scores(
    tmp_path: Path, target: float, monkeypatch: pytest.MonkeyPatch, *, endorsed: bool
) -> None:
    """The coordinator calls the run completed after its first round, whatever the scores are."""
    monkeypatch.setattr("hubbub_coordinator.phases.run._find_completion", lambda *_: "it is good enough")
    manifest = draw_up_scored(target=target)
    async with corrupt_federation(manifest, tmp_path, task=SCORING) as scene:
        state, run = await scene.run()

        assert (state, run.released) == (runs.State.COMPLETED, 1)
        kept = [(tmp_path / client / "runs" / manifest.run_id / "endorsement.json") for client in manifest.clients]
        assert [path.exists() for path in kept] == [endorsed] * 3


# A run that is said to be stalled -------------------------------------------------------------------------


@dataclass
class ListedScores(WrappedLearner):
    """A learner whose models have these scores, round after round."""

    values: Iterator[float]

    def evaluate(self, theta: Theta, *, memory: Theta | None = None) -> Scores:
        del theta, memory
        return {"accuracy": (next(self.values), 1)}


@dataclass
class ListedTask(WrappedTask):
    """A task whose models have these scores at every client."""

    values: Sequence[float]

    def learner(self, *, index: int, clients: int, seed: int) -> Learner:
        return ListedScores(super().learner(index=index, clients=clients, seed=seed), iter(self.values))


async def end_early(folder: Path, monkeypatch: pytest.MonkeyPatch, *totals: float) -> set[bool]:
    """The coordinator calls a run stalled after these rounds; return whether its clients endorse the model."""
    monkeypatch.setattr(
        "hubbub_coordinator.phases.run._find_completion",
        lambda run, _: "nothing improves" if run.released == len(totals) else "",
    )
    manifest = draw_up_scored(rounds=9, patience=2)
    async with corrupt_federation(manifest, folder, task=ListedTask(SCORING, totals)) as scene:
        state, run = await scene.run()

        assert (state, run.released) == (runs.State.COMPLETED, len(totals))
        return {
            (folder / client / "runs" / manifest.run_id / "endorsement.json").exists()
            for client in manifest.clients
        }


@pytest.mark.parametrize(
    ("totals", "endorsed"),
    [
        pytest.param((0.5, 0.5), False, id="before as many rounds were scored as the patience says"),
        pytest.param((0.25, 0.5, 0.75), False, id="while the totals still improve"),
        pytest.param((0.5, 0.25, 0.75), False, id="after a better total"),
        pytest.param((0.5, 0.5, 0.25), True, id="when it is true"),
    ],
)
async def test_a_client_endorses_a_stalled_run_only_if_its_own_totals_have_stalled(
    tmp_path: Path, totals: Sequence[float], monkeypatch: pytest.MonkeyPatch, *, endorsed: bool
) -> None:
    assert await end_early(tmp_path, monkeypatch, *totals) == {endorsed}


@pytest.mark.parametrize("rule", [True, False])
async def test_scores_that_are_voided_to_hide_an_improvement_do_not_make_a_run_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, rule: bool
) -> None:
    """The rule: after a round whose total nobody knows, a client counts anew the rounds that are no better.

    A corrupt client tells the coordinator that the model of round 3 is better than those before. Without the rule
    the clients would endorse the next one as no worse than any.
    """
    choose_end = coordinator_rounds._choose_end

    def void_the_better_one(
        data: coordinator_rounds.CoordinatorRound, at_s: float
    ) -> Step[coordinator_rounds.State, coordinator_rounds.CoordinatorRound]:
        if data.scoring and data.number == 3:
            return coordinator_rounds._void(data, "somebody is missing", at_s)
        return choose_end(data, at_s)

    monkeypatch.setattr(coordinator_rounds, "_choose_end", void_the_better_one)
    if not rule:
        monkeypatch.setattr(Trend, "interrupt", lambda trend: trend)

    assert await end_early(tmp_path, monkeypatch, 0.5, 0.5, 0.9, 0.5) == {not rule}


def test_scores_do_not_print() -> None:
    learner = FixedScore(TASK.learner(index=0, clients=3, seed=1), SECRET)
    found = replace(learner).evaluate(np.zeros(1, dtype=np.float32))
    event = Evaluated(own={"accuracy": SECRET})

    assert found == {"accuracy": (SECRET, 1)}
    assert str(SECRET) not in repr(event)


# A sum that is false --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(1 + 3), ids=["scores", "first tag", "second tag", "last tag"])
@pytest.mark.parametrize("shift", [1, 2**31, 2**32 - 1])
def test_a_shifted_sum_of_scores_is_refused(place: int, shift: int) -> None:
    manifest = draw_up_scored()
    coefficients = TagCoefficients(manifest.run_id, 1, bytes(32))
    sides = [
        VerifiedRound(ScoreRound(manifest.score_sheet, {"accuracy": (value, 1)}, 1), (SCORES,), coefficients)
        for value in (SECRET, *OTHERS.values())
    ]
    vectors = sides[0].vectors("scores")
    contributed = [side.contribute("scores") for side in sides]
    sums = [np.array([each[kind] for each in contributed], dtype=np.uint64).sum(axis=0) for kind in (0, 1)]
    sides[0].absorb("scores", Release(vectors, (sums[0].astype(np.uint32), sums[1])), 3)

    sums[place > 0][max(0, place - 1)] += np.uint64(shift)
    false = Release(vectors, (sums[0].astype(np.uint32), sums[1]))

    with pytest.raises(FalseSum):
        sides[1].absorb("scores", false, 3)
