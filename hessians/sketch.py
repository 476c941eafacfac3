"""An unbiased estimate of diag(J^T M J) from random signs.

For networks whose exact diagonal is too dear.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hessians.capture import Trace
from hessians.output_hessian import DenseSizeError, IndefiniteHessianError, OutputHessian


def random_signs(count: int, u: Tensor, generator: torch.Generator | None) -> Tensor:
    """``count`` vectors of random signs, (count, N, Z)."""
    device = u.device if generator is None else generator.device
    bits = torch.randint(0, 2, (count, *u.shape), generator=generator, device=device)
    return (2 * bits - 1).to(u)


def sketched_diagonal(
    trace: Trace, names: Sequence[str], hessian: OutputHessian, signs: Tensor
) -> dict[str, Tensor]:
    r"""The mean over sign vectors v (K, N, Z) of the products whose expectation is the diagonal.

        (J^T B v)^2 where M = B B^T, otherwise (J^T v) * (J^T M v).

    Both are exact, not only unbiased, once v runs through all sign vectors.
    """
    leaves = [trace.parameters[name] for name in names]
    result = {
        name: torch.zeros_like(leaf, requires_grad=False) for name, leaf in zip(names, leaves, strict=True)
    }
    root = _root(hessian, signs)
    left, right = (root, root) if root is not None else (signs, hessian.matmul(signs))
    for first, second in zip(left, right, strict=True):
        one = torch.autograd.grad(trace.u, leaves, first, retain_graph=True)
        other = one
        if root is None:
            other = torch.autograd.grad(trace.u, leaves, second, retain_graph=True)
        for name, mine, its in zip(names, one, other, strict=True):
            result[name].addcmul_(mine, its, value=1 / len(signs))
    return result


def _root(hessian: OutputHessian, signs: Tensor) -> Tensor | None:
    """B v for all sign vectors; None where M is indefinite, or so large that nobody knows."""
    try:
        return hessian.root(signs)
    except (IndefiniteHessianError, DenseSizeError):
        return None
