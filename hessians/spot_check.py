"""The rules compared with autograd for one random column: what a rule takes for granted may not hold in a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hessians.backward.rules import Call, Layer
from hessians.capture import Trace


def failing_parameters(trace: Trace, layers: Sequence[Layer]) -> set[str]:
    """Names of the parameters for which sum_n j_n of their rule is not the gradient that autograd finds.

    The column is random for half of the images and zero for the others, so that a cotangent that is not zero where
    it belongs to one of the others gives away a wrong assignment of rows to images as well.
    """
    edges = [call.edge for layer in layers for call in layer.calls]
    names = [name for layer in layers for name in layer.names.values()]
    if not edges:
        return set()
    column, silent = _random_column(trace.u)
    leaves = [trace.parameters[name] for name in names]
    targets: list[Any] = [*edges, *leaves]
    gradients = torch.autograd.grad(trace.u, targets, column, retain_graph=True, allow_unused=True)
    cotangents = iter(gradients[: len(edges)])
    expected = dict(zip(names, gradients[len(edges) :], strict=True))
    failing: set[str] = set()
    for layer in layers:
        layer_cotangents = [_given(next(cotangents))[None] for _ in layer.calls]
        if not all(
            _settle_layout(call, mine, silent)
            for call, mine in zip(layer.calls, layer_cotangents, strict=True)
        ):
            failing.update(layer.names.values())
            continue
        split = [
            call.layout.split_columns(mine) for call, mine in zip(layer.calls, layer_cotangents, strict=True)
        ]
        rounding = sum(_rounding(call, mine) for call, mine in zip(layer.calls, split, strict=True))
        for own, gradient in _gradients(layer, split).items():
            if not _agree(gradient, expected[layer.names[own]], rounding):
                failing.add(layer.names[own])
    return failing


def _settle_layout(call: Call, cotangents: Tensor, silent: Tensor) -> bool:
    """Keep the layouts by which nothing comes back to the silent images; False if there is none."""
    call.layouts = [
        layout for layout in call.layouts if not bool(layout.split_columns(cotangents)[silent].any())
    ]
    return bool(call.layouts)


def _random_column(u: Tensor) -> tuple[Tensor, Tensor]:
    """A cotangent (N, Z) of u, and which images it is zero for (N,); the global generator is left as it was."""
    generator = torch.Generator().manual_seed(0)
    column = torch.randn(u.shape, generator=generator, dtype=torch.float64)
    silent = torch.zeros(len(u), dtype=torch.bool)
    silent[torch.randperm(len(u), generator=generator)[: len(u) // 2]] = True
    column[silent] = 0
    return column.to(u), silent.to(u.device)


def _given(gradient: Tensor | None) -> Tensor:
    assert gradient is not None, "only calls that the embeddings depend on are kept"
    return gradient


def _gradients(layer: Layer, cotangents: Sequence[Tensor]) -> dict[str, Tensor | None]:
    try:
        return dict(layer.rule.gradient(layer, cotangents))
    except RuntimeError:
        # A module that cannot be run by itself: autograd of the whole network is left, and says what is wrong if
        # that fails too.
        return dict.fromkeys(layer.names)


def _rounding(call: Call, cotangents: Tensor) -> float:
    """What gradients that are zero by cancellation may differ from zero by."""
    layer_input = call.args[0] if call.args else call.kwargs.get("input")
    largest = 1.0
    if isinstance(layer_input, Tensor) and layer_input.is_floating_point() and layer_input.numel():
        largest = max(1.0, float(layer_input.detach().abs().max()))
    digits = 1e-13 if cotangents.dtype == torch.float64 else 1e-5
    return digits * largest * float(cotangents.abs().sum())


def _agree(actual: Tensor | None, expected: Tensor | None, rounding: float) -> bool:
    if actual is None:
        return False
    if expected is None:
        expected = torch.zeros_like(actual)
    relative = 1e-8 if actual.dtype == torch.float64 else 5e-3
    tolerance = relative * float(expected.abs().max()) + rounding if expected.numel() else 0.0
    return actual.shape == expected.shape and bool(((actual - expected).abs() <= tolerance).all())
