"""The curvature of the last layer, and the same by automatic differentiation for a few images."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import jacrev

from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal

APPROXIMATIONS = ("fixed", "positive")


@dataclass(frozen=True, eq=False)
class Curvature:
    """The diagonal of one approximation over all pairs, unclamped.

    Attributes:
        approximation: "fixed" or "positive".
        diagonal: weight and bias of the last layer in one row.
        seconds: of its computation.
        deviation: the largest deviation from automatic differentiation for a few images, relative to the largest entry.
    """

    approximation: str
    diagonal: Tensor
    seconds: float
    deviation: float


def curvatures(
    features: Tensor, labels: Tensor, head: nn.Linear, loss: ContrastiveLoss, num: int
) -> list[Curvature]:
    """Return the curvature of every approximation.

    Args:
        features: (N, H).
        labels: (N,).
        head: the trained last layer.
        loss: the loss that it was trained with; the curvature is that of all pairs.
        num: how many images are compared with automatic differentiation.
    """
    loss = ContrastiveLoss(margin=loss.margin)  # an average over all negative pairs
    few = torch.linspace(0, len(labels) - 1, num).long()
    results = []
    for approximation in APPROXIMATIONS:
        begin = time.perf_counter()
        diagonal = _diagonal(features, labels, head, loss, approximation)
        seconds = time.perf_counter() - begin
        head64 = nn.Linear(head.in_features, head.out_features).double()
        head64.load_state_dict(head.state_dict())
        rows, classes = features[few].double(), labels[few]
        expected = by_autograd(rows, classes, head64, loss, approximation)
        gap = (_diagonal(rows, classes, head64, loss, approximation) - expected).abs().max()
        results.append(Curvature(approximation, diagonal, seconds, float(gap / expected.abs().max())))
    return results


def _diagonal(
    features: Tensor, labels: Tensor, head: nn.Linear, loss: ContrastiveLoss, approximation: str
) -> Tensor:
    weight, bias = last_layer_ggn_diagonal(
        features,
        head.weight.detach(),
        head.bias.detach(),
        Pairs.from_labels(labels),
        loss,
        approximation=approximation,
    )
    assert bias is not None
    return torch.cat([weight, bias[:, None]], dim=1).flatten()


def by_autograd(
    features: Tensor, labels: Tensor, head: nn.Linear, loss: ContrastiveLoss, approximation: str
) -> Tensor:
    """Return the diagonal of J^T M J, M the Hessian of the loss in the raw embeddings by automatic differentiation.

    "fixed" keeps the blocks of M in which both images are the same; "positive" is the Hessian of the loss of the
    positive pairs alone.
    """
    pairs = Pairs.from_labels(labels)
    if approximation == "positive":
        first, second = torch.triu_indices(len(labels), len(labels), offset=1)
        same = labels[first] == labels[second]
        none = torch.zeros(0, dtype=torch.int64)
        pairs = Pairs.from_indices((first[same], second[same], none, none), len(labels))
    u = head(features).detach()
    middle = jacrev(jacrev(lambda raw: loss(raw, pairs)))(u)  # (N, Z, N, Z)
    if approximation == "fixed":
        middle = middle * torch.eye(len(labels), dtype=u.dtype)[:, None, :, None]
    inputs = torch.cat(
        [features, torch.ones(len(features), 1, dtype=u.dtype)], dim=1
    )  # the bias is a weight of 1
    return torch.einsum("nk,nzmz,mk->zk", inputs, middle, inputs).flatten()
