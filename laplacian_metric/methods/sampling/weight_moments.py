"""The moments of weights along the path of training, and draws from the Gaussian that has them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from hessians.checks import widest_dtype


class WeightMoments:
    """Mean and variance (P,) of snapshots, and the last ``rank`` deviations (K, P), each from the mean at its time.

    The sums are in float64 and of deviations (Welford), so that weights that hardly move keep their digits.

    Example:
        >>> moments = WeightMoments(torch.zeros(2), rank=2)
        >>> for weights in ([1.0, 0.0], [3.0, 0.0]):
        ...     moments.add(torch.tensor(weights))
        >>> moments.mean.tolist(), moments.variance.tolist(), moments.deviations.tolist()
        ([2.0, 0.0], [1.0, 0.0], [[0.0, 0.0], [1.0, 0.0]])
    """

    def __init__(self, like: Tensor, rank: int) -> None:
        wide = widest_dtype(like.device)
        self.rank = rank
        self.count = 0
        self.mean = torch.zeros_like(like, dtype=wide)
        self.squares = torch.zeros_like(like, dtype=wide)
        self.deviations = like.new_zeros(0, len(like))

    @property
    def variance(self) -> Tensor:
        """The average squared distance from the mean, (P,)."""
        return self.squares / max(1, self.count)

    def add(self, weights: Tensor) -> None:
        """Take in one snapshot (P,)."""
        if not bool(weights.isfinite().all()):
            raise FloatingPointError("the weights are not finite: lower the learning rate")
        self.count += 1
        before = weights.to(self.mean) - self.mean
        self.mean = self.mean + before / self.count
        after = weights.to(self.mean) - self.mean
        self.squares = self.squares + before.square() * ((self.count - 1) / self.count)
        columns = torch.cat([self.deviations, after.to(self.deviations)[None]])
        self.deviations = columns[max(0, len(columns) - self.rank) :].clone()

    def draw(self, generator: torch.Generator, scale: float = 1.0) -> Tensor:
        """Weights (P,) from the Gaussian of these moments."""
        z = torch.randn(len(self.mean), generator=generator, device=generator.device).to(self.mean)
        spread = self.variance.sqrt() * z
        if self.rank:
            columns = self.deviations
            z = torch.randn(len(columns), generator=generator, device=generator.device).to(columns)
            low_rank = (z @ columns).to(spread) / math.sqrt(max(1, len(columns) - 1))
            spread = (spread + low_rank) / math.sqrt(2)
        return self.mean + math.sqrt(scale) * spread

    def state(self) -> dict[str, Tensor]:
        return {
            "count": torch.tensor(self.count),
            "mean": self.mean,
            "squares": self.squares,
            "deviations": self.deviations,
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        if state["mean"].shape != self.mean.shape:
            raise ValueError(
                f"the checkpoint holds the moments of {len(state['mean'])} weights, {len(self.mean)} are trained here: "
                "it is of another encoder, or of another choice of weights"
            )
        self.count = int(state["count"])
        self.mean, self.squares = state["mean"].to(self.mean), state["squares"].to(self.squares)
        kept = state["deviations"].to(self.deviations)
        self.deviations = kept[max(0, len(kept) - self.rank) :].clone()
