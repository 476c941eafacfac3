"""The normaliser of the von Mises-Fisher distribution and its derivatives as differentiable functions of torch.

The arithmetic, and the equations, are in `laplacian_metric.vmf.bessel_expansion`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplacian_metric.vmf import bessel_expansion
from laplacian_metric.vmf.bessel_expansion import Expansion, log_uniform_density
from laplacian_metric.vmf.checks import LARGEST_KAPPA, check_dim, check_kappa, precise, result_dtype


def expand(kappa: Tensor, dim: int) -> Expansion[Tensor]:
    """Everything at once for ``kappa`` of any shape; no checks, no gradients."""
    return bessel_expansion.expand(torch, kappa, dim)


class _Differentiable(torch.autograd.Function):
    """One field of ``Expansion``, whose derivative is made of another one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kappa: Tensor, dim: int, field: str) -> Tensor:
        return getattr(expand(kappa, dim), field)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, str], output: Tensor) -> None:
        kappa, ctx.dim, ctx.field = inputs
        ctx.save_for_backward(kappa)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (kappa,) = ctx.saved_tensors
        (gradient,) = grad_outputs
        if ctx.field == "relative":
            derivative = -evaluate(kappa, ctx.dim, "length")
        elif ctx.field == "scaled":
            derivative = evaluate(kappa, ctx.dim, "gap")
        elif ctx.field == "length":
            derivative = evaluate(kappa, ctx.dim, "slope")
        elif ctx.field == "gap":
            derivative = -evaluate(kappa, ctx.dim, "slope")
        elif ctx.field == "entropy":
            derivative = -kappa * evaluate(kappa, ctx.dim, "slope")
        else:
            raise NotImplementedError(
                "the second derivative of the mean resultant length (the third of the log normaliser) is not available"
            )
        return gradient * derivative, None, None


def evaluate(kappa: Tensor, dim: int, field: str) -> Tensor:
    """A field of ``Expansion`` as a differentiable function of kappa; no checks, the dtype of kappa."""
    return _Differentiable.apply(kappa, dim, field)  # type: ignore[no-any-return]


def _checked(kappa: Tensor, dim: int, field: str) -> Tensor:
    check_kappa("kappa", kappa)
    check_dim(dim)
    return evaluate(precise(kappa), dim, field)


def log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    """log C_D(kappa), the logarithm of what the density exp(kappa mean . x) is multiplied with.

    In many dimensions most of its digits are those of log C_D(0): use ``relative_log_normalizer`` for differences.

    Args:
        kappa: concentrations of any shape, at least 0.
        dim: D, the dimension of the space around the sphere.

    Example:
        >>> log_normalizer(torch.tensor([0.0, 10.0]), 3)
        tensor([-2.5310, -9.5353])
    """
    return (_checked(kappa, dim, "relative") + log_uniform_density(dim)).to(result_dtype(kappa))


def relative_log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    """g = log C_D(kappa) - log C_D(0), of the shape of kappa; dg/dkappa = -A, and twice differentiable.

    Example:
        >>> relative_log_normalizer(torch.tensor([1.0, 10.0]), 3)
        tensor([-0.1614, -7.0043])
    """
    return _checked(kappa, dim, "relative").to(result_dtype(kappa))


def length_and_variance(kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """A_D(kappa) = |E x|, and the trace of the covariance 1 - A^2 without a subtraction from 1; in float64.

    The latter keeps all its digits where the length rounds to 1. What knows everything may have kappa infinite.

    Example:
        >>> length_and_variance(torch.tensor([10.0, 1e20, torch.inf]), 3)[1]
        tensor([ 1.9000e-01,  2.0000e-20, 2.0000e-100], dtype=torch.float64)
    """
    kappa = precise(kappa).clamp(max=LARGEST_KAPPA)
    check_kappa("kappa", kappa)
    check_dim(dim)
    expansion = expand(kappa, dim)
    return expansion.length, expansion.gap * (1 + expansion.length)


def mean_resultant_length(kappa: Tensor, dim: int) -> Tensor:
    """A_D(kappa) = |E x|, from 0 for the uniform distribution to 1 for a point; of the shape of kappa.

    Differentiable once: a second derivative is refused.

    Example:
        >>> mean_resultant_length(torch.tensor([0.0, 10.0]), 3)  # coth(kappa) - 1/kappa
        tensor([0.0000, 0.9000])
    """
    return _checked(kappa, dim, "length").to(result_dtype(kappa))
