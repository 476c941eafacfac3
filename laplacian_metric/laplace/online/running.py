"""What online LAM remembers of the batches: running averages of curvature, gradient, loss and lengths; all pairs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from hessians.checks import CurvatureWarning
from hessians.pairs import Population
from laplacian_metric.laplace.fit import Fitted
from laplacian_metric.laplace.layer import DiagonalCurvature

NUMBERS = ("loss", "square", "positives", "negatives")


class Running:
    """A running curvature (Z, H') over the batches, unclamped; gradient, loss value and squared lengths beside it.

    Args:
        like: a tensor of the curvature's shape, dtype and device.
        share: a, the new batch's.
        summed: whether a batch is added as it is (H <- (1-a) H + H_batch) instead of with its share.
        start: what the curvature starts at; None is nothing, for which an average is then corrected.

    Example:
        >>> running = Running(torch.zeros(1, 1), share=0.25)
        >>> for value in (2.0, 4.0):
        ...     running.add(torch.full((1, 1), value), torch.zeros(1, 1), 0.0, 1.0, (1, 1))
        >>> round(float(running.mean_curvature()), 4)  # (3/4 * 2 + 4)/(3/4 + 1)
        3.1429
    """

    def __init__(self, like: Tensor, share: float, summed: bool = False, start: float | None = None) -> None:
        self.share = share
        self.summed = summed
        self.start = start
        self.corrected = not summed and start is None
        self.curvature = torch.full_like(like, start or 0.0, requires_grad=False)
        self.gradient = torch.zeros_like(like, requires_grad=False)
        self.loss = 0.0
        self.square = 0.0
        self.positives = 0.0
        self.negatives = 0.0
        self.steps = 0

    def population(self, positives: float, negatives: float) -> Population:
        """The mean counts of pairs of a batch, with this one: what its curvature is to be divided by.

        Dividing each batch by its own counts would average averages, in which a pair of a small batch weighs more
        than a pair of a large one. The wanted ratio is that of two means, summed curvature over counts. Divided by
        the mean counts, the summed curvatures are averaged, and their mean is over the mean counts in the end. The
        counts are a matter of the loader, not of the weights: none is outdated, and their mean is over all batches.
        A type of which there has been no pair yet contributes nothing whatever it is divided by.
        """
        steps = self.steps + 1
        return (self.positives + positives) / steps or 1.0, (self.negatives + negatives) / steps or 1.0

    def add(
        self, curvature: Tensor, gradient: Tensor, loss: float, square: float, counts: tuple[float, float]
    ) -> None:
        """Take in a batch; ``square`` is the mean of |u|^2 over its images."""
        self.curvature.mul_(1 - self.share).add_(curvature, alpha=1.0 if self.summed else self.share)
        self.gradient.mul_(1 - self.share).add_(gradient, alpha=self.share)
        self.loss += self.share * (loss - self.loss)
        self.square += self.share * (square - self.square)
        self.positives += counts[0]
        self.negatives += counts[1]
        self.steps += 1

    @property
    def weight(self) -> float:
        """1 - (1-a)^t, how much of a running average that began at 0 is there."""
        return -math.expm1(self.steps * math.log1p(-self.share)) if self.share < 1 else float(self.steps > 0)

    @property
    def factor(self) -> float:
        """What the curvature is multiplied with before it is used."""
        return 1 / self.weight if self.corrected and self.steps else 1.0

    def mean_curvature(self) -> Tensor:
        """(Z, H'), unclamped."""
        return self.curvature * self.factor

    def mean_gradient(self) -> Tensor:
        """(Z, H')."""
        return self.gradient / self.weight

    def mean_loss(self) -> float:
        """Of the losses that were trained on."""
        return self.loss / self.weight

    def length(self) -> float:
        """The root of the mean |u|^2 of the images that were trained on."""
        return math.sqrt(self.square / self.weight)

    def warn_about_pairs(self) -> None:
        """Say so where no batch had a pair of one type."""
        for kind, count in (("positive", self.positives), ("negative", self.negatives)):
            if not count:
                warnings.warn(
                    f"no batch had a {kind} pair: the curvature knows nothing of such pairs. Draw batches with "
                    "several images of several classes",
                    CurvatureWarning,
                    stacklevel=3,
                )

    def fitted(self, num_images: int, bias_is_random: bool, fingerprint: str) -> Fitted:
        """What a LAM is made of: the curvature corrected and clamped, the rest averaged, all pairs seen."""
        return Fitted(
            curvature=DiagonalCurvature(self.mean_curvature()),
            num_images=num_images,
            num_positives=self.positives,
            num_negatives=self.negatives,
            num_batches=self.steps,
            loss_value=self.mean_loss(),
            gradient=self.mean_gradient(),
            bias_is_random=bias_is_random,
            fingerprint=fingerprint,
            length=self.length(),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of the averages and all counters, numbers in float64, from which `load` goes on.

        Example:
            >>> running = Running(torch.zeros(1, 1), share=0.5)
            >>> running.add(torch.ones(1, 1), torch.zeros(1, 1), 2.0, 9.0, (1, 3))
            >>> again = Running(torch.zeros(1, 1), share=0.5)
            >>> again.load(running.tensors())
            >>> again.mean_curvature(), again.mean_loss(), again.length(), again.steps
            (tensor([[1.]]), 2.0, 3.0, 1)
        """
        return {
            "curvature": self.curvature.clone(),
            "gradient": self.gradient.clone(),
            **{name: torch.tensor(getattr(self, name), dtype=torch.float64) for name in NUMBERS},
            "steps": torch.tensor(self.steps),
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `tensors`; one of another head is refused, and nothing is changed then."""
        own = {name: tensor.shape for name, tensor in self.tensors().items()}
        stored = {name: tensor.shape for name, tensor in state.items()}
        if own != stored:
            raise ValueError(
                f"the state has {stored}, {own} is needed: it is not that of an online posterior of this head"
            )
        for name in ("curvature", "gradient"):
            getattr(self, name).copy_(state[name])
        for name in NUMBERS:
            setattr(self, name, float(state[name]))
        self.steps = int(state["steps"])
