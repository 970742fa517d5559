"""Files of a trainer: there as a whole or not at all, and gone when they have served."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.key_derivation import ClientSecret, Transcript
from hubbub.crypto.stream import AesCtrStream
from hubbub.errors import Code, StorageDamaged, StorageFailed
from hubbub.ids import PartyId
from hubbub.parameters import Parameters
from hubbub.protocol.aggregate import NO_HISTORY
from hubbub.protocol.layout import Vector
from hubbub.protocol.metrics import Metric
from hubbub.strategies.base import ClientInput, Conclusion, Release, Restriction, Theta
from hubbub.strategies.registry import find_strategy
from hubbub.strategies.unions import Found
from hubbub_trainer.learning.synthetic import SyntheticTask
from hubbub_trainer.saved_model import BEST, Headline, KeptModel, read_best_model, read_kept_model
from hubbub_trainer.workspace import (
    Learnt,
    OpenRound,
    Workspace,
    _shortened,
    clean_up,
    digest,
    drop_update,
    has_model,
)

TASK = SyntheticTask(30)
INITIAL = TASK.initial_model(7)
HISTORY = tuple(0.1 / place for place in range(1, 20))
"""Of as many rounds as a test needs."""


def filled(value: float) -> Theta:
    return np.full_like(INITIAL, value)


def concluded(value: float, alone_share: float | None = None, **more: Any) -> Conclusion:
    return Conclusion(filled(value), filled(0), 1, alone_share, **more)


def open_space(folder: Path) -> Workspace:
    """As a trainer opens it, at first and after a restart."""
    space = Workspace(
        folder=folder,
        learner=TASK.learner(index=0, clients=2, seed=7),
        secret=ClientSecret.for_demo(1, 0),
        theta=INITIAL,
        accumulator=np.zeros_like(INITIAL),
    )
    space.recall()
    return space


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def check(space: Workspace, applied: int, theta: float, accumulator: float, memory: float | None) -> None:
    assert space.applied == applied
    np.testing.assert_array_equal(space.theta, filled(theta))
    np.testing.assert_array_equal(space.accumulator, filled(accumulator))
    if memory is None:
        assert space.memory is None
    else:
        np.testing.assert_array_equal(space.memory, filled(memory))
    assert space.theta.dtype == np.float32
    assert space.history == HISTORY[:applied]


def test_it_begins_with_the_initial_model_and_knows_it_again(tmp_path: Path) -> None:
    assert not has_model(tmp_path / "run")
    for _ in range(2):
        space = open_space(tmp_path / "run")
        assert (space.applied, space.memory) == (0, None)
        np.testing.assert_array_equal(space.theta, INITIAL)
        assert not space.accumulator.any()
    assert names(tmp_path / "run") == {"state-000000.safetensors"}
    assert has_model(tmp_path / "run")


@pytest.mark.parametrize("memory", [None, 3.0])
def test_it_goes_on_with_what_the_last_round_left_and_nothing_older(tmp_path: Path, memory: float | None) -> None:
    space = open_space(tmp_path)
    for number in (1, 2):
        space.keep_update(number, Learnt(filled(0.5), None))
        space.advance(
            number, filled(number), filled(0.25), None if memory is None else filled(memory), HISTORY[:number]
        )
        check(space, number, number, 0.25, memory)
    assert names(tmp_path) == {"state-000002.safetensors"}
    check(open_space(tmp_path), 2, 2.0, 0.25, memory)


def test_how_far_the_last_round_moved_the_model_is_known_after_a_restart(tmp_path: Path) -> None:
    space = open_space(tmp_path / "run")
    assert space.step == 0
    for number, value, step in ((1, 2.0, None), (2, 5.0, 3 * np.sqrt(INITIAL.size)), (3, np.nan, np.inf)):
        space.advance(number, filled(value), filled(0.0), None, NO_HISTORY)
        for each in (space, open_space(tmp_path / "run")):
            assert step is None or each.step == pytest.approx(step), "what is no number was moved infinitely far"


def test_a_model_that_goes_on_by_itself_or_is_held_back_was_not_moved(tmp_path: Path) -> None:
    """With momentum a model moves also if the sums are zero, and stands still if they undo its velocity."""
    root = float(np.sqrt(INITIAL.size))
    space = open_space(tmp_path)
    space.advance(1, filled(1.0), filled(0.0), None, NO_HISTORY, velocity=filled(0.0))
    # The model that the sums alone would give; the model; the velocity; the step that counts.
    for number, alone, theta, velocity, step in (
        (2, 3.0, 3.0, 2.0, 2 * root),
        (3, 3.0, 4.0, 1.0, 0.0),
        (4, 3.5, 4.0, 0.0, 0.0),
        (5, 5.0, 5.0, 1.0, root),
        (6, 7.0, 7.5, 2.5, 2 * root),
    ):
        space.conclude(number, concluded(alone), None, 0.5)
        for each in (space, open_space(tmp_path)):
            check_moved(each, theta, velocity)
            assert each.step == pytest.approx(step), number
        assert space._read_notes()[number]["model_sha256"] == space.digest_of(space.theta)


def check_moved(space: Workspace, theta: float, velocity: float) -> None:
    assert space.velocity is not None
    np.testing.assert_array_equal(space.theta, filled(theta))
    np.testing.assert_array_equal(space.velocity, filled(velocity))


def test_the_newest_counts_if_the_older_could_not_be_taken_away(tmp_path: Path) -> None:
    space = open_space(tmp_path)
    older = (tmp_path / "state-000000.safetensors").read_bytes()
    space.advance(10, filled(10), filled(0), None, HISTORY[:10])
    (tmp_path / "state-000000.safetensors").write_bytes(older)
    (tmp_path / "state-000009.safetensors").write_bytes(older)
    again = open_space(tmp_path)
    check(again, 10, 10.0, 0.0, None)
    again.advance(11, filled(11), filled(0), None, HISTORY[:11])
    assert names(tmp_path) == {"state-000011.safetensors"}


def test_what_was_not_written_to_its_end_does_not_count(tmp_path: Path) -> None:
    open_space(tmp_path).advance(1, filled(1), filled(0), None, HISTORY[:1])
    for name in ("state-000002.safetensors.part", "update-000002.safetensors.part"):
        (tmp_path / name).write_bytes(b"PK half a file")
    again = open_space(tmp_path)
    check(again, 1, 1.0, 0.0, None)
    assert again.recall_update(2) is None
    again.keep_update(2, Learnt(filled(0.5), None))
    again.advance(2, filled(2), filled(0), None, HISTORY[:2])
    check(open_space(tmp_path), 2, 2.0, 0.0, None)


@pytest.mark.parametrize("memory", [None, filled(4)], ids=["no-memory", "memory"])
def test_an_update_is_kept_until_its_round_is_over(tmp_path: Path, memory: Theta | None) -> None:
    space = open_space(tmp_path)
    assert space.recall_update(1) is None
    space.keep_update(1, Learnt(filled(0.5), memory, silent=True))
    learnt = open_space(tmp_path).recall_update(1)
    assert learnt is not None
    np.testing.assert_array_equal(learnt.update, filled(0.5))
    assert (learnt.silent, learnt.memory is None) == (True, memory is None)
    assert space.recall_update(2) is None
    for _ in range(2):
        drop_update(tmp_path, 1)
        assert space.recall_update(1) is None


def refuse(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = open_space(tmp_path)
    space.advance(1, filled(1), filled(0.25), None, HISTORY[:1])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        attempts: tuple[Callable[[], None], ...] = (
            lambda: space.advance(2, filled(2), filled(0), None, HISTORY[:2]),
            lambda: space.keep_update(2, Learnt(filled(0.5), None)),
            lambda: space.note_round(2, concluded(2)),
            lambda: space.save_model(run="1" * 64, task="synthetic", seed=0),
        )
        for attempt in attempts:
            with pytest.raises(StorageFailed, match="takes no more: No space left on device"):
                attempt()
    check(space, 1, 1.0, 0.25, None)
    again = open_space(tmp_path)
    check(again, 1, 1.0, 0.25, None)
    assert again.recall_update(2) is None
    assert not (tmp_path / "rounds.jsonl").exists()
    assert not (tmp_path / "model.safetensors").exists()


def look_at(learnt: Learnt | None) -> object:
    return learnt and (learnt.update.tobytes(), learnt.silent)


RECALL: dict[str, Callable[[Workspace], object]] = {
    "state-000002.safetensors": lambda space: (
        *(space.applied, space.theta.tobytes(), space.accumulator.tobytes()),
        *(space.history, space.step),
    ),
    "update-000003.safetensors": lambda space: look_at(space.recall_update(3)),
    "scores-000002.json": lambda space: space.recall_scores(2),
    "task.json": lambda space: space.record,
}


@pytest.mark.parametrize("name", RECALL)
def test_a_flipped_bit_in_what_is_kept_is_found_and_the_file_named(tmp_path: Path, name: str) -> None:
    def recall() -> object:
        return RECALL[name](open_space(tmp_path))

    space = open_space(tmp_path)
    space.advance(2, filled(2), filled(0.5), None, HISTORY[:2])
    space.keep_update(3, Learnt(filled(0.25), None))
    space.keep_scores(2, {"accuracy": ([0.75], 4.0)})
    space.begin("training", 3)
    path, found = tmp_path / name, list[StorageDamaged]()
    content, right = path.read_bytes(), recall()

    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            # Padding may change, and nothing else.
            assert recall() == right, place
        except StorageDamaged as error:
            found.append(error)
    assert len(found) > 0.9 * len(content)
    words = f"{path} does not hold what was written: look whether its disk is failing"
    assert all(str(error).startswith(words) and error.code is Code.DISK_FAILED for error in found)
    for end in (0, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:end])
        with pytest.raises(StorageDamaged, match="does not hold what was written"):
            recall()


def test_notes_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    space = open_space(tmp_path)
    space.note_round(1, concluded(1))
    (tmp_path / "rounds.jsonl").write_bytes(b"\xff no notes")

    with pytest.raises(StorageDamaged, match=r"rounds\.jsonl does not hold what was written"):
        space.note_round(2, concluded(2))


def test_it_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space, seen = open_space(tmp_path), list[set[str]]()
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(names(tmp_path)))
    space.save_model(run="1" * 64, task="synthetic", seed=0)
    named = [{name for name in each if not name.endswith(".part")} for each in seen]
    assert named == [
        {"state-000000.safetensors"},
        {"state-000000.safetensors", "model.safetensors"},
        {"state-000000.safetensors", "model.safetensors"},
        {"state-000000.safetensors", "model.safetensors", "model.sha256"},
    ]
    assert [len(each) for each in seen] == [2, 2, 3, 3], "a file is written under another name"


def test_a_round_is_noted_once_however_often_it_is_concluded(tmp_path: Path) -> None:
    space = open_space(tmp_path)
    space.note_round(1, concluded(1, alone_share=0.5))
    space.note_round(3, concluded(7))
    open_space(tmp_path).note_round(3, concluded(3, alone_share=0.25, changed=2, scale=0.125))
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text("utf-8").splitlines()]
    assert lines == [
        {"round": 1, "model_sha256": digest(filled(1)), "alone_share": 0.5},
        {"round": 3, "model_sha256": digest(filled(3)), "alone_share": 0.25, "changed": 2, "scale": 0.125},
    ]


@pytest.mark.parametrize(
    ("metric", "values", "rounds"),
    [
        (Metric("accuracy"), [0.2, 0.5, 0.5, 0.4, 0.6], [1, 2, 2, 2, 5]),
        (Metric("loss", higher_is_better=False), [0.4, 0.5, 0.3, 0.3, 0.9], [1, 1, 3, 3, 3]),
    ],
    ids=["more-is-better", "less-is-better"],
)
def test_the_model_of_the_best_round_is_kept_beside_the_last(
    metric: Metric, values: list[float], rounds: list[int], tmp_path: Path
) -> None:
    for number, value in enumerate(values, start=1):
        space = open_space(tmp_path)  # Restarted in between.
        space.advance(number, filled(number), filled(0), None, HISTORY[:number])
        for _ in range(2):  # The second time after a crash.
            space.keep_best(metric, value, run="1" * 64, task="synthetic", seed=3)
        best = read_best_model(tmp_path)
        assert best is not None
        assert best.headline == Headline(round=rounds[number - 1], metric=metric.name, value=max_of(values, best))
        np.testing.assert_array_equal(best.theta, filled(rounds[number - 1]))
    assert (tmp_path / BEST).stat().st_mode & 0o777 == 0o600
    space.save_model(run="1" * 64, task="synthetic", seed=3)
    clean_up(tmp_path)
    assert names(tmp_path) == {BEST, "model.safetensors", "model.sha256"}
    assert read_kept_model(tmp_path).headline is None


def max_of(values: list[float], best: KeptModel) -> float:
    """The value of the round that the file names."""
    assert best.headline is not None
    return values[best.headline.round - 1]


def test_a_damaged_best_model_is_replaced_and_ends_nothing(tmp_path: Path) -> None:
    space = open_space(tmp_path)
    (tmp_path / BEST).write_bytes(b"no model")

    space.keep_best(Metric("accuracy"), 0.1, run="1" * 64, task="synthetic", seed=3)

    best = read_best_model(tmp_path)
    assert best is not None
    assert best.theta.tobytes() == INITIAL.tobytes()


def test_nothing_stays_but_the_model_and_the_notes(tmp_path: Path) -> None:
    space = open_space(tmp_path)
    space.note_round(1, concluded(1))
    space.advance(1, filled(1), filled(0), filled(2), HISTORY[:1])
    space.keep_update(2, Learnt(filled(0.5), None))
    for name in ("state-000002.safetensors.part", "update-000003.safetensors.part", "rounds.jsonl.part"):
        (tmp_path / name).write_bytes(b"half a file")
    space.save_model(run="1" * 64, task="synthetic", seed=0)
    clean_up(tmp_path / "never was")
    for _ in range(2):
        clean_up(tmp_path)
        assert names(tmp_path) == {"model.safetensors", "model.sha256", "rounds.jsonl"}
    assert not has_model(tmp_path)
    model = read_kept_model(tmp_path).theta
    np.testing.assert_array_equal(model, filled(1))
    assert (tmp_path / "model.sha256").read_text("ascii") == f"{digest(model)}\n"


# What a transcript notes --------------------------------------------------------------------------------------


@given(
    indices=st.sets(st.integers(0, 200), max_size=60)
    | st.sets(st.integers(0, 2**20), max_size=5)
    | st.sets(st.integers(2**31, 2**40), max_size=3)
)
def test_index_lists_are_noted_in_the_shorter_of_two_ways_from_which_they_can_be_told(indices: set[int]) -> None:
    ascending = np.array(sorted(indices), dtype=np.int64)

    how, noted = _shortened(Restriction(ascending))

    if how == "bits":
        assert noted.nbytes <= ascending.nbytes
        read = np.flatnonzero(np.unpackbits(noted.view(np.uint8), bitorder="little")).tolist()
    else:
        assert ascending[-1] // 8 >= ascending.nbytes - 1
        read = noted.tolist()
    assert read == ascending.tolist()


@given(chosen=st.lists(st.booleans(), max_size=100))
def test_bits_that_are_at_hand_are_noted_as_those_that_are_made(chosen: list[bool]) -> None:
    found = Found.of(np.array(chosen, dtype=np.uint8))

    at_hand, made = _shortened(Restriction(found.support, found.bits)), _shortened(Restriction(found.support))

    assert at_hand[0] == made[0]
    assert at_hand[1].tobytes() == made[1].tobytes()


@pytest.mark.parametrize("modulus", [2, 11, 300, 2**32])
def test_sums_that_differ_in_one_place_or_in_length_have_other_transcripts(modulus: int) -> None:
    values = np.array([place % modulus for place in range(100)], dtype=np.uint32)
    changed = values.copy()
    changed[99] = (int(changed[99]) + 1) % modulus
    longer = np.append(values, np.uint32(0))
    # Any that is restricted to nothing.
    zeros = filled(0.0)
    client_round = find_strategy("no-union").begin(
        Parameters(model_size=zeros.size, clients=2, servers=2, rho=0.5, verified=False),
        ClientInput(theta=zeros, update=zeros, accumulator=zeros, samples=1, stream=AesCtrStream(bytes(32))),
    )

    transcripts = set()
    for each in (values, changed, longer, values.astype(np.uint64).astype(np.uint32)):
        mine = OpenRound(client_round, None, Transcript(bytes(32)))
        mine.note_sums("signs", [PartyId("client-1")], Release((Vector("signs", each.size, modulus),), (each,)))
        transcripts.add(mine.transcript_of("next"))

    assert len(transcripts) == 3, "the first and the last are the same"
