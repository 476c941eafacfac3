"""Online LAM with the errors of the published code, each of them a switch, and the method of that name with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, distributed

from experiments.published.triplets import random_triplets
from hessians import Pairs
from hessians.pair_loss import PairLoss
from hessians.pairs import Population
from laplacian_metric.core.method import Learner, Setup
from laplacian_metric.core.parallel import reducer
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.online import OnlineLAM
from laplacian_metric.laplace.online.batch import Miner
from laplacian_metric.laplace.online.running import Running
from laplacian_metric.laplace.online.state import described
from laplacian_metric.laplace.online.trainer import DEFAULT_SHARE
from laplacian_metric.methods.laplace.online import OnlineLaplace, miner_of

PUBLISHED_TRIPLETS = 5000
PUBLISHED_SHARE = 1e-3
PAPER_SHARE = 1e-4

_CHOICES = {"scale": ("images", "squared"), "memory": ("average", "sum"), "start": ("prior", "images")}


@dataclass(frozen=True)
class Switches:
    """The defaults are the corrected method; `PUBLISHED` has every switch the other way.

    Attributes:
        scale: what n_effective is by default: "images", their number N, or "squared", N^2.
        relu_per_batch: whether negative entries are set to 0 in every batch, rather than once when they are used.
        mined: over how many random triplets of a batch, at most, loss and curvature are taken; None: over all pairs.
        memory: "average", H <- (1-a) H + a H_batch, or "sum", H <- (1-a) H + H_batch, which grows to E[H]/a.
        start: the precision that H starts at: None for nothing at all (an average is then corrected for its short
            past), "prior" for the prior precision, "images" for N, or a number. The prior is added all the same.

    Example:
        >>> Switches(memory="sum").start is None, PUBLISHED.start
        (True, 'images')
    """

    scale: str = "images"
    relu_per_batch: bool = False
    mined: int | None = None
    memory: str = "average"
    start: str | float | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if name == "start" and (value is None or isinstance(value, int | float)):
                continue
            if value not in choices:
                raise ValueError(
                    f"{name} is {value!r}, one of {', '.join(map(repr, choices))} is needed"
                    + (", or None or a number" if name == "start" else "")
                )
        if isinstance(self.start, int | float) and not (math.isfinite(self.start) and self.start >= 0):
            raise ValueError(f"start is {self.start}, a precision that is not negative is needed")
        if self.mined is not None and self.mined < 1:
            raise ValueError(f"mined is {self.mined}, at least 1 triplet is needed; None takes all pairs")

    def precision_at_start(self, prior_precision: float, num_images: int) -> float | None:
        """The number that ``start`` stands for."""
        precisions = {"prior": prior_precision, "images": float(num_images)}
        return precisions[self.start] if isinstance(self.start, str) else self.start


PUBLISHED = Switches(
    scale="squared", relu_per_batch=True, mined=PUBLISHED_TRIPLETS, memory="sum", start="images"
)

PAPER = Switches(memory="sum", start="prior")


DEFECTS = tuple(field.name for field in fields(Switches))


class PublishedOnlineLAM(OnlineLAM):
    """`OnlineLAM` with switches; with the default ones it is `OnlineLAM` itself, and `as_published` sets all of them.

    Args:
        encoder, optimizer, loss, num_images: as of `OnlineLAM`, like all others of its options.
        switches: what is done as in the published code.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> encoder = Encoder.with_head(torch.nn.Identity(), 4, dim=3, init="random", seed=0)
        >>> optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-2)
        >>> PublishedOnlineLAM.as_published(encoder, optimizer, ContrastiveLoss(margin=0.7), 40).n_effective
        1600.0
    """

    def __init__(
        self,
        encoder: Encoder,
        optimizer: torch.optim.Optimizer,
        loss: PairLoss,
        num_images: int | None = None,
        *,
        switches: Switches | None = None,
        memory: float | str = DEFAULT_SHARE,
        n_effective: float | None = None,
        miner: Miner | None = None,
        **options: Any,
    ) -> None:
        if memory == "paper" and switches is not None:
            raise ValueError(
                'memory="paper" sets the switches itself: give a number and switches, or "paper" alone'
            )
        self.switches = switches or (PAPER if memory == "paper" else Switches())
        if miner is not None and self.switches.mined is not None:
            raise ValueError("a miner is given and switches.mined too: both say which pairs are trained on")
        if n_effective is None and num_images and self.switches.scale == "squared":
            n_effective = float(num_images) ** 2
        options = {**options, "memory": memory, "n_effective": n_effective, "miner": miner}
        super().__init__(encoder, optimizer, loss, num_images, **options)
        start = self.switches.precision_at_start(self.prior_precision, self.num_images)
        kind = _ClampedRunning if self.switches.relu_per_batch else Running
        self._running = kind(
            torch.empty_like(self._running.curvature),
            self.share,
            self.switches.memory == "sum",
            None if start is None else start / self._lam.scale,
        )

    @classmethod
    def as_published(
        cls,
        encoder: Encoder,
        optimizer: torch.optim.Optimizer,
        loss: PairLoss,
        num_images: int,
        **others: Any,
    ) -> PublishedOnlineLAM:
        """As the published code does it, as far as the switches go; ``others`` are options of the class.

        The precision starts at N, keeps 0.999 of itself in a step, and grows by N^2 times the mean curvature of at most
        5,000 random triplets, on which the batch is trained too, negative entries set to 0. The prior precision is 1.
        """
        published = {"memory": PUBLISHED_SHARE, "warmup": 0, "prior_precision": 1.0, "switches": PUBLISHED}
        return cls(encoder, optimizer, loss, num_images, **{**published, **others})

    def settings(self) -> dict[str, Any]:
        """Return what a run has to have in common with the state that it resumes from, the switches with it."""
        return {**super().settings(), **described("switches", self.switches)}

    def _chosen_pairs(self, u: Tensor, pairs: Pairs, labels: Tensor | None) -> tuple[Pairs, Pairs]:
        if self.switches.mined is None:
            return super()._chosen_pairs(u, pairs, labels)
        if labels is None:
            raise TypeError("labels are pairs, but triplets are chosen by labels: pass the labels (N,)")
        # Each process draws its own, and all take the same out of the generator, so that they go on drawing alike.
        rank = 0 if reducer() is None else distributed.get_rank()
        device = self.generator.device
        seed = int(torch.randint(2**48, (), generator=self.generator, device=device)) + rank
        own = torch.Generator(labels.device).manual_seed(seed)
        mined = Pairs.from_indices(random_triplets(labels, self.switches.mined, own), len(u))
        return mined, mined

    def _population(self, pairs: Pairs, counts: Population) -> Population:
        """Return what the batch's curvature is divided by: mined pairs have no population but themselves."""
        if self.switches.mined is None:
            return super()._population(pairs, counts)
        return pairs.num_positives or 1.0, pairs.num_negatives or 1.0

    def _over_processes(self, curvature: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums over processes; mined pairs are divided by their own number in each, and so averaged."""
        curvature, gradient = super()._over_processes(curvature, gradient)
        if self.switches.mined is not None and reducer() is not None:
            curvature = curvature / distributed.get_world_size()
        return curvature, gradient


class _ClampedRunning(Running):
    """A running curvature to which no batch contributes a negative entry."""

    def add(
        self, curvature: Tensor, gradient: Tensor, loss: float, square: float, counts: tuple[float, float]
    ) -> None:
        super().add(curvature.clamp(min=0), gradient, loss, square, counts)


@pydantic_dataclass(frozen=True, kw_only=True)
class PublishedOnlineLaplace(OnlineLaplace):
    """The method "online-laplace" with the errors of the published code.

    Attributes:
        preset: "default", or "published": as the published code does it, see `PublishedOnlineLAM.as_published`.
        defects: single things that are done as in the published code, with everything else as it should be: those of
            "scale", "relu_per_batch", "mined", "memory" and "start"; see `Switches`.

    Example:
        >>> PublishedOnlineLaplace(defects=("mined",)).preset
        'default'
    """

    preset: Literal["default", "published"] = "default"
    defects: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for defect in self.defects:
            if defect not in DEFECTS:
                raise ValueError(
                    f"defects has {defect!r}, of {', '.join(map(repr, DEFECTS))} any are possible"
                )
        if self.defects and (self.preset == "published" or self.memory == "paper"):
            raise ValueError(
                f"defects are {list(self.defects)}, but the preset or the memory brings its own: leave one of both out"
            )
        if self.preset == "published" and self.memory == "paper":
            raise ValueError(
                'memory="paper" and preset="published" are two things: take one of them, or give memory a number'
            )

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        if (self.preset == "published" or "mined" in self.defects) and miner_of(setup) is not None:
            raise ValueError(
                "random triplets as in the published code are trained on, but other pairs are asked for: leave the "
                "pairs at all of the batch"
            )
        return super().learner(encoders, setup)

    def online(
        self,
        encoder: Encoder,
        optimizer: torch.optim.Optimizer,
        setup: Setup,
        generator: torch.Generator | None = None,
    ) -> OnlineLAM:
        if self.preset == "default" and not self.defects:
            return super().online(encoder, optimizer, setup, generator)
        options = self.options(setup, generator)
        if self.preset == "published":
            return PublishedOnlineLAM.as_published(
                encoder, optimizer, setup.loss, setup.num_images, **options
            )
        switches = Switches(**{name: getattr(PUBLISHED, name) for name in self.defects})
        return PublishedOnlineLAM(
            encoder, optimizer, setup.loss, setup.num_images, switches=switches, **options
        )
