r"""InfoNCE of von Mises-Fisher distributions, with the labels of a batch saying what is to be near what.

For an image i, one of its class j and the images m of other classes in the batch, with a similarity s,

    l_ij = -log( exp(s_ij) / (exp(s_ij) + sum_m exp(s_im)) ),

averaged over j, then over i. MCInfoNCE draws a point z_i^k of every image, takes s_ij = kappa_pos z_i^k . z_j^k, and
averages the fraction over the draws k, inside of the logarithm. The other loss takes the expected likelihood kernel,
s_ij = t log int p_i p_j, in closed form.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import vmf
from laplacian_metric.vmf.bessel import relative_log_normalizer
from laplacian_metric.vmf.bessel_expansion import log_uniform_density
from laplacian_metric.vmf.checks import check_distribution

ENTRIES_AT_ONCE = 1 << 22


def info_nce(logits: Tensor, labels: Tensor) -> Tensor:
    """-log of the fraction, see the module; 0 where the batch has no positive pair or no negative one.

    Args:
        logits: s, (N, N), or (K, N, N), of which the fraction is averaged over the first dimension.
        labels: (N,).

    Example:
        >>> logits = torch.tensor([[1.0, 0.8, 0.1], [0.8, 1.0, 0.3], [0.1, 0.3, 1.0]])
        >>> info_nce(logits, torch.tensor([0, 0, 1]))  # log(1 + exp(-0.7)), log(1 + exp(-0.5))
        tensor(0.4386)
    """
    if labels.shape != logits.shape[-1:]:
        raise ValueError(f"labels has {labels.numel()} entries for {logits.shape[-1]} embeddings")
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=same.device)
    counts = positive.sum(1)
    if not bool(counts.any()) or bool(same.all()):
        return logits.sum() * 0
    # The fraction is sigmoid(s_ij - log sum_m exp(s_im)).
    against = logits.masked_fill(same, -torch.inf).logsumexp(-1, keepdim=True)
    log_fraction = F.logsigmoid(logits - against)
    if logits.ndim == 3:
        log_fraction = log_fraction.logsumexp(0) - math.log(len(logits))
    anchors = counts > 0
    sums = log_fraction.masked_fill(~positive, 0).sum(1)
    return -(sums[anchors] / counts[anchors]).mean()


def mc_info_nce(
    mean: Tensor,
    kappa: Tensor,
    labels: Tensor,
    *,
    kappa_pos: float,
    samples: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    """MCInfoNCE of images with means (N, Z), concentrations (N,) and labels (N,).

    Gradients flow to the means and, by implicit reparametrisation, to the concentrations. The logarithm of a mean of
    few draws is too small on average: the loss is biased upwards, the less the more draws there are.

    Args:
        mean: unit rows.
        kappa: positive.
        labels: integers.
        kappa_pos: how near images of a class are taken to be, the inverse of a temperature.
        samples: how many draws.
        generator: of the draws, on the device of the means.

    Example:
        >>> mean, labels = torch.eye(3)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> sure, unsure = torch.full((4,), 1e4), torch.ones(4)
        >>> options = {"kappa_pos": 8.0, "samples": 64}
        >>> mc_info_nce(mean, sure, labels, **options) < mc_info_nce(mean, unsure, labels, **options)
        tensor(True)
    """
    _check(mean, kappa, labels)
    drawn = vmf.sample(mean, kappa, samples, generator=generator)
    return info_nce(kappa_pos * (drawn @ drawn.mT), labels)


def elk_info_nce(mean: Tensor, kappa: Tensor, labels: Tensor, *, scale: float = 1.0) -> Tensor:
    """InfoNCE of the expected likelihood kernel, for means (N, Z), concentrations (N,) and labels (N,).

    Args:
        mean: unit rows.
        kappa: positive.
        labels: integers.
        scale: t, what the kernel's logarithm is multiplied with.

    Example:
        >>> mean, labels = torch.eye(3)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> elk_info_nce(mean, torch.full((4,), 100.0), labels) < elk_info_nce(mean, torch.ones(4), labels)
        tensor(True)
    """
    _check(mean, kappa, labels)
    return info_nce(scale * log_kernel(mean, kappa, mean, kappa), labels)


def log_kernel(mean_p: Tensor, kappa_p: Tensor, mean_q: Tensor, kappa_q: Tensor) -> Tensor:
    """log int p q of every pair, (P, Q), from means (P, Z) and (Q, Z) and concentrations (P,) and (Q,).

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
    found = (
        relative_log_normalizer(kp, dim)
        + relative_log_normalizer(kq, dim)
        - relative_log_normalizer(combined, dim)
        + log_uniform_density(dim)
    )
    return found.to(mean_p.dtype)


def _check(mean: Tensor, kappa: Tensor, labels: Tensor) -> None:
    if mean.ndim != 2 or not len(mean):
        raise ValueError(f"mean has shape {tuple(mean.shape)}, (N, Z) with at least one image is needed")
    if kappa.shape != mean.shape[:1]:
        raise ValueError(f"kappa has shape {tuple(kappa.shape)} for {len(mean)} embeddings: one for each")
    if labels.shape != mean.shape[:1]:
        raise ValueError(f"labels has {labels.numel()} entries for {len(mean)} embeddings")
    check_distribution(mean, kappa)
