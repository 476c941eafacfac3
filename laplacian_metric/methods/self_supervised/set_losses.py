r"""The losses of UMM, of Gaussians whose samples are put on the unit sphere; see docs/mathematics.md.

An image's Gaussian N(mu, diag(exp(l))) gives k samples z = u/|u|. Equation numbers are those of the UMM paper; where it
prints something that cannot be meant, the docstring says what is computed here.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric.vmf import projected_normal


def sample_directions(
    mean: Tensor, log_variance: Tensor, k: int, generator: torch.Generator | None = None
) -> Tensor:
    """Return k directions of every image, (k, N, D), differentiable in both arguments (N, D).

    Example:
        >>> drawn = sample_directions(torch.eye(2), torch.zeros(2, 2), 5, torch.Generator().manual_seed(0))
        >>> drawn.shape, torch.allclose(drawn.norm(dim=2), torch.ones(5, 2))
        (torch.Size([5, 2, 2]), True)
    """
    noise = torch.randn(k, *mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    return F.normalize(torch.addcmul(mean, (log_variance / 2).exp(), noise), dim=2)


def limit_mean(mean: Tensor, log_variance: Tensor, *, exact: bool = False) -> Tensor:
    """Return what the mean of k samples becomes for k to infinity, (N, D).

    To first order mu/sqrt(1 + tr Sigma) for a unit mu, which is within a percent of the length for tr Sigma up to 1 and
    variances that are alike; ``exact`` integrates (`vmf.projected_normal`).

    Example:
        >>> mean, log_variance = torch.eye(64)[:1], torch.full((1, 64), -5.0)
        >>> [round(limit_mean(mean, log_variance, exact=exact).norm().item(), 2) for exact in (False, True)]
        [0.84, 0.84]
    """
    variance = log_variance.exp()
    if not exact:
        return mean * (mean.square().sum(1) + variance.sum(1)).rsqrt()[:, None]
    direction = projected_normal(mean, variance)
    return direction.mean * direction.length[:, None]


def consistency_loss(first: Tensor, log_first: Tensor, second: Tensor, log_second: Tensor) -> Tensor:
    """Return the symmetric Kullback-Leibler divergence of both views' Gaussians, over D and averaged over images.

    Half the sum of both directions is sum_d [2 sinh^2((l - l')/2) + (m - m')^2 (e^-l + e^-l')/2] of which this is the
    mean over d: log-determinants cancel, and sinh^2 keeps the digits that cosh - 1 loses. (The paper adds the sum over
    dimensions to a mean over images.)

    Args:
        first, log_first, second, log_second: means and log variances (N, D) of both views.

    Example:
        >>> consistency_loss(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2), torch.zeros(1, 2))
        tensor(1.)
    """
    widths = 2 * ((log_first - log_second) / 2).sinh().square()
    places = (first - second).square() * ((-log_first).exp() + (-log_second).exp()) / 2
    return (widths + places).mean()


def ranking_loss(
    queries: Tensor,
    query_ids: Tensor,
    candidates: Tensor,
    candidate_ids: Tensor,
    itself: Tensor,
    *,
    bins: int = 20,
    tie_aware: bool = True,
) -> Tensor:
    """Return 1 less the mean average precision of the queries, by soft histograms of squared distances.

    Squared distances in [0, 4] are shared between the two nearest of ``bins`` + 1 bins. With h and H the counts and
    cumulative counts, + for those of the same image, the average precision is

        (1/N+) sum_b h+_b (2 H+_(b-1) + h+_b + 1)/(2 H_(b-1) + h_b + 1)      (ties in expectation), or
        (1/N+) sum_b h+_b H+_b / H_b                                         (FastAP).

    (Eq. 12 as it is printed leaves out the precision; its sum is N+, and the loss is constant.)

    Args:
        queries: (Q, D), unit rows.
        query_ids: (Q,), their images.
        candidates: (C, D), unit rows.
        candidate_ids: (C,).
        itself: (Q,), the place of each query among the candidates, which is left out.
        bins: B.
        tie_aware: which of both forms.

    Example:
        >>> z, ids = torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> ranking_loss(z, ids, z, ids, torch.arange(4)).item()
        0.0
    """
    row, column = (query_ids[:, None] == candidate_ids).nonzero(as_tuple=True)
    other = column != itself[row]
    row, column = row[other], column[other]
    positives = torch.bincount(row, minlength=len(queries))
    if bool((positives == 0).any()):
        raise ValueError(
            f"{int((positives == 0).sum())} of {len(queries)} queries have no candidate of their image beside "
            "themselves: take more samples, or candidates of both views"
        )
    # A query's distance from itself is 0, a constant that is counted in the first bin and subtracted there.
    squared = (2 - 2 * queries @ candidates.T).clamp(0, 4).scatter(1, itself[:, None], 0.0)
    place = squared * (bins / 4)
    low = place.detach().floor().clamp_(max=bins - 1)
    share, first = place - low, torch.arange(len(queries), device=row.device)[:, None] * (bins + 1)
    h = _histogram(low.long().add_(first), share, len(queries), bins)
    h = torch.cat([h[:, :1] - 1, h[:, 1:]], dim=1)
    h_relevant = _histogram(
        low[row, column].long() + row * (bins + 1), share[row, column], len(queries), bins
    )
    total, total_relevant = h.cumsum(1), h_relevant.cumsum(1)
    if tie_aware:
        precision = (2 * total_relevant - h_relevant + 1) / (2 * total - h + 1)
    else:
        precision = total_relevant / total.clamp(min=torch.finfo(total.dtype).tiny)
    return 1 - ((h_relevant * precision).sum(1) / positives).mean()


def _histogram(bin_index: Tensor, share: Tensor, rows: int, bins: int) -> Tensor:
    """Counts (rows, bins + 1) where each entry leaves ``share`` of itself to the bin after its own."""
    flat, shares = bin_index.flatten(), share.flatten()
    counts = torch.bincount(flat, minlength=rows * (bins + 1)).to(share.dtype)
    handed_on = torch.zeros_like(counts).index_add(0, flat, shares)
    handed_on = handed_on.view(rows, -1)
    return counts.view(rows, -1) - handed_on + F.pad(handed_on, (1, -1))


def spread_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return ISIF's spread term, -sum over other images i of log(1 - P(i|j)), averaged over the rows j.

    P(i|j) is the probability that j is recognised as i, the softmax of row j over all rows but j.

    Args:
        logits: (N, N), cosines over the temperature.
        labels: (N,), the images of the rows.

    Example:
        >>> spread_loss(torch.zeros(3, 3), torch.tensor([0, 0, 1]))  # log 2 twice for the last, once for the others
        tensor(0.9242)
    """
    own = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    probability = logits.masked_fill(own, -torch.inf).softmax(1)
    # A probability that is 1 to the last digit would be infinitely wrong.
    terms = torch.log1p(-probability.clamp(max=1 - 1e-6))
    return -terms.masked_fill(labels[:, None] == labels, 0).sum(1).mean()
