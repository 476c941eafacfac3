"""The images of a gallery that most probably match, without the probability of every pair.

That of one pair of images is a mean over K x L pairs of their samples. A ball around the samples of an image bounds it
from a single distance, and bounds it closely where the ball is small; so most pairs are ruled out, and only of the rest
is it computed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hessians.checks import check_finite
from laplacian_metric.methods.gaussian.match_probability import (
    MatchProbability,
    check_comparable,
    distances_of,
    mismatch_probability,
)

# Of the distances and probabilities in what precision rounds, relative to their greatest; single precision has 1e-7.
ROUNDING = 1e-5
CANDIDATES = 8  # beyond what is wanted, whose probabilities say which others are ruled out
PAIRS_AT_ONCE = 1 << 14
# Where more than this share of the pairs is left, they are computed all together, which takes less time for each.
SHARE_LEFT = 0.3


def closest_matches(
    first: Tensor, second: Tensor, match: MatchProbability, best: int
) -> Callable[[Tensor], Tensor]:
    """What scores images, by their positions (B,) in first, with all M of second: (B, M), the greater the more alike.

    The score is the probability of a mismatch, as `mismatch_probability` has it, with its sign turned; minus infinity
    where it is certain that so many as `best` members are more alike. In between it is exact, so that the `best`
    greatest are those of all pairs. An image that is so far from every member that no match has a probability of 1e-7
    (in float32) finds all of them equally unlike; the first are then as good as any.

    Args:
        first: (K, N, Z), the samples of N images.
        second: (L, M, Z), those of the gallery.
        match: a and b.
        best: how many members of the gallery are wanted, with the image itself where it is one of them.

    Example:
        >>> points = torch.arange(40.0)[None, :, None]
        >>> score = closest_matches(points, points, MatchProbability(scale=2.0, offset=1.0), best=2)
        >>> score(torch.tensor([0]))[0, :3]
        tensor([-0.2689, -0.7311,    -inf])
    """
    check_comparable(first, second)
    for name, samples in (("first", first), ("second", second)):
        check_finite(name, samples.transpose(0, 1))
    if not second.shape[1]:
        raise ValueError("the gallery is empty: there is nothing that could match")
    if best < 1:
        raise ValueError(f"best is {best}, at least one match must be wanted")
    gallery = _Balls(second)
    return lambda rows: _scores(_Balls(first[:, rows]), gallery, match, min(best, len(gallery.centres)))


class _Balls:
    """Images, each with its samples (N, K, Z), and the ball around their mean, (N, Z), that holds them all, (N,)."""

    def __init__(self, samples: Tensor) -> None:
        self.samples = samples.transpose(0, 1).contiguous()
        self.centres = self.samples.mean(1)
        largest = self.samples.abs().amax((1, 2))
        self.radii = _distances(self.samples, self.centres[:, None]).amax((1, 2)) + ROUNDING * largest


@torch.no_grad()
def _scores(queries: _Balls, gallery: _Balls, match: MatchProbability, best: int) -> Tensor:
    between = _distances(queries.centres, gallery.centres)
    limit = _limit(queries, gallery, match, best, between + gallery.radii)
    nearest = between * (1 - ROUNDING) - queries.radii[:, None] - gallery.radii
    row, member = (_mismatch(match, nearest) <= limit[:, None]).nonzero(as_tuple=True)
    # The samples of one against the ball of the other, whichever is the smaller.
    small = gallery.radii[member] <= queries.radii[row]
    left = torch.empty_like(small)
    left[small] = _not_ruled_out(queries, row[small], gallery, member[small], match, limit[row[small]])
    left[~small] = _not_ruled_out(gallery, member[~small], queries, row[~small], match, limit[row[~small]])
    row, member = row[left], member[left]
    if len(row) > SHARE_LEFT * between.numel():
        return -mismatch_probability(queries.samples.transpose(0, 1), gallery.samples.transpose(0, 1), match)
    scores = torch.full_like(between, -torch.inf)
    scores[row, member] = -_means(queries, row, gallery, member, match)
    return scores


def _limit(queries: _Balls, gallery: _Balls, match: MatchProbability, best: int, likely: Tensor) -> Tensor:
    """(B,): so many as `best` members have no greater probability of a mismatch; they are looked for among a few."""
    few = min(best + CANDIDATES, likely.shape[1])
    member = likely.topk(few, dim=1, largest=False).indices
    row = torch.arange(len(member), device=member.device).repeat_interleave(few)
    mismatches = _means(queries, row, gallery, member.flatten(), match).view_as(member)
    least = mismatches.topk(best, dim=1, largest=False).values[:, -1]
    return least * (1 + ROUNDING) + torch.finfo(least.dtype).tiny


def _not_ruled_out(
    first: _Balls, row: Tensor, second: _Balls, member: Tensor, match: MatchProbability, limit: Tensor
) -> Tensor:
    """Of P pairs, whether the samples of the first and the ball of the second allow a mismatch below the limit."""
    kept = [limit.new_empty(0, dtype=torch.bool)]
    for one, other, least in zip(*(part.split(PAIRS_AT_ONCE) for part in (row, member, limit)), strict=True):
        distance = _distances(first.samples[one], second.centres[other][:, None]).squeeze(2)
        nearest = distance * (1 - ROUNDING) - second.radii[other][:, None]
        kept.append(_mismatch(match, nearest).mean(1) <= least)
    return torch.cat(kept)


def _means(first: _Balls, row: Tensor, second: _Balls, member: Tensor, match: MatchProbability) -> Tensor:
    """The probabilities of a mismatch (P,) of P pairs."""
    means = [first.centres.new_empty(0)]
    for one, other in zip(row.split(PAIRS_AT_ONCE), member.split(PAIRS_AT_ONCE), strict=True):
        distance = _distances(first.samples[one], second.samples[other])
        means.append(_mismatch(match, distance).mean((1, 2)))
    return torch.cat(means)


def _mismatch(match: MatchProbability, distance: Tensor) -> Tensor:
    """Of distances, none of which is below 0."""
    logits: Tensor = match(distance.clamp_min(0))
    return logits.neg_().sigmoid_()


def _distances(first: Tensor, second: Tensor) -> Tensor:
    return distances_of(first, second)
