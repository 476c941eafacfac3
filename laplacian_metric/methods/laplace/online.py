"""A network trained together with the posterior over its last layer, as `OnlineLAM` does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from laplacian_metric.core.method import Embedder, FitData, Learner, Method, Setup, all_pairs, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.online import OnlineLAM
from laplacian_metric.laplace.online.batch import Miner
from laplacian_metric.laplace.options import OnlineOptions
from laplacian_metric.laplace.posthoc import LAM, NotFittedError
from laplacian_metric.methods.laplace.embedder import LAMEmbedder


@dataclass(frozen=True, kw_only=True)
class OnlineLaplace(OnlineOptions, Method):
    """Trains an encoder and keeps up a diagonal posterior over its last layer; see `OnlineLAM`.

    Options that are None are those of `OnlineLAM`: the posterior's prior precision, for one, then follows from the
    optimizer's weight decay.

    Example:
        >>> OnlineLaplace(memory=0.01).samples
        1
    """

    name: ClassVar[str] = "online-laplace"

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return OnlineLaplaceLearner(only(encoders, self.name), self, setup)

    def online(
        self,
        encoder: Encoder,
        optimizer: torch.optim.Optimizer,
        setup: Setup,
        generator: torch.Generator | None = None,
    ) -> OnlineLAM:
        """Return the `OnlineLAM` of these options."""
        return OnlineLAM(encoder, optimizer, setup.loss, setup.num_images, **self.options(setup, generator))

    def options(self, setup: Setup, generator: torch.Generator | None) -> dict[str, Any]:
        """Return the options of `OnlineLAM`; those that are None are left to it."""
        own = {field.name: getattr(self, field.name) for field in fields(OnlineOptions)}
        given = {name: value for name, value in own.items() if value is not None}
        return {**given, "miner": miner_of(setup), "generator": generator}


def miner_of(setup: Setup) -> Miner | None:
    """Return what chooses the pairs that are trained on; None where all are.

    Example:
        >>> miner_of(Setup(loss=None, num_images=2)) is None
        True
    """
    return None if setup.pairs is all_pairs else setup.pairs


class OnlineLaplaceLearner(Learner):
    """An `OnlineLAM` once the training has begun, and its running state before that."""

    def __init__(self, encoder: Encoder, method: OnlineLaplace, setup: Setup) -> None:
        super().__init__(encoder, encoder)
        self.method = method
        self.setup = setup
        self.online: OnlineLAM | None = None
        self._kept: dict[str, Tensor] = {}

    def begin(self, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
        super().begin(optimizer, generator)
        online = self.method.online(self.encoder, optimizer, self.setup, generator)
        if self._kept:
            online.load_running_state(self._kept)
        self.online, self._kept = online, {}

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        if self.online is None:
            raise RuntimeError("the training has not begun: call begin(optimizer, generator) first")
        return self.online.loss(inputs, labels)

    def step(self) -> None:
        if self.online is not None:
            self.online.average_gradients()
        super().step()

    def state(self) -> dict[str, Tensor]:
        return dict(self._kept) if self.online is None else self.online.running_state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        # Without an optimizer one that never steps shows whether the state fits.
        online = self._unbegun() if self.online is None else self.online
        online.load_running_state(state)
        if self.online is None:
            self._kept = dict(state)

    def _unbegun(self) -> OnlineLAM:
        """With what has been restored, for a posterior without any further step."""
        still = torch.optim.SGD([self.encoder.head.weight], lr=0.0, weight_decay=self.setup.weight_decay)
        online = self.method.online(self.encoder, still, self.setup)
        if self._kept:
            online.load_running_state(self._kept)
        return online

    def posterior(self) -> LAM:
        """The posterior over the last layer as it is now."""
        online = self._unbegun() if self.online is None else self.online
        if not online.steps:
            raise NotFittedError("no step has been taken yet: train, or restore the state of a training")
        return online.posterior()

    def embedder(self, data: FitData) -> Embedder:
        return LAMEmbedder(self.posterior())
