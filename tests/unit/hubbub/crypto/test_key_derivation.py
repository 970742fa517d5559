import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto import key_derivation
from hubbub.crypto.key_derivation import CONTRIBUTION_BYTES, ClientSecret, GroupSecret, Transcript
from hubbub.errors import LocalError, RejectReason
from hubbub.ids import RunId
from support import plain_group
from support.refusals import refusing

RUN, OTHER_RUN = RunId("5a" * 32), RunId("5b" * 32)
CONTRIBUTIONS = [bytes([number]) * CONTRIBUTION_BYTES for number in (1, 2, 3)]
RUN_KEYS = [b"key of client-1", b"key of client-2", b"key of client-3"]
KEY = bytes(range(32))


def agree(
    contributions: Sequence[bytes] = CONTRIBUTIONS, run: RunId = RUN, run_keys: Sequence[bytes] = RUN_KEYS
) -> GroupSecret:
    return GroupSecret.agree(contributions, run=run, run_keys=run_keys)


def state_of(secret: GroupSecret) -> bytes:
    """Everything that the object holds."""
    return b"|".join(
        repr(getattr(secret, slot)).encode() + _raw(getattr(secret, slot)) for slot in secret.__slots__
    )


def _raw(value: object) -> bytes:
    return bytes(value) if isinstance(value, bytes | bytearray) else b""


@given(
    contributions=st.lists(st.binary(min_size=32, max_size=32), min_size=2, max_size=6),
    key_size=st.integers(0, 40),
    purpose=st.text("aé/ ", max_size=10),
)
def test_a_second_implementation_derives_the_same(contributions: list[bytes], key_size: int, purpose: str) -> None:
    run_keys = [bytes([number]) * key_size for number in range(len(contributions))]
    chain = plain_group.chain_values(contributions, RUN, run_keys, rounds=3)
    secret = agree(contributions, RUN, run_keys)

    for number, value in enumerate(chain, 1):
        assert secret.round == number
        assert secret.key_for(purpose) == plain_group.round_key(value, number, purpose)
        assert secret.confirmation() == plain_group.confirmation(chain[0], RUN)
        secret.step()


OTHERS = {
    "one contribution": agree([*CONTRIBUTIONS[:2], bytes(32)]),
    "another order": agree(CONTRIBUTIONS[::-1]),
    "another run": agree(run=OTHER_RUN),
    "one run key": agree(run_keys=[*RUN_KEYS[:2], b"key of a stranger"]),
    "run keys in another order": agree(run_keys=RUN_KEYS[::-1]),
    "bytes moved between run keys": agree(run_keys=[b"key of client-1k", b"ey of client-2", RUN_KEYS[2]]),
    "fewer clients": agree(CONTRIBUTIONS[:2], run_keys=RUN_KEYS[:2]),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_whatever_differs_gives_another_secret_and_another_tag(other: GroupSecret) -> None:
    assert other.confirmation() != agree().confirmation()
    assert other.key_for("masks") != agree().key_for("masks")


def test_clients_that_saw_the_same_have_the_same_keys_which_differ_by_round_and_purpose() -> None:
    secret, same = agree(), agree()
    assert secret.confirmation() == same.confirmation()
    keys = []
    for _ in range(5):
        keys += [secret.key_for(purpose) for purpose in ("transcript", "model", "masks", "")]
        assert keys[-2] == same.key_for("masks")
        secret.step()
        same.step()

    assert len(set(keys)) == 20
    assert {len(key) for key in keys} == {32}
    assert len(bytes.fromhex(secret.confirmation())) == 32
    assert bytes.fromhex(secret.confirmation()) not in keys


def test_after_a_step_nothing_of_the_old_round_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytearray] = []
    expand = key_derivation._expand

    def watch(key: bytearray, info: bytes) -> bytearray:
        made.append(expand(key, info))
        return made[-1]

    secret = agree()
    first, second = plain_group.chain_values(CONTRIBUTIONS, RUN, RUN_KEYS, rounds=2)
    buffer = secret._chain
    assert first in state_of(secret)
    assert first in secret.to_bytes()
    assert secret.key_for("transcript") not in state_of(secret)
    monkeypatch.setattr(key_derivation, "_expand", watch)

    secret.step()

    assert first not in state_of(secret)
    assert first not in secret.to_bytes()
    # The memory itself was overwritten, not left behind for a new one, and there is no second copy.
    assert secret._chain is buffer
    assert bytes(buffer) == second
    assert made == [bytearray(32)]


def test_erased_memory_is_zero_and_the_secret_of_no_use() -> None:
    secret = agree()
    tag, buffer = secret.confirmation(), secret._chain

    secret.erase()
    secret.erase()

    assert bytes(buffer) == bytes(32)
    assert tag.encode() not in state_of(secret)
    for use in (secret.step, secret.confirmation, lambda: secret.key_for("masks"), secret.to_bytes):
        with pytest.raises(LocalError, match="after it was erased"):
            use()


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_secret_that_was_kept_goes_on_where_it_stood(steps: int) -> None:
    secret = agree()
    for _ in range(steps):
        secret.step()

    again = GroupSecret.from_bytes(secret.to_bytes())

    assert again.round == secret.round == steps + 1
    assert again.confirmation() == secret.confirmation()
    for _ in range(2):
        assert again.key_for("masks") == secret.key_for("masks")
        again.step()
        secret.step()


def test_a_secret_advances_to_any_later_round_and_never_back() -> None:
    stepped, advanced = agree(), agree()
    for _ in range(4):
        stepped.step()

    advanced.advance_to(5)
    advanced.advance_to(5)

    assert advanced.to_bytes() == stepped.to_bytes()
    with pytest.raises(LocalError, match="stands at round 5; that of round 4 is erased"):
        advanced.advance_to(4)
    assert advanced.round == 5


def test_a_secret_takes_one_contribution_and_one_key_of_each_of_two_or_more_or_exactly_what_was_kept() -> None:
    for size in (0, 31, 33):
        with refusing(RejectReason.MALFORMED, "32 bytes"):
            agree([*CONTRIBUTIONS[:2], bytes(size)])
    for contributions, keys in ((0, 0), (1, 1), (2, 3), (3, 2)):
        with pytest.raises(LocalError, match="no group secret"):
            agree(CONTRIBUTIONS[:contributions], run_keys=RUN_KEYS[:keys])
    kept = agree().to_bytes()
    for wrong in (b"", kept[:-1], kept + b"\0"):
        with pytest.raises(LocalError, match=f"has 72 bytes, not {len(wrong)}"):
            GroupSecret.from_bytes(wrong)


@given(st.lists(st.binary(max_size=50), max_size=5), st.text("aé/ ", max_size=10))
def test_a_second_implementation_has_the_same_transcript(parts: list[bytes], phase: str) -> None:
    transcript = Transcript(KEY)
    transcript.note(*parts)

    assert transcript.digest(phase) == plain_group.transcript(KEY, parts, phase)


def test_every_form_of_a_part_is_noted_as_its_bytes() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    array.flags.writeable = False
    transcript = Transcript(KEY)

    transcript.note("signs", 7, b"raw", memoryview(b"view"), array.data, array, np.empty((0, 3)))

    parts = [b"signs", bytes(7) + b"\x07", b"raw", b"view", array.tobytes(), array.tobytes(), b""]
    assert transcript.digest("signs") == plain_group.transcript(KEY, parts, "signs")


def test_noting_goes_on_after_a_digest_and_a_copy_goes_its_own_way() -> None:
    transcript = Transcript(KEY)
    transcript.note(b"model")
    other = transcript.copy()
    assert transcript.digest("signs") == plain_group.transcript(KEY, [b"model"], "signs")
    transcript.note(b"union")

    assert transcript.digest("signs") == plain_group.transcript(KEY, [b"model", b"union"], "signs")
    assert other.digest("signs") == plain_group.transcript(KEY, [b"model"], "signs")


def test_transcripts_differ_in_key_parts_order_boundaries_and_phase() -> None:
    def digest(*parts: bytes, key: bytes = KEY, phase: str = "signs") -> str:
        transcript = Transcript(key)
        transcript.note(*parts)
        return transcript.digest(phase)

    digests = [
        *(digest(b"ab", b"c"), digest(b"a", b"bc"), digest(b"c", b"ab"), digest(b"abc"), digest(b"ab", b"c", b"")),
        *(digest(b"ab", b"c", phase="union"), digest(b"ab", b"c", key=bytes(32))),
    ]
    assert len(set(digests)) == len(digests)
    assert {len(each) for each in digests} == {64}


@pytest.mark.parametrize("big", [bytes(2**24), np.zeros((2**11, 2**11), dtype=np.float32)], ids=["bytes", "array"])
def test_a_big_part_is_not_copied(big: bytes) -> None:
    transcript = Transcript(KEY)
    tracemalloc.start()
    try:
        transcript.note(big)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2**20


def test_an_array_with_gaps_and_a_key_of_another_length_are_refused() -> None:
    with pytest.raises(LocalError, match="contiguous"):
        Transcript(KEY).note(np.zeros(10)[::2])
    for size in (0, 16, 31, 33):
        with pytest.raises(LocalError, match=f"32 bytes, not {size}"):
            Transcript(bytes(size))


# A client's own secret -----------------------------------------------------------------------------------


def seed(secret: ClientSecret, *, purpose: str = "batches", run: RunId = RUN, round_number: int = 1) -> int:
    return secret.seed_for(purpose, run=run, round_number=round_number)


def test_purpose_run_and_round_each_change_the_seed_and_a_restart_does_not() -> None:
    secret = ClientSecret.from_os()
    again = ClientSecret.from_bytes(secret.to_bytes())
    changes: list[dict[str, Any]] = [
        *(
            {},
            {"purpose": "union"},
            {"run": OTHER_RUN},
            {"round_number": 2},
            {"run": OTHER_RUN, "round_number": 2},
        ),
        *({"purpose": "batches1"}, {"round_number": 11}),
    ]

    seeds = [seed(secret, **change) for change in changes]

    assert len(set(seeds)) == len(seeds)
    assert [seed(again, **change) for change in changes] == seeds, "a secret that was kept gives the same"


def test_seeds_differ_and_use_all_of_their_16_bytes() -> None:
    seeds = [seed(ClientSecret.from_os()) for _ in range(64)]

    assert len(set(seeds)) == 64
    assert 2**125 <= max(seeds) < 2**128


def test_demo_secret_follows_from_seed_client_and_round_alone() -> None:
    demo = ClientSecret.for_demo(7, 0)

    assert seed(demo) == seed(ClientSecret.for_demo(7, 0))
    # A run over another transport or in another wire mode is another manifest; its batches are the same.
    assert seed(demo) == seed(demo, run=OTHER_RUN)
    assert seed(demo) != seed(demo, round_number=2)
    assert seed(demo) != seed(ClientSecret.for_demo(8, 0))
    assert seed(demo) != seed(ClientSecret.for_demo(7, 1))
    assert seed(ClientSecret.for_demo(1, 11)) != seed(ClientSecret.for_demo(11, 1))


def test_keys_have_32_bytes_and_seeds_are_their_beginning() -> None:
    secret = ClientSecret.from_os()
    key = secret.key_for("strategy", run=RUN, round_number=1)

    assert len(key) == 32
    assert seed(secret, purpose="strategy") == int.from_bytes(key[:16], "big")
    assert key != secret.key_for("strategy", run=RUN, round_number=2)
    assert key != secret.key_for("strategy", run=OTHER_RUN, round_number=1)
    assert key != secret.key_for("batches", run=RUN, round_number=1)
