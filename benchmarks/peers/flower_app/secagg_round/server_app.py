"""Server that runs rounds of SecAgg+ and records their durations and the mean of the updates."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_PARAMS_RECORD
from flwr.serverapp import Grid, ServerApp

LOOK_AGAIN_S = 0.5
RESULT = "rounds.json"

app = ServerApp()


def prepare(context: Context) -> tuple[LegacyContext, SecAggPlusWorkflow]:
    """Return the context and workflow: all clients take part, nothing is evaluated, the rest is flwr's default."""
    clients = int(context.run_config["clients"])
    length = np.load(Path(str(context.run_config["folder"])) / "update-0.npy", mmap_mode="r").size
    strategy = FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters([np.zeros(length, dtype=np.float32)]),
    )
    rounds = ServerConfig(num_rounds=int(context.run_config["rounds"]))
    workflow = SecAggPlusWorkflow(
        num_shares=int(context.run_config["num-shares"]),
        reconstruction_threshold=int(context.run_config["reconstruction-threshold"]),
    )
    return LegacyContext(context=context, config=rounds, strategy=strategy), workflow


@app.main()
def main(grid: Grid, context: Context) -> None:
    legacy, workflow = prepare(context)
    seconds: list[float] = []

    def fit(grid: Grid, context: Context) -> None:
        began_s = time.monotonic()
        workflow(grid, context)
        seconds.append(time.monotonic() - began_s)

    # A node that is still starting is not part of a round.
    while len(list(grid.get_node_ids())) < int(context.run_config["clients"]):
        time.sleep(LOOK_AGAIN_S)
    DefaultWorkflow(fit_workflow=fit)(grid, legacy)
    folder = Path(str(context.run_config["folder"]))
    np.save(folder / "mean.npy", legacy.state.array_records[MAIN_PARAMS_RECORD].to_numpy_ndarrays()[0])
    whole = folder / f"{RESULT}.part"
    whole.write_text(json.dumps(seconds), encoding="utf-8")
    whole.rename(folder / RESULT)
