"""A federation in a script: three laboratories train a model with two strategies, and go on with one of them.

    python examples/simulate.py

`simulate` runs all parties in this process. It takes a task, and the flags of `hubbub demo` as Python names.
"""

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_wine

from hubbub_local import simulate
from hubbub_trainer.learning.torch_task import Data, Site, TorchTask

FEATURES, CULTIVARS = 13, 3
HELD_OUT = 4


class Wine(TorchTask):
    """Of which grape is this wine? Thirteen measurements, three classes."""

    batch_size = 16
    learning_rate = 0.05

    def model(self) -> torch.nn.Module:
        """Make a network with one hidden layer."""
        return torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, CULTIVARS))

    def data(self, site: Site) -> Data:
        """Return this laboratory's bottles, every third; every fourth of them is for testing."""
        bunch = load_wine()
        inputs = torch.tensor(bunch.data, dtype=torch.float32)[site.index :: site.clients]
        labels = torch.tensor(bunch.target)[site.index :: site.clients]
        inputs = (inputs - inputs.mean(0)) / inputs.std(0)
        test = torch.arange(len(labels)) % HELD_OUT == 0
        return Data(train=(inputs[~test], labels[~test]), test=(inputs[test], labels[test]))


def main() -> None:
    """Compare, go on, and use the model without Hubbub."""
    console = Console(highlight=False)
    table = Table("strategy", "accuracy", "payload", "all messages", box=SIMPLE_HEAD, pad_edge=False)
    results = {
        name: simulate(Wine, clients=3, strategy=name, rho=0.3, rounds=4, local_steps=20, progress=True)
        for name in ("sec-union", "fedavg")
    }
    for name, result in results.items():
        costs = [f"{size / 1024:.1f} KB" for size in (result.costs.payload_bytes, result.costs.all_bytes)]
        table.add_row(name, f"{result.metrics['accuracy']:.1%}", *costs)
    console.print(table)

    first = results["sec-union"]
    more = simulate(
        Wine, initial_model=first.model, clients=3, strategy="sec-union", rho=0.3, rounds=2, local_steps=20
    )
    losses = [f"{each.metrics['loss']:.3f}" for each in (*first.history, *more.history)]
    console.print(f"sec-union, loss by round, with two more rounds: {', '.join(losses)}", soft_wrap=True)

    model = Wine().model()
    model.load_state_dict(more.state_dict())
    with torch.inference_mode():
        likeliest = int(model(torch.zeros(1, FEATURES)).argmax())
    console.print(f"In plain PyTorch: an average wine is taken for cultivar {likeliest}.")


if __name__ == "__main__":
    main()
