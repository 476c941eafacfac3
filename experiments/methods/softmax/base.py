"""What the methods with a softmax have in common: a network of members that classify, its learner and its embedder."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.methods.softmax.probabilities import (
    fit_temperature,
    kappa_of,
    log_mean_softmax,
    scores,
)
from laplacian_metric.core.batch import Batch, map_batches, read
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.method import Embedder, FitData, Learner, Setup, all_pairs

LOGGER = logging.getLogger(__name__)


def classes_of(setup: Setup, name: str) -> int:
    """Return C, the number of classes that a method's setup names."""
    if setup.num_classes is None:
        raise ValueError(f"{name} needs the number of classes: give Setup num_classes")
    if setup.num_classes < 2:
        raise ValueError(f"num_classes is {setup.num_classes}, {name} needs at least 2 classes")
    if setup.pairs is not all_pairs:
        raise ValueError(f"{name} trains on no pairs, but a choice of pairs is given: leave it out")
    return setup.num_classes


class SoftmaxNetwork(nn.Module, ABC):
    """inputs -> points (N, Z) and the logits (M, N, C) of M members or draws.

    Args:
        num_classes: C.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes

    @abstractmethod
    def points(self, inputs: Any) -> Tensor:
        """Return the deterministic embeddings that retrieval uses, (N, Z), raw or unit."""

    @abstractmethod
    def draws(self, inputs: Any, generator: torch.Generator | None) -> Tensor:
        """Return the logits (M, N, C) of a training batch, with noise of its own for every image."""

    @abstractmethod
    def embed(self, inputs: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return points, logits (M, N, C) and further scores (N,); an image's do not depend on the others beside it."""

    def member_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch: the cross-entropy of the members' mean probabilities."""
        return F.nll_loss(log_mean_softmax(logits), labels)


class SoftmaxLearner(Learner):
    """Trains encoder and classifiers together.

    Args:
        network: of the method.
        score: which is the uncertainty.
        temperature: of the scores; None fits it to validation images of training classes.
    """

    def __init__(self, network: SoftmaxNetwork, score: str, temperature: float | None) -> None:
        super().__init__(network)
        self.network = network
        self.score = score
        self.temperature = temperature

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        bad = ((labels < 0) | (labels >= self.network.num_classes)).nonzero().flatten()
        if len(bad):
            raise ValueError(
                f"labels has class {int(labels[bad[0]])} at position {int(bad[0])}, but there are "
                f"{self.network.num_classes} classes, counted from 0: give Setup the num_classes of the training labels"
            )
        logits = self.network.draws(inputs, getattr(self, "generator", None))
        with torch.autocast(logits.device.type, enabled=False):
            return self.network.member_losses(logits.float() if logits.itemsize < 4 else logits, labels)

    def points(self, inputs: Any) -> Tensor:
        return self.network.points(inputs)

    def embedder(self, data: FitData) -> Embedder:
        temperature = self.temperature
        if temperature is None:
            temperature = validated_temperature(self.network, data)
        return SoftmaxEmbedder(self.network, self.score, temperature)


def validated_temperature(network: SoftmaxNetwork, data: FitData) -> float:
    """Return the temperature that makes validation images of training classes most likely, 1 where there are none."""
    trained = torch.unique(_labels(data.train))
    same = _same_classes(data)

    def one(batch: Batch) -> tuple[Tensor, Tensor]:
        assert batch.labels is not None
        labels = batch.labels.cpu() if same is None else same[batch.labels.cpu()]
        of_training = torch.isin(labels, trained)
        return network.embed(batch.inputs)[1].cpu()[:, of_training], labels[of_training]

    parts = map_batches(one, data.validation, network, labelled=True, progress=False)
    labels = torch.cat([labels for _, labels in parts])
    if not len(labels):
        LOGGER.info("no validation image is of a training class: the temperature of the softmax stays 1")
        return 1.0
    return fit_temperature(torch.cat([logits for logits, _ in parts], dim=1), labels)


def _same_classes(data: FitData) -> Tensor | None:
    """Return the training class of the same name of each validation class (C,), -1 where there is none.

    None where classes have no names: then equal numbers are the same class.
    """
    train, validation = data.train, data.validation
    if not (isinstance(train, Dataset) and isinstance(validation, Dataset)):
        return None
    if not (train.class_names and validation.class_names):
        return None
    numbers = {name: number for number, name in enumerate(train.class_names)}
    return torch.tensor([numbers.get(name, -1) for name in validation.class_names])


def _labels(data: Any) -> Tensor:
    if isinstance(data, Dataset):
        return data.known_labels(by_class=False)
    labels = [batch.labels for batch in read(data, labelled=True)]
    return torch.cat([part for part in labels if part is not None])


class SoftmaxEmbedder(Embedder):
    """The points of the network, with a score of its class probabilities as their uncertainty; kappa = exp(-score).

    Args:
        network: trained.
        score: which is the uncertainty.
        temperature: that divides the logits.
    """

    def __init__(self, network: SoftmaxNetwork, score: str, temperature: float = 1.0) -> None:
        super().__init__(network)
        self.network = network
        self.score = score
        self.temperature = temperature

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        return self._embedded(inputs)[0]

    def scores(self, inputs: Any) -> dict[str, Tensor]:
        """Every score (N,), by name; "own" is the chosen one."""
        parts = map_batches(lambda batch: self._embedded(batch.inputs)[1], inputs, self.module)
        every = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return {"own": every[self.score], "1/kappa": kappa_of(every[self.score]).reciprocal(), **every}

    def _embedded(self, inputs: Any) -> tuple[StochasticEmbedding, dict[str, Tensor]]:
        u, logits, further = self.network.embed(inputs)
        every = {**scores(logits / self.temperature), **further}
        point, own = unit_rows(u), every[self.score]
        return StochasticEmbedding(point, point, kappa_of(own), own), every

    def settings(self) -> dict[str, Any]:
        return {"temperature": self.temperature}
