"""Tags a second time: plain Python integers, one element and one lane at a time, nothing of Hubbub."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from support import plain_group
from support.plain_aes import encrypt_block


@dataclass(frozen=True)
class Table:
    """The key stream of one vector; blocks are encrypted when they are asked for."""

    key: bytes

    def bits(self, first_block: int, blocks: int) -> int:
        """So many blocks as one number, the first byte lowest."""
        numbers = range(first_block, first_block + blocks)
        return int.from_bytes(b"".join(encrypt_block(self.key, i.to_bytes(16, "big")) for i in numbers), "little")


def table_of(group_key: bytes, run: str, number: int, phase: str, vector: str) -> Table:
    """The coefficients of a vector, from the group's key for tags."""
    parts = (b"hubbub/1 tags", run.encode(), number.to_bytes(8, "big"), phase.encode(), vector.encode())
    return Table(plain_group.expand(group_key, plain_group.frame(*parts)))


def tag_integers(values: Mapping[str, Sequence[int]], tables: Mapping[str, Table]) -> list[int]:
    """Σ r·x mod 2^64 over all vectors, in three lanes; the values are integers of either sign."""
    lanes = [0, 0, 0]
    for name, xs in values.items():
        for j, x in enumerate(xs):
            r = tables[name].bits(2 * j, 2) if x else 0
            for lane in range(3):
                lanes[lane] += ((r >> 64 * lane) % 2**64) * x
    return [lane % 2**64 for lane in lanes]


def tag_marks(xs: Sequence[int], m: int, table: Table) -> list[int]:
    """For each of 128 lanes the sum of the marks whose coefficient has that bit, mod m."""
    lanes = [0] * 128
    for j, x in enumerate(xs):
        r = table.bits(j, 1) if x else 0
        for lane in range(128):
            lanes[lane] += x if r >> lane & 1 else 0
    return [lane % m for lane in lanes]


def tag_wide(xs: Sequence[int], table: Table) -> list[int]:
    """For each of 84 lanes the sum of the integers whose coefficient has that bit, mod 2^64."""
    return [lane % 2**64 for lane in tag_marks(xs, 2**64, table)[:84]]


def signed(x: int, m: int) -> int:
    """A residue as an integer, of which the upper half is negative."""
    return x if 2 * x < m else x - m
