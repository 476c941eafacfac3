"""What a risk head is trained to predict well: the share of wrong neighbours, or a loss, or only their order."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric.core.arguments import not_negative

RiskLoss = Literal["bce", "l2", "ranking"]
MARGIN = 0.1


def risk_loss(kind: RiskLoss, logits: Tensor, target: Tensor, *, is_share: bool) -> Tensor:
    """Return the mean loss of predicted risks, a scalar; the target gets no gradient.

    Args:
        kind: "bce", "l2" or "ranking".
        logits: (B,), what the head returns before its link.
        target: (B,), from 0 on.
        is_share: whether the target is a share, whose link is the sigmoid, rather than a loss, whose link is softplus.

    Example:
        >>> round(float(risk_loss("bce", torch.zeros(2), torch.tensor([0.0, 1.0]), is_share=True)), 4)
        0.6931
    """
    target = target.detach().to(logits)
    if kind == "bce":
        if not is_share:
            raise ValueError(
                'loss is "bce", which takes shares from 0 to 1: use "l2" or "ranking" for losses'
            )
        return F.binary_cross_entropy_with_logits(logits, target)
    risk = link(logits, is_share=is_share)
    return F.mse_loss(risk, target) if kind == "l2" else ranking_loss(risk, target)


def link(logits: Tensor, *, is_share: bool) -> Tensor:
    """Return the risk (N,) of logits (N,): their sigmoid for shares, their softplus for losses.

    Example:
        >>> link(torch.zeros(1), is_share=True), link(torch.zeros(1), is_share=False)
        (tensor([0.5000]), tensor([0.6931]))
    """
    return torch.sigmoid(logits) if is_share else F.softplus(logits)


def ranking_loss(risk: Tensor, target: Tensor, margin: float = MARGIN) -> Tensor:
    """Return the mean of max(0, margin - sign(L1 - L2)(u1 - u2)) over all pairs of a batch that are no ties.

    The riskier item of a pair is pushed up, the other one down (the printed equation of the dissertation has the sign
    reversed). A tie of the targets says nothing of the order and has no gradient.

    Args:
        risk: u (B,).
        target: L (B,).
        margin: by which the riskier item is to be ahead.

    Example:
        >>> risk = torch.tensor([0.5, 0.5], requires_grad=True)
        >>> ranking_loss(risk, torch.tensor([2.0, 1.0])).backward()
        >>> risk.grad  # a step against it raises the risk of the first item, whose loss is the greater one
        tensor([-1.,  1.])
    """
    not_negative(margin=margin)
    first, second = torch.triu_indices(len(risk), len(risk), offset=1, device=risk.device)
    sign = torch.sign(target[first] - target[second])
    decided = sign != 0
    hinge = (margin - sign * (risk[first] - risk[second])).clamp(min=0)[decided]
    return hinge.sum() / max(1, int(decided.sum()))
