"""Fine-tune only small adapters of a larger network: 2 % of its parameters are shared, the rest is frozen.

    hubbub demo --task examples/adapters.py --clients 3 --strategy sec-union --local-steps 30 --rho 0.2

The network below has learnt digits that were scanned upright; the clients' scans are all upside down. Each linear
layer gets a correction of low rank, B·A, as LoRA does. Only A and B require gradients, so only they are θ.
"""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from hubbub_trainer.learning.torch_task import Data, Site, TorchTask

RANK = 2
PUBLIC = 900
"""The number of public digits, on which the network was trained upright."""
HELD_OUT = 4


class Adapted(nn.Module):
    """A frozen linear layer and its correction; B starts at zero, so that nothing changes at first."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(RANK, frozen.in_features) / frozen.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(frozen.out_features, RANK))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return W·x + B·(A·x)."""
        corrected: Tensor = self.frozen(inputs) + functional.linear(functional.linear(inputs, self.a), self.b)
        return corrected


class UpsideDown(TorchTask):
    """Digits that were scanned the wrong way round."""

    name = "upside-down-digits"
    learning_rate = 0.02

    def model(self) -> nn.Module:
        """Make the public network, with fresh adapters."""
        network = build()
        network.load_state_dict(pretrain())
        return nn.Sequential(*(Adapted(each) if isinstance(each, nn.Linear) else each for each in network))

    def data(self, site: Site) -> Data:
        """Return this client's part of the scans that are not public."""
        images, labels = (each[PUBLIC + site.index :: site.clients] for each in load())
        inputs, test = images.flip(1), torch.arange(len(labels)) % HELD_OUT == 0
        return Data(train=(inputs[~test], labels[~test]), test=(inputs[test], labels[test]))


def load() -> tuple[Tensor, Tensor]:
    """Load all digits, a row of 64 pixels each."""
    digits = load_digits()
    return torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)


def build() -> nn.Sequential:
    """Make the larger network."""
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))


@cache
def pretrain() -> dict[str, Tensor]:
    """Train it on upright digits. In practice, all clients would have it as a file."""
    torch.manual_seed(0)
    network = build()
    images, labels = (each[:PUBLIC] for each in load())
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for _ in range(60):
        optimiser.zero_grad()
        functional.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]  # In torch.
        optimiser.step()
    return network.state_dict()
