"""The soft contrastive loss of hedged instance embeddings (Oh et al., 2019) and what goes with it.

Two points match with probability sigma(-a |z1 - z2| + b), a > 0. Two images match with the mean of that over K x K
pairs of their samples.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hessians import Pairs
from hessians.checks import Choice, check_finite
from hessians.pairs import ListedPairs
from laplacian_metric.vmf.checks import precise

ELEMENTS_AT_ONCE = 1 << 19
# What a batch may keep for the way back, in logits; beyond it blocks are computed twice.
ELEMENTS_KEPT = 1 << 23
# Up to so many dimensions differences are as quick as a matrix product.
DIRECT_DIMENSIONS = 32


class Balance(Choice):
    """How the pairs of a batch are averaged."""

    TYPES = "types"
    """Half the average over positive pairs and half that over negative pairs: as if half of all pairs matched."""
    PAIRS = "pairs"
    """The average over all pairs, of which few match."""


class Average(Choice):
    """What is averaged over the samples of a pair."""

    PROBABILITY = "probability"
    """The match probability; the loss is its negative logarithm."""
    LOG = "log"
    """The logarithm of the match probability, a lower bound."""


class MatchProbability(nn.Module):
    """The learned a > 0 and b of sigma(-a d + b).

    Args:
        scale: the initial a.
        offset: the initial b.

    Example:
        >>> match = MatchProbability(scale=2.0, offset=1.0)
        >>> match(torch.tensor([0.0, 0.5])).sigmoid()
        tensor([0.7311, 0.5000], grad_fn=<SigmoidBackward0>)
    """

    def __init__(self, scale: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        # No step of an optimizer makes a negative, and its steps are relative to a.
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.offset = nn.Parameter(torch.tensor(float(offset)))

    @property
    def scale(self) -> Tensor:
        """a."""
        return self.log_scale.exp()

    def settings(self) -> dict[str, float]:
        """a and b as numbers.

        Example:
            >>> MatchProbability(scale=1.0, offset=0.5).settings()
            {'scale': 1.0, 'offset': 0.5}
        """
        return {"scale": float(self.scale.detach()), "offset": float(self.offset.detach())}

    def forward(self, distance: Tensor) -> Tensor:
        """The logits of distances |z1 - z2| of any shape."""
        return self.offset - self.scale * distance


def sample_distances(first: Tensor, second: Tensor) -> Tensor:
    """|z1 - z2| of samples (K, N, Z) and (L, M, Z): (K, N, L, M). The gradient at distance 0 is 0."""
    dim = first.shape[2]
    flat = distances_of(first.reshape(-1, dim), second.reshape(-1, dim))
    return flat.view(*first.shape[:2], *second.shape[:2])


def paired_distances(first: Tensor, second: Tensor) -> Tensor:
    """|z1 - z2| of samples (K, P, Z) and (L, P, Z) of the images of P pairs: (P, K, L)."""
    return distances_of(first.transpose(0, 1), second.transpose(0, 1))


def distances_of(first: Tensor, second: Tensor) -> Tensor:
    """|z1 - z2| of points (..., K, Z) and (..., L, Z): (..., K, L), in their dtype and to its last digits.

    |z1|^2 + |z2|^2 - 2 z1.z2 in float32 has no digits of the distance left where points are close for their norm: of
    a tight class it would order all neighbours at random. Differences keep them; so does the product in float64, which
    is quicker in many dimensions.
    """
    if first.shape[-1] <= DIRECT_DIMENSIONS:
        return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
    distances = torch.cdist(
        precise(first), precise(second), compute_mode="use_mm_for_euclid_dist_if_necessary"
    )
    return distances.to(torch.promote_types(first.dtype, second.dtype))


def soft_contrastive_loss(
    samples: Tensor,
    pairs: Pairs,
    match: MatchProbability,
    *,
    balance: str | Balance = Balance.TYPES,
    average: str | Average = Average.PROBABILITY,
) -> Tensor:
    """-log p for pairs that match and -log(1 - p) for those that do not, p being the mean over K x K sample pairs.

    A type of pair that a batch does not have contributes nothing; without any pair the loss is 0.

    Args:
        samples: (K, N, Z), K samples of N images.
        pairs: over the N images; an image is never paired with itself.
        match: a and b.
        balance, average: see there.

    Example:
        >>> samples = torch.tensor([[[0.0], [1.0], [3.0]]])
        >>> match = MatchProbability(scale=1.0, offset=2.0)
        >>> float(soft_contrastive_loss(samples, Pairs.from_labels([0, 0, 1]), match).detach())
        0.408...
    """
    balance, average = Balance.parse(balance, "balance"), Average.parse(average, "average")
    count, num = samples.shape[:2]
    if num != pairs.num_images:
        raise ValueError(f"the pairs are over {pairs.num_images} images for samples of {num}")
    check_finite("samples", samples.transpose(0, 1))
    sums = [samples.sum() * 0, samples.sum() * 0]
    counts = [pairs.num_positives, pairs.num_negatives]
    if isinstance(pairs, ListedPairs) and count * count * sum(counts) <= ELEMENTS_AT_ONCE:
        # Few of all pairs: no others are looked at.
        gained = [_listed_sum(samples, pairs, positive, match, average) for positive in (True, False)]
        return _averaged([total - part for total, part in zip(sums, gained, strict=True)], counts, balance)
    size = max(1, ELEMENTS_AT_ONCE // max(1, count * count * num))
    twice = count * count * num * num // 2 > ELEMENTS_KEPT
    for start in range(0, num, size):
        stop = min(start + size, num)
        # Every pair once: columns beyond the row.
        positive, negative = (
            block[:, start:].to(samples.dtype).triu(1) for block in pairs.block(start, stop)
        )
        rows, columns = samples[:, start:stop], samples[:, start:]
        parts = (
            checkpoint(_block_sums, rows, columns, positive, negative, match, average, use_reentrant=False)
            if twice
            else _block_sums(rows, columns, positive, negative, match, average)
        )
        sums = [total - part for total, part in zip(sums, parts, strict=True)]
    return _averaged(sums, counts, balance)


def _averaged(sums: list[Tensor], counts: list[float], balance: Balance) -> Tensor:
    """Of the sums of -log p over positive and of -log(1 - p) over negative pairs."""
    if balance is Balance.PAIRS:
        return (sums[0] + sums[1]) / (sum(counts) or 1)
    return sum((total / (2 * (count or 1)) for total, count in zip(sums, counts, strict=True)), sums[0] * 0)


def _listed_sum(
    samples: Tensor, pairs: ListedPairs, positive: bool, match: MatchProbability, average: Average
) -> Tensor:
    """The sum of log p, or of log(1 - p), over the listed pairs of one type."""
    gained = samples.sum() * 0
    for first, second, times in pairs.listed(positive):
        logits = match(paired_distances(samples[:, first], samples[:, second]))
        likelihood = log_mean((logits if positive else -logits).permute(1, 0, 2)[..., None], average)
        gained = gained + (times.to(samples.dtype) * likelihood[:, 0]).sum()
    return gained


def _block_sums(
    rows: Tensor,
    columns: Tensor,
    positive: Tensor,
    negative: Tensor,
    match: MatchProbability,
    average: Average,
) -> tuple[Tensor, Tensor]:
    """The sums of log p over positive and of log(1 - p) over negative pairs, weighted by (N, M) counts."""
    logits = match(sample_distances(rows, columns))
    # 1 - sigma(t) = sigma(-t): a sign for each pair says which of both is needed.
    sign = torch.where(negative > 0, -1.0, 1.0).to(logits)
    likelihood = log_mean(logits * sign[:, None, :], average)
    gained = (positive * likelihood).sum()
    if bool(((positive > 0) & (negative > 0)).any()):
        # Listed pairs may be both.
        gained = (positive * log_mean(logits, average)).sum()
    return gained, (negative * likelihood).sum()


def log_mean(logits: Tensor, average: Average = Average.PROBABILITY) -> Tensor:
    """log of the mean of sigma(logits), or the mean of its log, over samples: (K, N, L, M) -> (N, M)."""
    logarithms = F.logsigmoid(logits)
    if average is Average.LOG:
        return logarithms.mean((0, 2))
    return logarithms.logsumexp((0, 2)) - math.log(logits.shape[0] * logits.shape[2])


@torch.no_grad()
def match_probability(first: Tensor, second: Tensor, match: MatchProbability) -> Tensor:
    """The probability (N, M) that any of N images matches any of M, from their samples; without gradients.

    Args:
        first: (K, N, Z).
        second: (L, M, Z).
        match: a and b.

    Example:
        >>> one = torch.zeros(1, 1, 2)
        >>> match_probability(one, one + 1, MatchProbability(scale=1.0, offset=2.0**0.5))
        tensor([[0.5000]])
    """
    across = max(1, len(first) * len(second))
    columns = max(1, min(second.shape[1], ELEMENTS_AT_ONCE // across))
    rows = max(1, ELEMENTS_AT_ONCE // (across * columns))
    probabilities = first.new_empty(first.shape[1], second.shape[1])
    for i in range(0, first.shape[1], rows):
        for j in range(0, second.shape[1], columns):
            distance = sample_distances(first[:, i : i + rows], second[:, j : j + columns])
            probabilities[i : i + rows, j : j + columns] = match(distance).sigmoid().mean((0, 2))
    return probabilities


@torch.no_grad()
def paired_match_probability(
    first: Tensor, second: Tensor, match: MatchProbability, *, mismatch: bool = False
) -> Tensor:
    """Return the probability (P,) that both images of each of P pairs match, from their samples; without gradients.

    Args:
        first: (K, P, Z).
        second: (L, P, Z).
        match: a and b.
        mismatch: return that of no match, which keeps its digits where images are alike.

    Example:
        >>> one = torch.zeros(1, 2, 2)
        >>> paired_match_probability(one, one + 1, MatchProbability(scale=1.0, offset=2.0**0.5))
        tensor([0.5000, 0.5000])
    """
    size = max(1, ELEMENTS_AT_ONCE // max(1, len(first) * len(second)))
    blocks = []
    for a, b in zip(first.split(size, dim=1), second.split(size, dim=1), strict=True):
        logits = match(paired_distances(a, b))
        blocks.append((-logits if mismatch else logits).sigmoid().mean((1, 2)))
    return torch.cat(blocks)


def self_mismatch(first: Tensor, second: Tensor, match: MatchProbability) -> Tensor:
    """Return 1 - p(match) of every image with itself, (N,), from two independent sets of samples (K, N, Z), (L, N, Z).

    The more spread out an image's distribution, the greater; without gradients.

    Example:
        >>> match = MatchProbability(scale=1.0, offset=2.0)
        >>> self_mismatch(torch.tensor([[[0.0], [-1.0]]]), torch.tensor([[[0.0], [1.0]]]), match)
        tensor([0.1192, 0.5000])
    """
    return paired_match_probability(first, second, match, mismatch=True)


def kl_to_standard_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, diag exp(log_variance)) || N(0, I)) of (..., Z): (...).

    Example:
        >>> kl_to_standard_normal(torch.tensor([[0.0, 2.0]]), torch.zeros(1, 2))
        tensor([2.])
    """
    terms = mean.square() + log_variance.exp() - 1 - log_variance
    return 0.5 * terms.sum(-1)
