"""diag(J^T M J) of small networks from the definition: the whole Jacobian, the whole output Hessian, one product."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessians import ContrastiveLoss, Pairs
from hessians.network import ggn_diagonal

LABELS = [0, 1, 0, 2, 1, 0]
VARIANTS = [
    (distance, normalize, approximation)
    for distance, normalize in (("arccos", True), ("euclidean", True), ("euclidean", False))
    for approximation in ("full", "fixed", "positive", "clipped")
]


class Reference(NamedTuple):
    """The diagonal of one parameter, and the sum of the absolute values of what adds up to it."""

    diagonal: Tensor
    absolute: Tensor


def make_loss(
    distance: str = "arccos", normalize: bool = True, margin: float | None = None, power: int = 2
) -> ContrastiveLoss:
    """A margin at which some negatives are active and some are not."""
    chosen = margin if margin is not None else (1.3 if normalize else 2.0)
    return ContrastiveLoss(chosen, distance, negative_weight=0.4, normalize=normalize, power=power)


def call(model: nn.Module, parameters: dict[str, Tensor], inputs: Any) -> Tensor:
    if isinstance(inputs, dict):
        return functional_call(model, parameters, (), inputs)
    return functional_call(model, parameters, inputs)


def jacobians(model: nn.Module, inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """u (N, Z) and the Jacobian (N, Z, P) of every parameter."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in model.named_parameters()}
    u = call(model, leaves, inputs)
    rows = [
        torch.autograd.grad(
            entry, list(leaves.values()), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for entry in u.flatten()
    ]
    return u.detach(), {
        name: torch.stack([row[at].flatten() for row in rows]).view(*u.shape, -1)
        for at, name in enumerate(leaves)
    }


def brute_force(
    model: nn.Module, inputs: Any, pairs: Pairs, loss: ContrastiveLoss, approximation: str
) -> dict[str, Reference]:
    """The diagonal of every parameter."""
    u, by_parameter = jacobians(model, inputs)
    matrix = loss.output_hessian(u, pairs, approximation).dense().flatten(2).flatten(0, 1)
    shapes = {name: x.shape for name, x in model.named_parameters()}
    result = {}
    for name, jacobian in by_parameter.items():
        j = jacobian.flatten(0, 1)
        diagonal = ((matrix @ j) * j).sum(0).view(shapes[name])
        absolute = ((matrix.abs() @ j.abs()) * j.abs()).sum(0).view(shapes[name])
        result[name] = Reference(diagonal, absolute)
    return result


def assert_exact(
    diagonals: dict[str, Tensor], expected: dict[str, Reference], tolerance: float = 1e-10
) -> None:
    """Every entry to ``tolerance`` of the sum of its absolute contributions."""
    assert list(diagonals) == [name for name in expected if name in diagonals]
    for name, values in diagonals.items():
        diagonal, absolute = expected[name]
        assert values.shape == diagonal.shape, name
        assert not values.requires_grad
        # Gradients that cancel to zero (the bias of attention's keys) are rounding in the reference too.
        rounding = 1e-20 * absolute.max() if absolute.numel() else 0.0
        wrong = (values - diagonal).abs() > tolerance * absolute + rounding
        assert not wrong.any(), f"{name}: {values[wrong][:3]} for {diagonal[wrong][:3]}"


def check(
    model: nn.Module,
    inputs: Any,
    *,
    distance: str = "arccos",
    normalize: bool = True,
    approximation: str = "full",
    labels: list[int] | None = None,
    power: int = 2,
    **options: Any,
) -> dict[str, Tensor]:
    """Compare ``ggn_diagonal`` with the definition, and return it."""
    pairs = Pairs.from_labels(LABELS if labels is None else labels)
    loss = make_loss(distance, normalize, power=power)
    diagonals = ggn_diagonal(model, inputs, pairs, loss, approximation, **options)
    assert_exact(diagonals, brute_force(model, inputs, pairs, loss, approximation))
    return diagonals


def fallbacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about parameters that were left to autograd."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]


def left_to_autograd(
    caplog: pytest.LogCaptureFixture, model: nn.Module, inputs: Any, **options: Any
) -> list[str]:
    """Compare with the definition, and return what was logged about parameters that were left to autograd."""
    with caplog.at_level(logging.INFO, "hessians"):
        check(model, inputs, **options)
    return fallbacks(caplog)


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random parameters and running statistics in float64, in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(spread + (1.0 if parameter.ndim == 1 else 0.0))
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator, dtype=torch.float64))
            elif name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator, dtype=torch.float64))
    return model


def random_input(*shape: int, seed: int = 1) -> Tensor:
    """Normal random numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Readout(nn.Module):
    """A layer and a fixed readout, so that every entry of the layer's output matters, each differently."""

    def __init__(self, layer: nn.Module, sequence_first: bool = False, dim: int = 3) -> None:
        super().__init__()
        self.layer = layer
        self.sequence_first = sequence_first
        self.dim = dim

    def forward(self, *inputs: Tensor, **named: Any) -> Tensor:
        out = self.layer(*inputs, **named)
        out = out[0] if isinstance(out, tuple) else out
        out = out.movedim(1, 0) if self.sequence_first else out
        flat = torch.tanh(out.flatten(1))
        readout = (
            torch.linspace(-1, 1, flat.shape[1] * self.dim, dtype=flat.dtype).view(-1, self.dim).mul(7).cos()
        )
        return flat @ readout / flat.shape[1] ** 0.5
