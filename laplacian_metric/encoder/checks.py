"""Checks of what an encoder is made of and is called with, and the trial pass that they need."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy


def arguments(inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the backbone is called with: a single tuple, dictionary or list of tensors is unpacked."""
    if len(inputs) == 1 and not named:
        (entry,) = inputs
        if isinstance(entry, dict):
            return (), dict(entry)
        if isinstance(entry, tuple | list) and any(isinstance(x, Tensor) for x in entry):
            return tuple(entry), {}
    return inputs, named


def trial(module: nn.Module, inputs: Any) -> Any:
    """What a module returns for a tensor, a tuple of positional or a dictionary of named arguments.

    Nothing is left of the call: neither running statistics nor random numbers change.
    """
    args, kwargs = arguments((inputs,), {})
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    devices = {x.device.index for x in module.parameters() if x.device.type == "cuda"}
    with torch.no_grad(), torch.random.fork_rng(devices=sorted(devices)):
        return functional_call(module, buffers, args, kwargs)


def is_raw_or_unit(output: Any, raw: Tensor) -> bool:
    if not isinstance(output, Tensor) or output.shape != raw.shape or raw.ndim != 2:
        return False
    # As many digits as the coarser of the two has: a norm may be computed in fewer.
    eps = max(torch.finfo(x.dtype).eps if x.is_floating_point() else 1.0 for x in (output, raw))
    output, raw = output.double(), raw.double()
    for expected in (raw, F.normalize(raw, dim=1)):
        tolerance = 100 * eps * (1 + expected.abs().amax(dim=1, keepdim=True))
        if bool(((output - expected).abs() <= tolerance).all()):
            return True
    return False


def is_tracing() -> bool:
    """Whether a graph is being made of what runs, so that nothing may depend on values."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def check_head(head: nn.Module, backbone: nn.Module) -> None:
    """Refuse a head whose weight is not a plain parameter of its own that is multiplied with the features."""
    kind = type(head).__name__
    if not isinstance(head, nn.Linear):
        raise TypeError(
            f"head is a {kind}, a torch.nn.Linear is needed, which the posterior is over: put whatever else there is "
            "into the backbone, or use Encoder.with_head(backbone, example_inputs)"
        )
    if not isinstance(head._parameters.get("weight"), nn.Parameter):
        raise ValueError(
            f"the weight of head ({kind}) is not a parameter but computed from others, as weight_norm and "
            'spectral_norm do: torch.nn.utils.parametrize.remove_parametrizations(head, "weight"), or '
            "torch.nn.utils.remove_weight_norm(head), makes it one"
        )
    if is_lazy(head.weight):
        raise ValueError(f"head ({kind}) has no shape yet: call the model once before")
    names = _shared_names(head, backbone)
    if names:
        raise ValueError(
            f"head shares its weights with the backbone ({', '.join(names)}): weights drawn from a posterior over the "
            "head would change both. Use Encoder.from_module(model) to cut a model, or give the head a copy: "
            "head.weight = torch.nn.Parameter(head.weight.detach().clone())"
        )
    if type(head).forward is not nn.Linear.forward or head._forward_hooks or head._forward_pre_hooks:
        _check_product(head)


def _shared_names(head: nn.Linear, backbone: nn.Module) -> list[str]:
    own = {
        tensor.untyped_storage().data_ptr()
        for tensor in (head.weight, head.bias)
        if tensor is not None and tensor.numel() and not tensor.is_meta
    }
    return [
        name
        for name, tensor in backbone.named_parameters()
        if not is_lazy(tensor)
        and not tensor.is_meta
        and tensor.numel()
        and tensor.untyped_storage().data_ptr() in own
    ]


def _check_product(head: nn.Linear) -> None:
    """A layer with a forward pass or hooks of its own may do more than multiply: try it."""
    weight = head.weight
    probe = torch.linspace(-1, 1, 2 * head.in_features, dtype=weight.dtype, device=weight.device)
    probe = probe.reshape(2, head.in_features)
    with torch.no_grad():
        output = head(probe)
        right = F.linear(probe, head.weight, head.bias)
    tolerance = 100 * torch.finfo(weight.dtype).eps * float(right.abs().max() + 1)
    if output.shape != right.shape or not bool(((output - right).abs() <= tolerance).all()):
        raise ValueError(
            f"head ({type(head).__name__}) does not compute weight @ h + bias, as a posterior over its weight assumes: "
            "remove its hooks, or merge what it adds into the weight of a torch.nn.Linear"
        )


def check_inputs(args: tuple[Any, ...], kwargs: dict[str, Any], backbone: nn.Module) -> None:
    """Refuse whole numbers where an image is expected: a single tensor, and no embedding layer to look it up in."""
    if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
        return
    (images,) = args
    if images.is_floating_point() or images.is_complex():
        return
    if not any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in backbone.modules()):
        raise TypeError(f"images has dtype {images.dtype}: convert to floats in [0, 1] first")


def check_features(
    features: Any, args: tuple[Any, ...], kwargs: dict[str, Any], backbone: nn.Module, head: nn.Linear
) -> None:
    """Refuse what is not one row of ``head.in_features`` floats for each image."""
    kind = type(backbone).__name__
    needed = f"the head takes (N, {head.in_features})"
    if not isinstance(features, Tensor):
        raise TypeError(
            f"backbone ({kind}) returns a {type(features).__name__}, {needed} as one tensor: wrap it in a module that "
            "returns that"
        )
    if not features.is_floating_point():
        raise TypeError(f"backbone ({kind}) returns dtype {features.dtype}, floats are needed")
    if features.ndim != 2 or features.shape[1] != head.in_features:
        remedy = " Pool and flatten it first." if features.ndim > 2 else ""
        raise ValueError(f"backbone ({kind}) returns shape {tuple(features.shape)}, {needed}.{remedy}")
    if is_tracing():  # where the number of rows is a symbol, which a comparison would turn into a number
        return
    lengths = {len(x) for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.ndim}
    if lengths and len(features) not in lengths:
        raise ValueError(
            f"backbone ({kind}) returns {len(features)} rows of features for {max(lengths)} inputs: one row for each "
            "is needed"
        )
