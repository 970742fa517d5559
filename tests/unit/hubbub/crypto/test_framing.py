import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.crypto.signing import Part, bind

PARTS = st.lists(st.binary(max_size=20), max_size=4)


@given(PARTS, PARTS)
def test_different_lists_of_parts_give_different_bytes(first: list[bytes], second: list[bytes]) -> None:
    assert (bind(*first) == bind(*second)) == (first == second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((b"ab", b"c"), (b"a", b"bc")),
        ((b"ab",), (b"ab", b"")),
        ((b"",), ()),
        ((bind(b"a"), b"b"), (b"a", b"b")),
        ((bind(b"a", b"b"),), (b"a", b"b")),
        ((1, 23), (12, 3)),
        (("1",), (1,)),
    ],
)
def test_moving_a_boundary_changes_the_bytes(first: tuple[Part, ...], second: tuple[Part, ...]) -> None:
    assert bind(*first) != bind(*second)


def test_the_bytes_are_length_then_part_and_nothing_is_cut() -> None:
    expected = (
        "0000000000000002" + "c3a9" + "0000000000000003" + "00ff01" + "0000000000000008" + "0000000000000102"
    )

    assert bind("é", b"\x00\xff\x01", 258).hex() == expected
    assert bind(bytes(70_000))[:8] == (70_000).to_bytes(8, "big")
    for number in (-1, 2**64):
        with pytest.raises(OverflowError):
            bind(number)
