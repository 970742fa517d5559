import copy
import pickle
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto import key_derivation
from hubbub.crypto.key_derivation import CONTRIBUTION_BYTES, GroupSecret, Transcript
from hubbub.errors import LocalError, PeerError, RejectReason
from hubbub.ids import RunId
from support import plain_group

RUN = RunId("5a" * 32)
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


OTHERS: dict[str, Callable[[], GroupSecret]] = {
    "one contribution": lambda: agree([*CONTRIBUTIONS[:2], bytes(32)]),
    "another order": lambda: agree(CONTRIBUTIONS[::-1]),
    "another run": lambda: agree(run=RunId("5b" * 32)),
    "one run key": lambda: agree(run_keys=[*RUN_KEYS[:2], b"key of a stranger"]),
    "run keys in another order": lambda: agree(run_keys=RUN_KEYS[::-1]),
    "bytes moved between run keys": lambda: agree(run_keys=[b"key of client-1k", b"ey of client-2", RUN_KEYS[2]]),
    "fewer clients": lambda: agree(CONTRIBUTIONS[:2], run_keys=RUN_KEYS[:2]),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_whatever_differs_gives_another_secret_and_another_tag(other: Callable[[], GroupSecret]) -> None:
    assert other().confirmation() != agree().confirmation()
    assert other().key_for("masks") != agree().key_for("masks")


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


@pytest.mark.parametrize("kept", [b"", agree().to_bytes()[:-1], agree().to_bytes() + b"\0"], ids=len)
def test_what_cannot_be_a_kept_secret_is_refused(kept: bytes) -> None:
    with pytest.raises(LocalError, match=f"has 72 bytes, not {len(kept)}"):
        GroupSecret.from_bytes(kept)


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


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_contribution_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(PeerError, match="32 bytes") as caught:
        agree([*CONTRIBUTIONS[:2], bytes(size)])
    assert caught.value.reason is RejectReason.MALFORMED


@pytest.mark.parametrize(("contributions", "keys"), [(0, 0), (1, 1), (2, 3), (3, 2)])
def test_a_secret_takes_one_contribution_and_one_key_of_each_of_two_or_more(contributions: int, keys: int) -> None:
    with pytest.raises(LocalError, match="no group secret"):
        agree(CONTRIBUTIONS[:contributions], run_keys=RUN_KEYS[:keys])


def test_a_copy_is_refused_and_text_forms_do_not_show_the_secret() -> None:
    secret = agree()
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(LocalError, match="cannot be copied"):
            duplicate(secret)
    assert f"{secret!r} {secret} {[secret]}" == "<GroupSecret> <GroupSecret> [<GroupSecret>]"


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
        digest(b"ab", b"c"),
        digest(b"a", b"bc"),
        digest(b"c", b"ab"),
        digest(b"abc"),
        digest(b"ab", b"c", b""),
        digest(b"ab", b"c", phase="union"),
        digest(b"ab", b"c", key=bytes(32)),
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
