r"""The precision of the prior N(0, 1/prior I) over the weights: by the marginal likelihood, or by validation pairs.

The marginal likelihood of Laplace's method, constants of the likelihood left out, is

    log p(D) = - scale L(theta*) - 1/2 [prior |theta*|^2 + log det(scale G + prior I) - d log prior],

whose derivative vanishes where prior = gamma/|theta*|^2, gamma = tr(scale G (scale G + prior I)^-1). There is one
such prior, since gamma falls as the prior grows. log gamma falls by at most 1 where log prior grows by 1: iterating
prior <- gamma/|theta*|^2 alone would go to and fro where the prior outweighs the data, but two thirds of its step in
log prior always leave at most a third of the error.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hessians import Pairs
from hessians.pair_loss import PairLoss
from hessians.pairs import PairList
from laplacian_metric.laplace.batching import class_balanced_batches, on_host
from laplacian_metric.laplace.fit import Fitted
from laplacian_metric.laplace.head import HeadPosterior
from laplacian_metric.laplace.layer import LayerCurvature

LOGGER = logging.getLogger(__name__)

TOLERANCE = 1e-9
MAX_ITERATIONS = 200
GATHERED = 1 << 22  # entries of the embeddings of pairs
MOST_PAIRS = 5000  # of a type, drawn of the validation pairs
REFINED = 8  # steps of the golden section, which leave 9 % of the precision
REACH = 14.0  # of log prior, to either side of the precision that the data give a weight on average
GOLDEN = (math.sqrt(5) - 1) / 2


class NoOptimumError(ValueError):
    """The marginal likelihood has no maximum."""


def log_marginal_likelihood(
    curvature: LayerCurvature, scale: float, prior: float, square: float, loss_value: float
) -> float:
    """log p(D), see the module; ``square`` is |theta*|^2, ``loss_value`` L(theta*).

    Example:
        >>> from laplacian_metric.laplace.layer import DiagonalCurvature
        >>> curvature = DiagonalCurvature(torch.ones(1, 2))
        >>> round(log_marginal_likelihood(curvature, scale=3.0, prior=1.0, square=0.5, loss_value=0.2), 4)
        -2.2363
    """
    posterior = curvature.posterior(scale, prior)
    occam = posterior.log_determinant() - posterior.num_parameters * math.log(prior)
    return -scale * loss_value - (prior * square + occam) / 2


def optimal_prior(curvature: LayerCurvature, scale: float, square: float, start: float = 1.0) -> float:
    """The prior precision at which the marginal likelihood is greatest, by a damped fixed-point iteration.

    Example:
        >>> from laplacian_metric.laplace.layer import DiagonalCurvature
        >>> prior = optimal_prior(DiagonalCurvature(torch.full((2, 2), 3.0)), scale=1.0, square=2.0)
        >>> round(prior, 4)  # 4 parameters: 4 * 3/(3 + prior) = 2 prior
        1.3723
    """
    if not curvature.trace() * scale > 0:
        raise NoOptimumError(
            "every entry of the curvature is 0 or was clamped at 0: the data say nothing about these weights, and the "
            'marginal likelihood has no optimum; use approximation="fixed" or "clipped", or train longer'
        )
    if not (math.isfinite(square) and square > 0):
        raise NoOptimumError(
            f"the weights have the squared norm {square}: the prior's best precision is infinite"
        )
    prior = start
    for _ in range(MAX_ITERATIONS):
        gamma = curvature.posterior(scale, prior).effective_parameters()
        ratio = gamma / square / prior
        if not (math.isfinite(ratio) and ratio > 0):
            raise NoOptimumError(
                f"at the prior precision {prior:g} the data determine {gamma:g} parameters: pass a start nearer to the "
                "precision that the data give"
            )
        step = math.log(ratio)
        prior *= math.exp(2 / 3 * step)
        if abs(step) <= TOLERANCE:
            return prior
    raise NoOptimumError(
        f"the fixed-point iteration for the prior precision has not converged after {MAX_ITERATIONS} steps, it is at "
        f"{prior:g}"
    )


def pair_log_likelihood(samples: list[Tensor], pairs: Pairs, loss: PairLoss) -> float:
    r"""How well sampled embeddings tell positive from negative pairs: the mean log-likelihood of a pair's type.

    A pair whose embeddings are at a distance d is positive with probability sigma(beta (l_neg(d) - l_pos(d))), l the
    pair's loss as either type; this is averaged over the samples, and its logarithm over the positives and over the
    negatives, with weights 1 - w and w. beta > 0 is the one that makes the result greatest: a scale, which the
    average that is the loss does not have.

    Args:
        samples: S raw embeddings of the same N images, (N, Z) each.
    """
    chosen, margins = [], []
    for positive in (True, False):
        listed = list(pairs.listed(positive))
        if not sum(len(part.first) for part in listed):
            raise ValueError(
                f"the validation pairs have no {'positive' if positive else 'negative'} one: both types are needed"
            )
        energy = torch.stack([torch.cat([_evidence(loss, u, part) for part in listed]) for u in samples])
        margins.append(energy if positive else -energy)
        chosen.append((1 - loss.negative_weight) if positive else loss.negative_weight)

    def value(log_beta: float) -> float:
        beta = math.exp(log_beta)
        parts = [
            (torch.logsumexp(F.logsigmoid(beta * margin), dim=0) - math.log(len(samples))).mean()
            for margin in margins
        ]
        return float(sum(weight * part for weight, part in zip(chosen, parts, strict=True)))

    return value(maximise(value, math.log(1e-2), math.log(1e4), steps=13))


def _evidence(loss: PairLoss, u: Tensor, listed: PairList) -> Tensor:
    """l_neg - l_pos of pairs (P,), in float64; a few at a time, because two embeddings are gathered for each."""
    size = max(1, GATHERED // max(1, u.shape[1]))
    parts = [
        loss.pair_values(u[i], u[j], False) - loss.pair_values(u[i], u[j], True)
        for i, j in zip(listed.first.split(size), listed.second.split(size), strict=True)
    ]
    return torch.cat(parts).double()


def few_pairs(pairs: Pairs, most: int, generator: torch.Generator | None = None) -> Pairs:
    """At most so many of the positive and of the negative pairs, drawn at random; the pairs themselves if they are few.

    Example:
        >>> few_pairs(Pairs.from_labels([0, 0, 0, 1, 1, 1]), 4).num_negatives
        4
    """
    if max(pairs.num_positives, pairs.num_negatives) <= most:
        return pairs
    indices: list[Tensor] = []
    for positive in (True, False):
        listed = list(pairs.listed(positive))
        first, second = (torch.cat([getattr(part, name) for part in listed]) for name in ("first", "second"))
        drawn = torch.randperm(len(first), generator=generator)[:most]
        indices += [first[drawn], second[drawn]]
    return Pairs.from_indices(indices, pairs.num_images)


def validated_prior(
    head: nn.Linear,
    fitted: Fitted,
    scale: float,
    loss: PairLoss,
    features: Tensor,
    labels: Tensor,
    samples: int,
    max_images: int,
    generator: torch.Generator | None,
) -> float:
    """The prior precision under which sampled heads tell best which pairs of validation images are positive.

    At most ``max_images`` of the features (N, H) are drawn, several of a class where there are, and at most 5,000 of
    their pairs of each type; every precision that is tried has the same pairs and the same noise.
    """
    generator = on_host(generator)
    chosen = class_balanced_batches(labels, max_images, generator=generator)[0].to(features.device)
    rows, pairs = features[chosen], few_pairs(Pairs.from_labels(labels[chosen].cpu()), MOST_PAIRS, generator)
    seed = int(torch.randint(2**62, (1,), generator=generator))
    curvature = fitted.curvature
    centre = math.log(max(scale * curvature.trace() / curvature.num_parameters, 1e-12))

    def value(log_prior: float) -> float:
        posterior = curvature.posterior(scale, math.exp(log_prior))
        sampled = HeadPosterior(head, posterior, fitted.bias_is_random)
        same = torch.Generator(sampled.weight.device).manual_seed(seed)
        return pair_log_likelihood([u.cpu() for u in sampled.draws(rows, samples, same)], pairs, loss)

    low, high = centre - REACH, centre + REACH
    maximum = maximise(value, low, high, steps=15, refine=REFINED)
    if min(maximum - low, high - maximum) < 1e-3 * REACH:
        LOGGER.warning(
            "the best prior precision for the validation pairs is at the end of the range, %.3g: the more the "
            "weights are %s, the better they are distinguished",
            math.exp(maximum),
            "held" if maximum > centre else "free",
        )
    return math.exp(maximum)


def maximise(
    function: Callable[[float], float], low: float, high: float, *, steps: int, refine: int = 14
) -> float:
    """Where a function of one number is greatest: the best of a grid, refined by golden section between its neighbours.

    Example:
        >>> round(maximise(lambda x: -((x - 0.3) ** 2), -2.0, 2.0, steps=9), 2)
        0.3
    """
    grid = [low + (high - low) * i / (steps - 1) for i in range(steps)]
    values = [function(x) for x in grid]
    best = max(range(steps), key=values.__getitem__)
    left, right = grid[max(0, best - 1)], grid[min(steps - 1, best + 1)]
    a, b = right - GOLDEN * (right - left), left + GOLDEN * (right - left)
    at_a, at_b = function(a), function(b)
    for _ in range(refine):
        if at_a >= at_b:
            right, b, at_b = b, a, at_a
            a = right - GOLDEN * (right - left)
            at_a = function(a)
        else:
            left, a, at_a = a, b, at_b
            b = left + GOLDEN * (right - left)
            at_b = function(b)
    return max(((values[best], grid[best]), (at_a, a), (at_b, b)))[1]
