"""The last linear layer of a model, and whether what comes out of the model is what comes out of that layer."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hessians.checks import check_finite
from laplacian_metric.core.modes import evaluating

# Relative to the largest entry: what rounding, also that of a reduced matrix product, leaves of an equality.
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3}

Inputs = dict[str, list[Tensor]]


def find_last_layer(model: nn.Module, images: Tensor, name: str | None = None) -> str:
    """The name of the linear layer whose output is the model's; the model is left as it was.

    Args:
        model: ``model(images)`` are raw embeddings u (N, Z).
        images: (N, ...), a few of them.
        name: the layer, where it is known; then it is only checked.

    Example:
        >>> find_last_layer(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3))
        '2'
    """
    layers = {path: module for path, module in model.named_modules() if isinstance(module, nn.Linear)}
    if name is not None and name not in layers:
        known = ", ".join(map(repr, layers)) or "none"
        raise ValueError(f"the model has no linear layer {name!r}; its linear layers are {known}")
    inputs: Inputs = {path: [] for path in layers}
    with ExitStack() as hooks:
        for path, layer in layers.items():
            handle = layer.register_forward_hook(partial(_record, inputs[path]))
            hooks.callback(handle.remove)
        u = embeddings(model, images)
    for path in reversed(layers) if name is None else [name]:
        if inputs[path] and _gives(layers[path], inputs[path][-1], u):
            _check_layer(path, layers[path], len(inputs[path]))
            return path
    raise ValueError(_not_raw(u, name))


def embeddings(model: nn.Module, images: Tensor) -> Tensor:
    """What the model makes of images in evaluation mode, (N, Z)."""
    parameter = next(model.parameters(), None)
    with evaluating(model):
        u = model(images if parameter is None else images.to(parameter.device))
    if not isinstance(u, Tensor) or u.ndim != 2 or len(u) != len(images):
        description = f"shape {tuple(u.shape)}" if isinstance(u, Tensor) else f"type {type(u).__name__}"
        raise ValueError(
            f"for {len(images)} images the model returns something of {description}, embeddings ({len(images)}, Z) are "
            "needed: wrap it in a module that returns them"
        )
    check_finite("the model's output", u)
    return u


def is_normalised(u: Tensor) -> bool:
    """Whether several embeddings all have norm 1."""
    off = (torch.linalg.vector_norm(u.double(), dim=1) - 1).abs()
    return len(u) > 1 and bool((off < _TOLERANCE.get(u.dtype, 1e-2)).all())


def _record(inputs: list[Tensor], _: nn.Module, arguments: tuple[Any, ...], __: Any) -> None:
    inputs.extend(x.detach().clone() for x in arguments[:1])


def _gives(layer: nn.Linear, features: Tensor, u: Tensor) -> bool:
    """Whether the embeddings are W h + b."""
    if features.ndim != 2 or u.shape != (len(features), layer.out_features):
        return False
    with torch.no_grad():
        expected = F.linear(features, layer.weight, layer.bias)
    tolerance = _TOLERANCE.get(u.dtype, 5e-2) * float(expected.abs().max()) if len(u) else 0.0
    return bool(((expected - u).abs() <= tolerance).all())


def _check_layer(name: str, layer: nn.Linear, calls: int) -> None:
    own = [parameter for parameter, _ in layer.named_parameters()]
    if own not in (["weight"], ["weight", "bias"]):
        raise ValueError(
            f"the last layer {name!r} has the parameters {', '.join(own)}, a plain weight and bias are needed: remove "
            "its parametrization first (torch.nn.utils.parametrize.remove_parametrizations)"
        )
    if calls > 1:
        raise ValueError(
            f"the last layer {name!r} is called {calls} times in one pass: its curvature is that of a last layer only "
            "if nothing else uses it"
        )


def _not_raw(u: Tensor, name: str | None) -> str:
    remedy = "let the model return the raw output u = W h + b of its last linear layer"
    if is_normalised(u):
        return (
            "the model returns vectors of norm 1, and laplace-torch would take the Jacobian of its last linear layer "
            f"for that of the normalised output: {remedy}; the loss puts it on the sphere by itself"
        )
    which = "any of its linear layers" if name is None else f"its layer {name!r}"
    return f"what the model returns is not the output of {which}: {remedy}"
