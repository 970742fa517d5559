"""Three hospitals predict how diabetes progresses, on scikit-learn's data, of which each holds a third.

    hubbub demo --task examples/diabetes.py --clients 3 --strategy sec-union --local-steps 20 --rounds 10

A regression: the target is a number, scored by R² and mean squared error. All hospitals agree on its range.
"""

import torch
from sklearn.datasets import load_diabetes

from hubbub_trainer.learning.torch_task import Data, Site, TorchTask

HELD_OUT = 5
TYPICAL = 150.0
"""A public guess at the target: the model starts there."""


class Diabetes(TorchTask):
    """Progression of the disease after a year: ten measurements, one number."""

    metrics = "regression"
    target_range = (0.0, 350.0)
    batch_size = 16
    learning_rate = 0.0004
    momentum = 0.0

    def model(self) -> torch.nn.Module:
        """Make a network with one hidden layer."""
        last = torch.nn.Linear(32, 1)
        torch.nn.init.constant_(last.bias, TYPICAL)
        return torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), last)

    def data(self, site: Site) -> Data:
        """Return this hospital's patients, every third; every fifth of them is for testing."""
        bunch = load_diabetes()
        inputs = torch.tensor(bunch.data, dtype=torch.float32)[site.index :: site.clients]
        targets = torch.tensor(bunch.target, dtype=torch.float32)[site.index :: site.clients]
        # Scaled by this hospital's own means, which do not leave it.
        inputs = (inputs - inputs.mean(0)) / inputs.std(0)
        test = torch.arange(len(targets)) % HELD_OUT == 0
        return Data(train=(inputs[~test], targets[~test]), test=(inputs[test], targets[test]))
