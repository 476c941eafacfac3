r"""Contrastive losses of von Mises-Fisher distributions, with the labels of a batch saying which images match.

For an image i, one of its class j and the candidates m, with a log similarity s,

    l_ij = -log( exp(s_ij) / (exp(s_ij) + sum_m exp(s_im)) ),

averaged over j, then over i. The candidates are the images of other classes ("others"), or all images but i and j
("all": what a draw from the batch would be, which the posterior of the positive one is about). The similarity is

- positivity: s = log h, the exact expected positivity (`vmf.log_positivity`); proper for any number of candidates;
- MCInfoNCE: s = log mean_kl exp(kpos z_i^k . z_j^l) over all pairs of draws, its Monte Carlo estimate;
- ELK: s = t log int p_i p_j, the expected likelihood kernel, which leaves kpos out.

Contrastive HIB is no softmax: -log p_ij - mean_m log(1 - p_im), with p the mean of sigmoid(a z_i^k . z_j^l + b).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import vmf
from laplacian_metric.core.info_nce import Negatives, info_nce, mean_of_chosen, pair_masks
from laplacian_metric.vmf.bessel import log_uniform_density, relative_log_normalizer

ENTRIES_AT_ONCE = 1 << 22


def positivity_info_nce(
    mean: Tensor, kappa: Tensor, labels: Tensor, *, kappa_pos: float, negatives: Negatives = "others"
) -> Tensor:
    """Return the cross-entropy of the exact posterior of the positive image: no draws, no bias.

    Args:
        mean: (N, Z), unit rows.
        kappa: (N,), positive.
        labels: (N,), integers.
        kappa_pos: how near images of a class are taken to be, the inverse of a temperature.
        negatives: which images a positive one has to be told from.

    Example:
        >>> mean, labels = torch.eye(3)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> sure, unsure = torch.full((4,), 1e4), torch.ones(4)
        >>> options = {"kappa_pos": 8.0}
        >>> positivity_info_nce(mean, sure, labels, **options) < positivity_info_nce(mean, unsure, labels, **options)
        tensor(True)
    """
    cosine = (F.normalize(mean.double()) @ F.normalize(mean.double()).T).clamp(-1, 1)
    log_h = vmf.log_positivity(cosine, kappa[:, None], kappa, kappa_pos, mean.shape[1])
    return info_nce(log_h, labels, negatives=negatives).to(mean.dtype)


def mc_info_nce(
    mean: Tensor,
    kappa: Tensor,
    labels: Tensor,
    *,
    kappa_pos: float,
    samples: int,
    negatives: Negatives = "others",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return MCInfoNCE with the ratio of expectations, each over all pairs of the draws of two images.

    Kirchhof et al. (2023) average the ratio, which asks for concentrations that are too large. Gradients flow to the
    means and, by implicit reparametrisation, to the concentrations. The logarithm of a mean of few draws is too small
    on average: the loss is biased upwards, the less the more draws there are. Concentrations can grow without
    bound, with few draws or a small ``kappa_pos``; `positivity_info_nce` computes the same loss without draws.

    Args:
        mean: (N, Z), unit rows.
        kappa: (N,), positive.
        labels: (N,), integers.
        kappa_pos: how near images of a class are taken to be, the inverse of a temperature.
        samples: how many draws of each image.
        negatives: which images a positive one has to be told from.
        generator: of the draws, on the device of the means.

    Example:
        >>> mean, labels = torch.eye(3)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> sure, unsure = torch.full((4,), 1e4), torch.ones(4)
        >>> options = {"kappa_pos": 8.0, "samples": 64}
        >>> mc_info_nce(mean, sure, labels, **options) < mc_info_nce(mean, unsure, labels, **options)
        tensor(True)
    """
    similar = kappa_pos * draw_cosines(mean, kappa, samples, generator)
    return info_nce(similar.logsumexp((2, 3)) - 2 * math.log(samples), labels, negatives=negatives)


def contrastive_hib(
    mean: Tensor,
    kappa: Tensor,
    labels: Tensor,
    *,
    log_scale: Tensor,
    offset: Tensor,
    samples: int,
    negatives: Negatives = "others",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return -log p of the positive pairs minus the mean log(1 - p) of the negative ones, see the module.

    The probability is averaged over all pairs of draws before its logarithm is taken. (The published code takes the
    logarithm first, so that by Jensen's inequality no spread is ever rewarded.)

    Args:
        mean: (N, Z), unit rows.
        kappa: (N,), positive.
        labels: (N,), integers.
        log_scale: log a, learned.
        offset: b, learned.
        samples: how many draws of each image.
        negatives: which images a positive one has to be told from.
        generator: of the draws, on the device of the means.

    Example:
        >>> mean, labels = torch.eye(3)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> options = {"log_scale": torch.tensor(2.0), "offset": torch.tensor(-4.0), "samples": 8}
        >>> loss = contrastive_hib(mean, torch.full((4,), 1e6), labels, **options)
        >>> round(loss.item(), 2)  # sigmoid(e^2 - 4) and sigmoid(-4)
        0.05
    """
    positive, candidates = pair_masks(labels, negatives)
    logits = log_scale.exp() * draw_cosines(mean, kappa, samples, generator) + offset
    if not bool(positive.any()):
        return logits.sum() * 0
    matches, differs = (F.logsigmoid(x).logsumexp((2, 3)) - 2 * math.log(samples) for x in (logits, -logits))
    anchors = positive.any(1, keepdim=True)
    return -mean_of_chosen(matches, positive) - mean_of_chosen(differs, candidates & anchors)


def draw_cosines(mean: Tensor, kappa: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
    """Return z_i^k . z_j^l of all draws of all images, (N, N, K, K)."""
    drawn = vmf.sample(mean, kappa, samples, generator=generator)
    return torch.einsum("kiz,ljz->ijkl", drawn, drawn)


def elk_info_nce(
    mean: Tensor, kappa: Tensor, labels: Tensor, *, scale: float = 1.0, negatives: Negatives = "others"
) -> Tensor:
    """Return InfoNCE of the expected likelihood kernel. It ranks images, but its concentrations are too small.

    Args:
        mean: (N, Z), unit rows.
        kappa: (N,), positive.
        labels: (N,), integers.
        scale: t, what the kernel's logarithm is multiplied with.
        negatives: which images a positive one has to be told from.

    Example:
        >>> mean, labels = torch.eye(3)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> elk_info_nce(mean, torch.full((4,), 100.0), labels) < elk_info_nce(mean, torch.ones(4), labels)
        tensor(True)
    """
    return info_nce(scale * log_kernel(mean, kappa, mean, kappa), labels, negatives=negatives)


def log_kernel(mean_p: Tensor, kappa_p: Tensor, mean_q: Tensor, kappa_q: Tensor) -> Tensor:
    """Return log int p q of every pair, (P, Q), from means (P, Z) and (Q, Z) and concentrations (P,) and (Q,).

    The same as `vmf.log_expected_likelihood`, from the matrix of cosines, so that nothing of size P x Q x Z is made;
    computed in float64, some rows at a time.

    Example:
        >>> a, k = torch.eye(3), torch.tensor([1.0, 10.0, 100.0])
        >>> torch.allclose(log_kernel(a, k, a, k), vmf.log_expected_likelihood(a[:, None], k[:, None], a, k))
        True
    """
    rows = max(1, ENTRIES_AT_ONCE // max(1, len(mean_q)))
    parts = [
        _log_kernel_rows(some, k, mean_q, kappa_q)
        for some, k in zip(mean_p.split(rows), kappa_p.split(rows), strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _log_kernel_rows(mean_p: Tensor, kappa_p: Tensor, mean_q: Tensor, kappa_q: Tensor) -> Tensor:
    kp, kq = kappa_p.double()[:, None], kappa_q.double()
    # Rows of float32 are of length 1 within 1e-7, which a large concentration makes much of.
    cosine = (F.normalize(mean_p.double()) @ F.normalize(mean_q.double()).T).clamp(-1, 1)
    # |kp mean_p + kq mean_q|; where it is 0 so is its effect, and the root's infinite slope must not make that NaN.
    combined = ((kp - kq).square() + 2 * kp * kq * (1 + cosine)).clamp(min=1e-200).sqrt()
    dim = mean_p.shape[1]
    log_kernel = (
        relative_log_normalizer(kp, dim)
        + relative_log_normalizer(kq, dim)
        - relative_log_normalizer(combined, dim)
        + log_uniform_density(dim)
    )
    return log_kernel.to(mean_p.dtype)
