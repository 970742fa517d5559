"""Client that reads its update from a file instead of training."""

from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import NDArrays, Scalar

# SecAggPlusWorkflow's default for max_weight: with fewer examples, SecAgg+ scales an update down before it rounds.
EXAMPLES = 1000


class UpdateClient(NumPyClient):
    def __init__(self, path: Path) -> None:
        self._path = path

    def fit(self, _parameters: NDArrays, _config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        return [np.load(self._path, mmap_mode="r")], EXAMPLES, {}


def make_client(context: Context) -> Client:
    folder, place = context.run_config["folder"], context.node_config["partition-id"]
    return UpdateClient(Path(str(folder)) / f"update-{place}.npy").to_client()


app = ClientApp(client_fn=make_client, mods=[secaggplus_mod])
