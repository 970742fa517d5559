import json
from pathlib import Path

import pytest

from hubbub.frame_costs import count_sent
from hubbub.ids import WireMode
from hubbub.parameters import Parameters
from hubbub.strategies.registry import find_strategy
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
    "--evaluate-every",
    "0",
)


def measure(folder: Path, *options: str) -> tuple[float, dict[str, int]]:
    """The bytes of two further rounds beside their payload, for one of them; and the payload's bits."""
    sizes, phases = [], dict[str, int]()
    for rounds in ("1", "3"):
        file = folder / f"{rounds}.json"
        run_hubbub("demo", *QUICK, "--rounds", rounds, "--json", file, *options).check_done()
        report = json.loads(file.read_text("utf-8"))
        payload = sum(cost["payload_bits"] for each in report["rounds"] for cost in each["phases"].values()) / 8
        sizes.append(report["all_wire_bytes"] - payload)
        phases = {name: cost["payload_bits"] for name, cost in report["rounds"][-1]["phases"].items()}
    return (sizes[1] - sizes[0]) / 2, phases


# Secret sums of several phases with tags and factors, and plain ones with neither.
@pytest.mark.parametrize(("strategy", "wire"), [("sec-union", "compact"), ("fedavg", "paper")])
def test_frames_take_what_is_predicted(strategy: str, wire: WireMode, tmp_path: Path) -> None:
    measured, phases = measure(tmp_path, "--strategy", strategy, "--wire", wire)

    run = Parameters(model_size=300, clients=4, servers=3, rho=1, wire=wire)
    predicted = count_sent(find_strategy(strategy), phases, run)

    assert predicted - sum(phases.values()) // 8 == pytest.approx(measured, rel=0.05)


def test_a_chunk_more_is_a_message_more_for_everybody() -> None:
    strategy = find_strategy("no-union")
    run = Parameters(model_size=300, clients=4, servers=2, rho=1, wire="compact")
    one, two = (count_sent(strategy, {"signs": 9 * 8 * size}, run) for size in (1, 2**20 + 1))

    # Four shares and four sums with their seals, and one sum for the combiner.
    assert 9 * 150 < two - one - 9 * 2**20 < 9 * 400
