"""A network trained together with the posterior over its last layer, as `OnlineLAM` does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from hessians.approximations import Approximation
from laplacian_metric.core.method import Embedder, FitData, Learner, Method, Setup, all_pairs, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.confidence import MatchConfidence
from laplacian_metric.laplace.fit_inputs import positive
from laplacian_metric.laplace.online import OnlineLAM
from laplacian_metric.laplace.online.batch import Miner
from laplacian_metric.laplace.online.options import at_least, checked_memory
from laplacian_metric.laplace.online.switches import PUBLISHED, Switches
from laplacian_metric.laplace.posthoc import LAM, NotFittedError
from laplacian_metric.methods.laplace.embedder import LAMEmbedder
from laplacian_metric.methods.laplace.frozen_features import features_of

PRESETS = ("default", "published")
SCORES = ("1/kappa", "confidence")
DEFECTS = tuple(field.name for field in fields(Switches))


@dataclass(frozen=True)
class OnlineLaplace(Method):
    """Trains an encoder and keeps up a diagonal posterior over its last layer; see `OnlineLAM`.

    The posterior's prior precision follows from the optimizer's weight decay where it is not given.

    Attributes:
        approximation: what is kept of the loss's Hessian.
        memory: a new batch's share in the running curvature, or "paper"; None is what the preset has.
        warmup: so many steps are taken without a draw; None is what the preset has.
        temperature: divides n_effective.
        n_effective: how many independent observations the loss's average stands for; None is what the preset has.
        prior_precision: of the weights; None is what the preset has.
        preset: "default", or "published": as the published code does it, see `OnlineLAM.as_published`.
        defects: single things that are done as in the published code, with everything else as it should be: those of
            "scale", "relu_per_batch", "mined", "memory" and "start"; see `Switches`.
        samples: how many draws a training step has.
        score: what the uncertainty is: 1/kappa, or 1 - the probability that a match can be trusted, calibrated on
            validation images.

    Example:
        >>> OnlineLaplace(memory=0.01).preset
        'default'
    """

    name: ClassVar[str] = "online-laplace"

    approximation: Approximation = Approximation.FIXED
    memory: float | Literal["paper"] | None = None
    warmup: int | None = None
    temperature: float = 1.0
    n_effective: float | None = None
    prior_precision: float | None = None
    preset: Literal["default", "published"] = "default"
    defects: tuple[str, ...] = ()
    samples: int = 1
    score: Literal["1/kappa", "confidence"] = "1/kappa"

    def __post_init__(self) -> None:
        object.__setattr__(self, "approximation", Approximation.parse(self.approximation))
        for name, value, words in (("preset", self.preset, PRESETS), ("score", self.score, SCORES)):
            if value not in words:
                raise ValueError(f"{name} is {value!r}, one of {', '.join(map(repr, words))} is needed")
        for defect in self.defects:
            if defect not in DEFECTS:
                raise ValueError(
                    f"defects has {defect!r}, of {', '.join(map(repr, DEFECTS))} any are possible"
                )
        if self.defects and (self.preset == "published" or self.memory == "paper"):
            raise ValueError(
                f"defects are {list(self.defects)}, but the preset or the memory brings its own: leave one of both out"
            )
        if self.memory is not None:
            checked_memory(self.memory, None)
        if self.preset == "published" and self.memory == "paper":
            raise ValueError(
                'memory="paper" and preset="published" are two things: take one of them, or give memory a number'
            )
        if self.warmup is not None:
            at_least("warmup", self.warmup, 0)
        at_least("samples", self.samples, 1)
        for name in ("temperature", "n_effective", "prior_precision"):
            positive(name, getattr(self, name))

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return OnlineLaplaceLearner(only(encoders, self.name), self, setup)

    def online(
        self,
        encoder: Encoder,
        optimizer: torch.optim.Optimizer,
        setup: Setup,
        generator: torch.Generator | None = None,
    ) -> OnlineLAM:
        """The `OnlineLAM` of these options."""
        options: dict[str, Any] = {
            "approximation": self.approximation,
            "temperature": self.temperature,
            "samples": self.samples,
            "miner": _miner(setup),
            "generator": generator,
        }
        own = ("memory", "warmup", "n_effective", "prior_precision")
        options |= {name: getattr(self, name) for name in own if getattr(self, name) is not None}
        if self.defects:
            options["switches"] = Switches(**{name: getattr(PUBLISHED, name) for name in self.defects})
        make = OnlineLAM if self.preset == "default" else OnlineLAM.as_published
        return make(encoder, optimizer, setup.loss, setup.num_images, **options)


def _miner(setup: Setup) -> Miner | None:
    """The pairs that are trained on; None where all are."""
    return None if setup.pairs is all_pairs else setup.pairs


class OnlineLaplaceLearner(Learner):
    """An `OnlineLAM` once the training has begun, and its running state before that."""

    def __init__(self, encoder: Encoder, method: OnlineLaplace, setup: Setup) -> None:
        super().__init__(encoder)
        if (method.preset == "published" or "mined" in method.defects) and _miner(setup) is not None:
            raise ValueError(
                "random triplets as in the published code are trained on, but other pairs are asked for: leave the "
                "pairs at all of the batch"
            )
        self.encoder = encoder
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

    def points(self, inputs: Any) -> Tensor:
        return self.encoder.raw(inputs)

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
        lam = self.posterior()
        if self.method.score == "confidence":
            train, validation = (
                features_of(self.encoder, loader, None if data.folder is None else data.folder / name)
                for name, loader in (("train", data.train), ("validation", data.validation))
            )
            lam.set_confidence(MatchConfidence.fit(lam.head, train, validation))
        return LAMEmbedder(lam)
