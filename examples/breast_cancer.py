"""Three hospitals train one model on scikit-learn's breast-cancer data, of which each holds a third.

    hubbub demo --task examples/breast_cancer.py --clients 3 --strategy sec-union --local-steps 20

Each hospital runs this file as its own (`hubbub trainer --task breast_cancer.py`); the file is never sent.
"""

import torch
from sklearn.datasets import load_breast_cancer

from hubbub_trainer.learning.torch_task import Data, Site, TorchTask

HELD_OUT = 5


class BreastCancer(TorchTask):
    """Is a tumour malignant? Thirty measurements, two classes; scored by the area under the ROC curve."""

    metrics = "binary"
    batch_size = 16
    learning_rate = 0.05

    def model(self) -> torch.nn.Module:
        """Make a network with one hidden layer."""
        return torch.nn.Sequential(torch.nn.Linear(30, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))

    def data(self, site: Site) -> Data:
        """Return this hospital's patients, every third; every fifth of them is for testing."""
        bunch = load_breast_cancer()
        inputs = torch.tensor(bunch.data, dtype=torch.float32)[site.index :: site.clients]
        labels = torch.tensor(bunch.target)[site.index :: site.clients]
        # Scaled by this hospital's own means, which do not leave it.
        inputs = (inputs - inputs.mean(0)) / inputs.std(0)
        test = torch.arange(len(labels)) % HELD_OUT == 0
        return Data(train=(inputs[~test], labels[~test]), test=(inputs[test], labels[test]))
