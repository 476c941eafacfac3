"""The triplet loss of points, and of points that have a noise: what the Bayesian triplet loss is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

from torch import Tensor
from torch.nn import functional as F

from hessians import Pairs
from hessians.pair_loss import PairBlocks, PairLoss
from hessians.pairs import LabelPairs
from laplacian_metric.methods.pairs.triplet_mining import Triplets, batch_triplets, pairwise


def residuals(squared: Tensor, triplets: Triplets, margin: float) -> Tensor:
    """max(0, |a - p|^2 - |a - n|^2 + margin), (T,), from squared distances (N, N).

    Example:
        >>> import torch
        >>> triplets = Triplets(*torch.tensor([[0], [1], [2]]))
        >>> residuals(pairwise(torch.tensor([[0.0], [1.0], [1.5]])), triplets, margin=2.0)
        tensor([0.7500])
    """
    anchor, positive, negative = triplets
    return (squared[anchor, positive] - squared[anchor, negative] + margin).clamp(min=0)


def triplet_hinge(squared: Tensor, triplets: Triplets, margin: float) -> Tensor:
    """The mean of the residuals; 0, with gradients that are 0, where there is no triplet."""
    if not len(triplets.anchor):
        return squared.sum() * 0
    return residuals(squared, triplets, margin).mean()


def triplet_regression(squared: Tensor, noise: Tensor, triplets: Triplets, margin: float) -> Tensor:
    """The residual r as a regression onto 0 whose noise is learned: the mean of r^2/(2 s) + log(s)/2.

    s is the mean of the noises of the three images. With given residuals it is least for s = r^2.

    Args:
        squared: (N, N).
        noise: sigma^2 of every image, (N,), positive.
        triplets: positions in the batch.
        margin: of the residuals.

    Example:
        >>> import torch
        >>> squared = pairwise(torch.tensor([[0.0], [2.0], [1.0]]))
        >>> triplets = Triplets(*torch.tensor([[0], [1], [2]]))  # r = 4 - 1 + 1
        >>> float(triplet_regression(squared, torch.ones(3), triplets, margin=1.0))
        8.0
    """
    if not len(triplets.anchor):
        return (squared.sum() + noise.sum()) * 0
    s = (noise[triplets.anchor] + noise[triplets.positive] + noise[triplets.negative]) / 3
    return (residuals(squared, triplets, margin).square() / (2 * s) + s.log() / 2).mean()


@dataclass(frozen=True)
class TripletLoss(PairLoss):
    """The triplet loss where a method takes a loss over pairs, as MC dropout and the deterministic network do.

    Its triplets are the hard ones of the batch, see `batch_triplets`: of the labels of all pairs, since a choice of
    pairs says nothing of triplets. There is no curvature of it.

    Args:
        margin: between the squared distances of unit embeddings.
        negatives: how many are drawn for every anchor and positive, by torch's global generator.

    Example:
        >>> import torch
        >>> u = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> float(TripletLoss(margin=0.25)(u, Pairs.from_labels([0, 0, 1])))  # of 2 - 0 + 1/4 and 2 - 2 + 1/4
        1.25
    """

    margin: float = 0.1
    negatives: int = 5
    # Of pair losses; there is nothing to be weighed here.
    negative_weight: float = 0.5

    def __post_init__(self) -> None:
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise ValueError(f"margin is {self.margin}, a number from 0 on is needed")
        if self.negatives < 1:
            raise ValueError(f"negatives is {self.negatives}, at least 1 is needed")

    def __call__(self, u: Tensor, pairs: Pairs) -> Tensor:
        if not isinstance(pairs, LabelPairs):
            raise ValueError(
                f"the triplet loss needs the labels of a batch, and {type(pairs).__name__} has none: leave out the "
                "miner"
            )
        squared = pairwise(F.normalize(self.checked(u, pairs)))
        triplets = batch_triplets(squared, pairs.labels, self.margin, self.negatives)
        return triplet_hinge(squared, triplets, self.margin)

    def pair_values(self, first: Tensor, second: Tensor, positive: bool) -> Tensor:
        return _refuse()

    def pair_blocks(self, first: Tensor, second: Tensor, positive: bool) -> PairBlocks:
        return _refuse()


def _refuse() -> NoReturn:
    raise NotImplementedError(
        "the triplet loss is over triplets and has no curvature by pairs: give a posterior hessians.ContrastiveLoss"
    )
