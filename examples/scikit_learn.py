"""Models of scikit-learn, without PyTorch: three hospitals grade tumours with a linear model, or with a network.

    hubbub demo --task examples/scikit_learn.py:LinearGrades --clients 3 --local-steps 20
    hubbub demo --task examples/scikit_learn.py:NetworkGrades --clients 3 --local-steps 20

Anything fits that is trained step by step (`partial_fit`) and whose parameters are arrays of a fixed shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier

from hubbub.protocol.metrics import BINARY, Scores
from hubbub_trainer.learning.numpy_task import Array, Data, Fit, NumpyTask, Rows, score_binary
from hubbub_trainer.learning.task import Site

FEATURES, HIDDEN, CLASSES = 30, 16, [0, 1]
HELD_OUT = 5


class Grades(NumpyTask):
    """Is a tumour malignant? Data, training and scores are the same for both models."""

    metrics = BINARY

    def data(self, site: Site) -> Data:
        """Return this hospital's patients, every third; every fifth of them is for testing."""
        bunch = load_breast_cancer()
        inputs, labels = bunch.data[site.index :: site.clients], bunch.target[site.index :: site.clients]
        inputs = (inputs - inputs.mean(0)) / inputs.std(0)
        test = np.arange(len(labels)) % HELD_OUT == 0
        return Data(train=(inputs[~test], labels[~test]), test=(inputs[test], labels[test]))

    def fit(self, model: SGDClassifier | MLPClassifier, train: Rows, how: Fit) -> None:
        """Take a step with each batch."""
        inputs, labels = train
        for rows in how.batches(len(labels), size=16):
            model.partial_fit(inputs[rows], labels[rows])

    def evaluate(self, model: SGDClassifier | MLPClassifier, test: Rows) -> Scores:
        """Score the probabilities of class 1."""
        inputs, labels = test
        return score_binary(model.predict_proba(inputs)[:, 1], labels)


class LinearGrades(Grades):
    """Logistic regression: 31 parameters."""

    def model(self) -> SGDClassifier:
        """Make the model; it begins with zeros, after one step that tells it the shapes."""
        model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01)
        model.partial_fit(np.zeros((2, FEATURES)), CLASSES, classes=CLASSES)
        self.set(model, [np.zeros((1, FEATURES)), np.zeros(1)])
        return model

    def get(self, model: SGDClassifier) -> Sequence[Array]:
        """Return weights and bias."""
        return [model.coef_, model.intercept_]

    def set(self, model: SGDClassifier, arrays: Sequence[Array]) -> None:
        """Take over weights and bias."""
        model.coef_, model.intercept_ = arrays


class NetworkGrades(Grades):
    """A network with one hidden layer."""

    def model(self) -> MLPClassifier:
        """Make the model; numpy's generator is seeded, so that all hospitals draw the same weights."""
        model = MLPClassifier(hidden_layer_sizes=(HIDDEN,), solver="sgd", learning_rate_init=0.05, momentum=0)
        model.partial_fit(np.zeros((2, FEATURES)), CLASSES, classes=CLASSES)
        # The step above has only told it the shapes: its result may depend on the machine.
        weights = [np.random.uniform(-0.3, 0.3, each.shape) for each in model.coefs_]  # noqa: NPY002
        self.set(model, [*weights, *map(np.zeros_like, model.intercepts_)])
        return model

    def get(self, model: MLPClassifier) -> Sequence[Array]:
        """Return the weights of all layers, then the biases."""
        return [*model.coefs_, *model.intercepts_]

    def set(self, model: MLPClassifier, arrays: Sequence[Array]) -> None:
        """Take over weights and biases."""
        layers = len(arrays) // 2
        model.coefs_, model.intercepts_ = list(arrays[:layers]), list(arrays[layers:])
