r"""The likelihood of the Bayesian triplet loss (Warburg et al., 2021): how probably a triplet is in order.

For independent embeddings a, p, n it is P(tau < -margin) with tau = |a - p|^2 - |a - n|^2, by the first two moments of
tau and the tail of a Gaussian. docs/triplet_likelihood.md derives what is computed here:

- isotropic Gaussians N(mu, s I) of D dimensions, with the squared distances d of the means,

      E tau   = d_ap - d_an + D (s_p - s_n)
      Var tau = 4 (s_a d_pn + s_p d_ap + s_n d_an) + 2 D (s_p^2 + s_n^2 + 2 s_a (s_p + s_n)),

  a sum of terms that are not negative. (The paper prints the variance of one dimension, to be summed, in which two
  terms, 4 mu_a mu_p s_p and 4 mu_a mu_n s_n, have the wrong sign: it depends on where the origin is.)
- von Mises-Fisher distributions, with the covariances C of x and m = E x,

      E tau   = 2 m_a . (m_n - m_p)
      Var tau = 4 [tr C_a (C_p + C_n) + (m_n - m_p) . C_a (m_n - m_p) + m_a . (C_p + C_n) m_a],

  where C has the variance A'(kappa) along the mean direction and A(kappa)/kappa across it.
- KL(N(mu, s I) || N(0, I/D)) = D/2 (D s - 1 - log(D s) + |mu|^2), and that of a von Mises-Fisher distribution from the
  uniform one, log C(kappa) - log C(0) + kappa A(kappa).

All of it depends on squared distances and on one number for each image, so that a batch of N images costs one (N, N)
matrix however many triplets it has.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplacian_metric.vmf.bessel import evaluate
from laplacian_metric.vmf.checks import precise


class Distances(NamedTuple):
    """Squared distances of the means of triplets: anchor to positive, anchor to negative, positive to negative."""

    positive: Tensor
    negative: Tensor
    between: Tensor

    @staticmethod
    def of(anchor: Tensor, positive: Tensor, negative: Tensor) -> Distances:
        """From means (..., D).

        Example:
            >>> a, p, n = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
            >>> [float(d) for d in Distances.of(a, p, n)]
            [1.0, 4.0, 5.0]
        """
        pairs = ((anchor, positive), (anchor, negative), (positive, negative))
        return Distances(*(precise(one - other).square().sum(-1) for one, other in pairs))


class Spreads(NamedTuple):
    """One number for each image of triplets: a variance, or a concentration."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor


class Moments(NamedTuple):
    """Mean and variance of tau, float64 where the device has it."""

    mean: Tensor
    variance: Tensor


def gaussian_moments(distances: Distances, variances: Spreads, dim: int) -> Moments:
    """Mean and variance of tau for isotropic Gaussians.

    Args:
        distances: of the means, (...) each.
        variances: s, of one component, (...) each, positive.
        dim: D.

    Example:
        >>> one = torch.ones(1)
        >>> moments = gaussian_moments(Distances(one, 4 * one, 5 * one), Spreads(one, one, 2 * one), dim=2)
        >>> float(moments.mean), float(moments.variance)  # 1 - 4 + 2 (1 - 2), 4 (5 + 1 + 8) + 4 (1 + 4 + 6)
        (-5.0, 100.0)
    """
    ap, an, pn = (precise(squared) for squared in distances)
    a, p, n = (precise(variance) for variance in variances)
    of_means = a * pn + p * ap + n * an
    of_squares = p.square() + n.square() + 2 * a * (p + n)
    return Moments(ap - an + dim * (p - n), 4 * of_means + 2 * dim * of_squares)


def directed_moments(
    distances: Distances, anchor: Directed, positive: Directed, negative: Directed
) -> Moments:
    """Return mean and variance of tau for von Mises-Fisher distributions, from what `Directed` knows of concentrations.

    Args:
        distances: of the mean directions, which are unit vectors, (...) each.
        anchor, positive, negative: (...) each.

    Example:
        >>> ap, an = torch.tensor([0.0]), torch.tensor([2.0])  # n is at right angles to a = p
        >>> certain = Directed.of(torch.full((1,), 1e6), 3)
        >>> moments = directed_moments(Distances(ap, an, an), certain, certain, certain)
        >>> round(float(moments.mean), 4), bool(moments.variance < 1e-4)
        (-2.0, True)
    """
    ap, an, pn = (precise(squared) for squared in distances)
    a, p, n = anchor, positive, negative
    # m_a . (m_n - m_p), of cosines 1 - d/2 and lengths 1 - gap, so that nothing near 1 is subtracted.
    along = (p.gap - n.gap) - (n.length * an - p.length * ap) / 2
    mean = 2 * a.length * along
    squared = (p.gap - n.gap).square() + n.length * p.length * pn  # |m_n - m_p|^2
    across = (squared - along.square()).clamp(min=0)
    moved = a.across * across + a.along * along.square()
    turned = sum(a.length.square() * x.across_and_along(d) for x, d in ((p, ap), (n, an)))
    both = sum(a.trace_with(x, d) for x, d in ((p, ap), (n, an)))
    return Moments(mean, 4 * (both + moved + turned))


class Directed(NamedTuple):
    """Von Mises-Fisher distributions: |E x|, 1 - |E x|, the variances along the mean and across it, and D.

    Example:
        >>> some = Directed.of(torch.tensor([0.0, 10.0]), 3)
        >>> some.at(torch.tensor([1, 1])).length
        tensor([0.9000, 0.9000], dtype=torch.float64)
    """

    length: Tensor
    gap: Tensor
    along: Tensor
    across: Tensor
    dim: int

    @staticmethod
    def of(kappa: Tensor, dim: int) -> Directed:
        """From concentrations of any shape; float64 where the device has it."""
        kappa = precise(kappa)
        length, gap = evaluate(kappa, dim, "length"), evaluate(kappa, dim, "gap")
        return Directed(length, gap, _along(kappa, length, gap, dim), _across(kappa, length, dim), dim)

    def at(self, rows: Tensor) -> Directed:
        """Some of them, of (N,)."""
        return Directed(self.length[rows], self.gap[rows], self.along[rows], self.across[rows], self.dim)

    def across_and_along(self, squared: Tensor) -> Tensor:
        """v . C v for a unit vector v at a squared distance from the mean direction."""
        sine = _squared_sine(squared)
        return self.across * sine + self.along * (1 - sine)

    def trace_with(self, other: Directed, squared: Tensor) -> Tensor:
        """tr C C' for another distribution whose mean direction is at a squared distance."""
        sine = _squared_sine(squared)
        mixed = self.across * other.along + self.along * other.across
        return (
            self.across * other.across * (self.dim - 2 + (1 - sine))
            + mixed * sine
            + self.along * other.along * (1 - sine)
        )


def _squared_sine(squared: Tensor) -> Tensor:
    """1 - cos^2 of unit vectors at a squared distance, which rounding may bring above 4."""
    return (squared * (1 - squared / 4)).clamp(min=0)


def _across(kappa: Tensor, length: Tensor, dim: int) -> Tensor:
    """A(kappa)/kappa, 1/D at 0, where its slope is 0."""
    small = kappa < 1e-8
    return torch.where(small, 1 / dim, length / kappa.clamp(min=1e-8))


def _along(kappa: Tensor, length: Tensor, gap: Tensor, dim: int) -> Tensor:
    """A'(kappa). The value is that of the expansion; the gradient comes from A' = 1 - A^2 - (D - 1) A/kappa."""
    identity = gap * (1 + length) - (dim - 1) * _across(kappa, length, dim)
    return evaluate(kappa.detach(), dim, "slope") + (identity - identity.detach())


class _LogNormalCdf(torch.autograd.Function):
    """log Phi, whose slope torch's own loses in the far tail."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        log_probability: Tensor = torch.special.log_ndtr(x)
        return log_probability

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        (gradient,) = grad_outputs
        slope: Tensor = math.sqrt(2 / math.pi) / torch.special.erfcx(-x * math.sqrt(0.5))
        return gradient * slope


def log_probability(moments: Moments, margin: float = 0.0) -> Tensor:
    """log P(tau < -margin) as if tau were Gaussian: log Phi((-margin - E tau)/sqrt(Var tau)).

    Value and slope keep their digits far out in the tail, where the probability itself is 0 in any format.

    Example:
        >>> moments = Moments(torch.tensor([0.0, 1e6]).double(), torch.ones(2).double())
        >>> [f"{x:.6g}" for x in log_probability(moments).tolist()]
        ['-0.693147', '-5e+11']
    """
    x = (-margin - moments.mean) / moments.variance.sqrt()
    return _LogNormalCdf.apply(x)  # type: ignore[no-any-return]


def kl_to_gaussian_prior(mean: Tensor, variance: Tensor) -> Tensor:
    """KL(N(mu, s I) || N(0, I/D)), (...), from means (..., D) and variances (...) of one component.

    Example:
        >>> kl_to_gaussian_prior(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([0.5, 0.5]))
        tensor([0., 1.])
    """
    dim = mean.shape[-1]
    scaled = dim * precise(variance)
    divergence = dim / 2 * ((scaled - 1) - scaled.log() + precise(mean).square().sum(-1))
    return divergence.to(torch.promote_types(mean.dtype, variance.dtype))


def kl_to_uniform(kappa: Tensor, dim: int) -> Tensor:
    """KL of a von Mises-Fisher distribution from the uniform one, of the shape of kappa.

    Example:
        >>> kl_to_uniform(torch.tensor([0.0, 10.0]), 3)
        tensor([0.0000, 1.9957])
    """
    return (0 - evaluate(precise(kappa), dim, "entropy")).to(kappa.dtype)
