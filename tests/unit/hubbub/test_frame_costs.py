import json
from pathlib import Path

import pytest

from hubbub.frame_costs import count_orders, count_sent
from hubbub.ids import WireMode
from hubbub.parameters import Parameters
from support.command_line import run_hubbub

QUICK = (
    "--task",
    "synthetic:300",
    "--clients",
    "4",
    "--servers",
    "3",
    "--local-steps",
    "1",
)


ORDERS = ("round-opened", "set-received", "close-phase", "phase-released", "round-applied", "round-scored")


def measure(folder: Path, *options: str) -> tuple[float, float, dict[str, int]]:
    """The bytes of two further rounds beside payload and of orders alone, for one of them; the payload's bits."""
    sizes, orders, phases = [], [], dict[str, int]()
    for rounds in ("1", "3"):
        file = folder / f"{rounds}.json"
        run_hubbub("demo", *QUICK, "--rounds", rounds, "--json", file, *options).check_done()
        report = json.loads(file.read_text("utf-8"))
        payload = sum(cost["payload_bits"] for each in report["rounds"] for cost in each["phases"].values()) / 8
        sizes.append(report["all_wire_bytes"] - payload)
        orders.append(sum(report["wire_by_kind"].get(kind, 0) for kind in ORDERS))
        phases = {name: cost["payload_bits"] for name, cost in report["rounds"][-1]["phases"].items()}
    return (sizes[1] - sizes[0]) / 2, (orders[1] - orders[0]) / 2, phases


# Secret sums of several phases with tags and factors, and plain ones with neither; without scores and with them.
@pytest.mark.parametrize(
    ("strategy", "wire", "evaluate_every"),
    [("sec-union", "compact", 0), ("fedavg", "paper", 0), ("fedavg", "compact", 1)],
)
def test_frames_take_what_is_predicted(strategy: str, wire: WireMode, evaluate_every: int, tmp_path: Path) -> None:
    options = ("--strategy", strategy, "--wire", wire, "--evaluate-every", str(evaluate_every))
    beside_payload, orders, phases = measure(tmp_path, *options)

    run = Parameters(model_size=300, clients=4, servers=3, rho=1, wire=wire)
    predicted = count_sent(strategy, phases, run)

    assert predicted - sum(phases.values()) // 8 == pytest.approx(beside_payload, rel=0.05)
    # On a busy machine aggregators give more receipts.
    assert count_orders(strategy, frozenset(phases), run) == pytest.approx(orders, rel=0.15)


def test_a_chunk_more_is_a_message_more_for_everybody() -> None:
    run = Parameters(model_size=300, clients=4, servers=2, rho=1, wire="compact")
    one, two = (count_sent("no-union", {"signs": 9 * 8 * size}, run) for size in (1, 2**20 + 1))

    # Four shares and four sums with their seals, and one sum for the combiner.
    assert 9 * 150 < two - one - 9 * 2**20 < 9 * 400


@pytest.mark.parametrize(
    ("strategy", "names", "limit"),
    [
        ("shared-mask", ("levels", "factors", "tags"), 10_000),
        ("no-union", ("signs", "factors", "tags"), 10_000),
        ("sec-union", ("union", "signs", "factors", "tags"), 16_000),
    ],
)
def test_five_clients_and_two_aggregators_send_few_bytes_beside_the_payload_of_a_round(
    strategy: str, names: tuple[str, ...], limit: int
) -> None:
    run = Parameters(model_size=61_706, clients=5, servers=2, rho=0.1, wire="compact")

    assert count_sent(strategy, dict.fromkeys(names, 0), run) < limit
