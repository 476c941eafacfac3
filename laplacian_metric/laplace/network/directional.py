"""f(theta) + J deviation: a network's outputs where its linearisation around theta is followed in one direction."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel


def by_forward_derivative(
    forward: Callable[[dict[str, Tensor]], Tensor], theta: dict[str, Tensor], deviation: Mapping[str, Tensor]
) -> Tensor:
    """By one pass with forward derivatives; a NotImplementedError where an operation has none."""
    # The other kernels of attention have no forward derivative.
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        # About torch's own forward derivatives, which it compiles when they are first needed.
        warnings.filterwarnings("ignore", ".*torch.jit.script", FutureWarning)
        primal_and_tangent: Any = jvp(forward, (theta,), (dict(deviation),))
    u: Tensor = primal_and_tangent[0] + primal_and_tangent[1]
    return u.detach()


def by_two_backward_passes(
    forward: Callable[[dict[str, Tensor]], Tensor], theta: dict[str, Tensor], deviation: Mapping[str, Tensor]
) -> Tensor:
    """J deviation is the derivative of (J^T v) . deviation, which is linear in v, with respect to v."""
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        leaves = {name: values.detach().requires_grad_() for name, values in theta.items()}
        u = forward(leaves)
        v = torch.zeros_like(u, requires_grad=True)
        gradients = torch.autograd.grad(u, list(leaves.values()), v, create_graph=True, allow_unused=True)
        inner = [
            (gradient * deviation[name]).sum()
            for name, gradient in zip(leaves, gradients, strict=True)
            if gradient is not None
        ]
        (change,) = torch.autograd.grad(torch.stack(inner).sum(), v)
    return (u + change).detach()
