"""Table 3 of the paper: (a) LeNet on MNIST to 98 %, (b) AlexNet on CIFAR-10 to 80 %.

C. Beguier, M. Andreux, E. W. Tramel, "Efficient Sparse Secure Aggregation for Federated Learning", 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Printed:
    """A row of the table. `size` is in the table's unit; `computing` is all it says on the cost of computing."""

    rounds: int
    size: float
    union_size: int | None = None
    computing: str = "+"


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A part of Table 3, by the names that `hubbub reproduce --strategies` takes."""

    source: str
    network: str
    data: str
    unit: str
    unit_bytes: int
    rows: Mapping[str, Printed]


MNIST = {
    "fedavg": Printed(15, 35.31),
    "topbinary-direct": Printed(17, 7.23),
    "topbinary-sep": Printed(17, 2.05, 18_253),
    "bonawitz": Printed(15, 35.37, computing="+++"),
    "eastly-tss": Printed(17, 10.00, computing="++"),
    "eastly-he": Printed(17, 80.03, computing="+++"),
    "no-union": Printed(17, 10.01),
    "sec-union-letter": Printed(22, 6.25, 14_344),
    "sec-union-q5-letter": Printed(17, 15.43, 18_037),
    "partial-sec-union": Printed(17, 10.46, 18_253),
    "plaintext-union": Printed(17, 4.21, 18_253),
}
CIFAR10 = {
    "fedavg": Printed(101, 6.61),
    "topbinary-direct": Printed(110, 1.60),
    "topbinary-sep": Printed(110, 0.41, 663_630),
    "bonawitz": Printed(101, 6.61, computing="+++"),
    "eastly-tss": Printed(110, 1.80, computing="++"),
    "eastly-he": Printed(110, 14.40, computing="+++"),
    "no-union": Printed(110, 1.80),
    "sec-union-letter": Printed(114, 1.08, 574_599),
    "sec-union-q5-letter": Printed(110, 2.92, 657_164),
    "partial-sec-union": Printed(110, 2.03, 663_630),
    "plaintext-union": Printed(110, 0.90, 663_630),
}
TABLES = {
    "mnist": PaperTable("Table 3a", "LeNet", "MNIST", "MB", 2**20, MNIST),
    "cifar10": PaperTable("Table 3b", "AlexNet", "CIFAR-10", "GB", 2**30, CIFAR10),
}
