r"""InfoNCE of a matrix of log similarities: the softmax that contrastive losses of several families have in common.

For an image i, one of its class j and the candidates m, with a log similarity s,

    l_ij = -log( exp(s_ij) / (exp(s_ij) + sum_m exp(s_im)) ),

averaged over j, then over i. The candidates are the images of other classes ("others"), or all images but i and j
("all"). Where every image has one positive, as with two views, both are the same.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

NEGATIVES = ("others", "all")
Negatives = Literal["others", "all"]


def pair_masks(labels: Tensor, negatives: Negatives) -> tuple[Tensor, Tensor]:
    """Return which pairs (N, N) are positive, and which are candidates beside a positive one.

    Args:
        labels: (N,).
        negatives: "others" for the images of other classes, "all" for all other images.

    Example:
        >>> pair_masks(torch.tensor([0, 0, 1]), "others")[1].int().tolist()
        [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
    """
    if negatives not in NEGATIVES:
        raise ValueError(f"negatives is {negatives!r}, one of {', '.join(map(repr, NEGATIVES))} is needed")
    same, itself = labels[:, None] == labels, torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positive = same & ~itself
    candidates = ~itself if negatives == "all" else ~same
    if bool(positive.any()) and not bool((candidates.sum(1) > (negatives == "all")).any()):
        raise ValueError(
            f"labels has no negatives, all {len(labels)} images are of class {int(labels[0])}: a batch needs "
            + ("at least 3 images" if negatives == "all" else "images of at least 2 classes")
        )
    return positive, candidates


def info_nce(logits: Tensor, labels: Tensor, *, negatives: Negatives = "others") -> Tensor:
    """Return the mean -log of the fraction, see the module; 0 where the batch has no positive pair.

    Args:
        logits: s, (N, N).
        labels: (N,).
        negatives: which images a positive one has to be told from.

    Example:
        >>> logits = torch.tensor([[1.0, 0.8, 0.1], [0.8, 1.0, 0.3], [0.1, 0.3, 1.0]])
        >>> info_nce(logits, torch.tensor([0, 0, 1]))  # log(1 + exp(-0.7)), log(1 + exp(-0.5))
        tensor(0.4386)
    """
    if logits.ndim != 2 or labels.shape != logits.shape[-1:]:
        raise ValueError(
            f"labels has {labels.numel()} entries for {len(logits)} images of logits {tuple(logits.shape)}"
        )
    positive, candidates = pair_masks(labels, negatives)
    if not bool(positive.any()):
        return logits.sum() * 0
    against = logits.masked_fill(~candidates, -torch.inf).logsumexp(1, keepdim=True)
    log_fraction = logits - against if negatives == "all" else F.logsigmoid(logits - against)
    return -mean_of_chosen(log_fraction, positive)


def mean_of_chosen(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean over each row's chosen entries of values (N, N), averaged over the rows that have any.

    Example:
        >>> mean_of_chosen(torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[True, True], [False, False]]))
        tensor(2.)
    """
    counts = chosen.sum(1)
    sums = values.masked_fill(~chosen, 0).sum(1)
    return (sums[counts > 0] / counts[counts > 0]).mean()
