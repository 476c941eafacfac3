"""Densities of and distances between von Mises-Fisher distributions, in forms that keep their digits.

Concentrations of a million make every term of these formulas large and their sum small. So cosines enter as
1 - cos = |difference|^2/2, and normalisers as h(k) = log C(k) - log C(0) + k, computed in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laplacian_metric.vmf.bessel import evaluate, log_uniform_density
from laplacian_metric.vmf.checks import (
    check_broadcast,
    check_dim,
    check_distribution,
    check_kappa,
    check_same_dim,
    check_unit,
    precise,
    result_dtype,
)


def log_density(x: Tensor, mean: Tensor, kappa: Tensor) -> Tensor:
    """log p(x) = log C_D(kappa) + kappa mean . x, with respect to the sphere's area.

    Args:
        x: (..., D), unit vectors.
        mean: (..., D), unit vectors.
        kappa: (...), concentrations. All three broadcast.

    Example:
        >>> mean = torch.tensor([1.0, 0.0, 0.0])
        >>> log_density(mean, mean, torch.tensor([0.0, 10.0]))
        tensor([-2.5310,  0.4647])
    """
    check_unit("x", x)
    check_distribution(mean, kappa)
    check_same_dim(x=x, mean=mean)
    check_broadcast(x=x.shape[:-1], mean=mean.shape[:-1], kappa=kappa.shape)
    dim, exact = mean.shape[-1], precise(kappa)
    short, _ = _apart(x, mean)  # 1 - mean . x
    value = evaluate(exact, dim, "scaled") - exact * short + log_uniform_density(dim)
    return value.to(result_dtype(x, mean, kappa))


def entropy(kappa: Tensor, dim: int) -> Tensor:
    """The differential entropy -E log p = -log C_D(kappa) - kappa A_D(kappa), of the shape of kappa.

    Example:
        >>> entropy(torch.tensor([0.0, 10.0]), 3)  # the logarithm of the sphere's area, and less
        tensor([2.5310, 0.5353])
    """
    check_kappa("kappa", kappa)
    check_dim(dim)
    return (evaluate(precise(kappa), dim, "entropy") - log_uniform_density(dim)).to(result_dtype(kappa))


def kl(mean_p: Tensor, kappa_p: Tensor, mean_q: Tensor, kappa_q: Tensor) -> Tensor:
    """Kullback-Leibler divergence of q from p, E_p log(p/q).

    With h = log C(k) - log C(0) + k it is

        h(kp) - h(kq) - (1 - A(kp)) (kp - kq) + kq A(kp) (1 - mean_p . mean_q).

    Args:
        mean_p: (..., D), unit vectors.
        kappa_p: (...), concentrations.
        mean_q: (..., D).
        kappa_q: (...). All broadcast.

    Example:
        >>> a, b = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
        >>> kl(a, torch.tensor([10.0]), b, torch.tensor([10.0]))
        tensor([9.])
    """
    dim, kp, kq, dtype = _two(mean_p, kappa_p, mean_q, kappa_q)
    apart, _ = _apart(mean_p, mean_q)
    shift = evaluate(kp, dim, "scaled") - evaluate(kq, dim, "scaled") - evaluate(kp, dim, "gap") * (kp - kq)
    return (shift + kq * evaluate(kp, dim, "length") * apart).to(dtype)


def log_expected_likelihood(mean_p: Tensor, kappa_p: Tensor, mean_q: Tensor, kappa_q: Tensor) -> Tensor:
    """log int p q: how likely two uncertain points are the same one.

    It is log C(kp) + log C(kq) - log C(c) with c = |kp mean_p + kq mean_q|.

    Args:
        mean_p: (..., D), unit vectors.
        kappa_p: (...), concentrations.
        mean_q: (..., D).
        kappa_q: (...). All broadcast: with mean_p[:, None] and kappa_p[:, None] a matrix of all pairs comes out,
            which needs memory for all pairs times D.

    Example:
        >>> a, k = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([10.0])
        >>> log_expected_likelihood(a, k, a, k), log_expected_likelihood(a, k, -a, k)
        (tensor([-0.2284]), tensor([-16.5396]))
    """
    dim, kp, kq, dtype = _two(mean_p, kappa_p, mean_q, kappa_q)
    c, loss = _combined(mean_p, kp, mean_q, kq)
    h = evaluate(kp, dim, "scaled") + evaluate(kq, dim, "scaled") - evaluate(c, dim, "scaled")
    return (h - loss + log_uniform_density(dim)).to(dtype)


def bhattacharyya(mean_p: Tensor, kappa_p: Tensor, mean_q: Tensor, kappa_q: Tensor) -> Tensor:
    """Bhattacharyya distance -log int sqrt(p q), from 0 for equal distributions upwards.

    It is log C(c/2) - (log C(kp) + log C(kq))/2 with c = |kp mean_p + kq mean_q|.

    Args:
        mean_p: (..., D), unit vectors.
        kappa_p: (...), concentrations.
        mean_q: (..., D).
        kappa_q: (...). All broadcast.

    Example:
        >>> a, k = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([10.0])
        >>> bhattacharyya(a, k, a, k), bhattacharyya(a, k, -a, k)
        (tensor([0.]), tensor([7.0043]))
    """
    dim, kp, kq, dtype = _two(mean_p, kappa_p, mean_q, kappa_q)
    c, loss = _combined(mean_p, kp, mean_q, kq)
    h = evaluate(c / 2, dim, "scaled") - (evaluate(kp, dim, "scaled") + evaluate(kq, dim, "scaled")) / 2
    return (h + loss / 2).to(dtype)


def _two(
    mean_p: Tensor, kappa_p: Tensor, mean_q: Tensor, kappa_q: Tensor
) -> tuple[int, Tensor, Tensor, torch.dtype]:
    check_distribution(mean_p, kappa_p, "_p")
    check_distribution(mean_q, kappa_q, "_q")
    check_same_dim(mean_p=mean_p, mean_q=mean_q)
    check_broadcast(
        mean_p=mean_p.shape[:-1], kappa_p=kappa_p.shape, mean_q=mean_q.shape[:-1], kappa_q=kappa_q.shape
    )
    dtype = result_dtype(mean_p, kappa_p, mean_q, kappa_q)
    return mean_p.shape[-1], precise(kappa_p), precise(kappa_q), dtype


def _apart(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """1 - cos and 1 + cos of two unit vectors, the smaller from a difference or a sum and the larger from it.

    That the two belong together matters more than their last digits: inputs of length 1 + 1e-7 are not exactly unit.
    """
    dtype = result_dtype(one, other)
    one, other = one.to(dtype), other.to(dtype)
    less = precise(one - other).square().sum(-1) / 2
    more = precise(one + other).square().sum(-1) / 2
    near = less < more
    return torch.where(near, less, 2 - more), torch.where(near, 2 - less, more)


def _combined(mean_p: Tensor, kp: Tensor, mean_q: Tensor, kq: Tensor) -> tuple[Tensor, Tensor]:
    """c = |kp mean_p + kq mean_q|, and kp + kq - c without a subtraction."""
    less, more = _apart(mean_p, mean_q)
    squared = (kp - kq).square() + 2 * kp * kq * more
    # Where c is 0 so is its effect: A(0) = 0. The square root's infinite slope must not make that NaN.
    c = squared.clamp(min=1e-200).sqrt()
    return c, 2 * kp * kq * less / (kp + kq + c)
