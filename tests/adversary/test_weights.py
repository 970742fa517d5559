"""Numbers of samples: a client that tells different sums of shares, and a broker that reads along."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hubbub.ids import PartyId
from hubbub.messages.envelope import Envelope
from hubbub.messages.runs import GroupConfirmed
from hubbub.protocol.weights import SHARE_BYTES, add
from hubbub_aggregator.journal import PhaseOutcome
from hubbub_coordinator.phases import run as runs
from hubbub_trainer import run_context
from support.corrupt_party import SEED, TASK, Rewrite, Scene, corrupt_federation, draw_up, is_said, say

WEIGHTED: dict[str, object] = {"strategy": "no-union", "weights": "samples", "max_void_rounds": 0}
ANNA, BERT, CORRUPT = draw_up().clients


def tell_another_sum(envelope: Envelope) -> Envelope:
    shifted = add((int.from_bytes(envelope.payload, "big"), 7))
    return say(envelope, payload=shifted.to_bytes(SHARE_BYTES, "big"))


def telling(*deceived: PartyId) -> dict[PartyId, Callable[[Scene], Rewrite]]:
    def begin(_: Scene) -> Rewrite:
        def rewrite(envelope: Envelope) -> Sequence[Envelope]:
            if is_said(envelope, GroupConfirmed, number=0) and envelope.recipient in deceived:
                return [tell_another_sum(envelope)]
            return [envelope]

        return rewrite

    return {CORRUPT: begin}


@pytest.mark.parametrize("min_clients", [2, 3])
async def test_clients_that_are_told_different_totals_are_never_added_up(tmp_path: Path, min_clients: int) -> None:
    """A sum over updates on different scales tells more of one client than of the others."""
    manifest = draw_up(**WEIGHTED, min_clients=min_clients)
    async with corrupt_federation(manifest, tmp_path, telling(ANNA), unheard={1: ANNA}) as scene:
        await scene.run()

        released = [verdict.members for verdict in scene.verdicts(1, "signs") if verdict and verdict.members]
        assert released == ([(BERT, CORRUPT)] * 2 if min_clients == 2 else [])


async def test_with_a_false_total_that_all_others_are_told_they_go_on_alike(tmp_path: Path) -> None:
    """The corrupt client itself computes with the true one, and so is left out."""
    corrupt = telling(ANNA, BERT)
    async with corrupt_federation(draw_up(**WEIGHTED), tmp_path, corrupt, unheard={1: CORRUPT}) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        assert scene.verdicts(1, "signs") == [PhaseOutcome((ANNA, BERT))] * 2


@pytest.mark.parametrize("masked", [True, False])
async def test_who_reads_all_messages_does_not_learn_the_total(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, masked: bool
) -> None:
    """Without the masks, it would."""
    if not masked:
        monkeypatch.setattr(run_context, "_mask_samples", lambda *_: 0)
    async with corrupt_federation(draw_up(**WEIGHTED), tmp_path) as scene:
        state, _ = await scene.run()

        assert state is runs.State.COMPLETED
        said = {each.sender: each.payload for each in scene.sent if isinstance(each.body, GroupConfirmed)}
        assert len(said) == 3
        total = sum(TASK.learner(index=index, clients=3, seed=SEED).samples for index in range(3))
        assert (add(int.from_bytes(each, "big") for each in said.values()) == total) is not masked
