"""The linear layers of a module: which one is the head, and how errors list them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from laplacian_metric.encoder.encoder import arguments

LISTED = 20


class StandIn(nn.Module):
    """Takes the place of a linear layer, which it holds without having it as a submodule."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layers = (layer,)


def linears(module: nn.Module) -> dict[str, nn.Linear]:
    """All linear layers by name; one that has several names is there several times."""
    named = module.named_modules(remove_duplicate=False)
    layers = ((name, layer.layers[0] if isinstance(layer, StandIn) else layer) for name, layer in named)
    return {name: layer for name, layer in layers if isinstance(layer, nn.Linear)}


def list_linears(module: nn.Module) -> str:
    """The linear layers as an error names them."""
    lines = [
        f"{name or '(itself)'} ({x.in_features} -> {x.out_features})" for name, x in linears(module).items()
    ]
    more = f" and {len(lines) - LISTED} before them" if len(lines) > LISTED else ""
    return f"its linear layers are {', '.join(lines[-LISTED:])}{more}"


def ask(module: nn.Module) -> str:
    """What to do where a layer is not the head."""
    return (
        f"name the right one, from_module(module, head=...), or put a head on top with Encoder.with_head; "
        f"{list_linears(module)}"
    )


def remedy(module: nn.Module, name: str) -> str:
    """The same, where the layer may have been named."""
    return f"{name!r} is not the head of {type(module).__name__}. If another layer is, {ask(module)}"


def last_registered(module: nn.Module) -> str:
    """The name of the linear layer that comes last in the module's own order."""
    return list(linears(module))[-1]


def trial(module: nn.Module, inputs: Any) -> Any:
    """What a module returns for a tensor, a tuple of positional or a dictionary of named arguments.

    Nothing is left of the call: neither running statistics nor random numbers change.
    """
    args, kwargs = arguments((inputs,), {})
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    devices = {x.device.index for x in module.parameters() if x.device.type == "cuda"}
    with torch.no_grad(), torch.random.fork_rng(devices=sorted(devices)):
        return functional_call(module, buffers, args, kwargs)


def last_run(module: nn.Module, example_inputs: Any) -> str:
    """The name of the linear layer that is called last."""
    called: list[nn.Module] = []

    def note(layer: nn.Module, _: tuple[Any, ...], __: Any) -> None:
        called.append(layer)

    by_name = linears(module)
    handles = [layer.register_forward_hook(note) for layer in set(by_name.values())]
    try:
        trial(module, example_inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise ValueError(f"{type(module).__name__} ran none of its linear layers; {list_linears(module)}")
    return next(name for name, layer in by_name.items() if layer is called[-1])


def named_head(module: nn.Module, name: str, guessed: bool) -> nn.Linear:
    """The linear layer of a name; refused where it cannot be the head, or where that would be too bold a guess."""
    by_name = linears(module)
    kind = type(module).__name__
    if name not in by_name:
        try:
            class_name = type(module.get_submodule(name)).__name__
        except AttributeError:
            raise ValueError(f"{kind} has no layer {name!r}; {list_linears(module)}") from None
        raise TypeError(
            f"{name} of {kind} is a {class_name}, a torch.nn.Linear is needed; {list_linears(module)}"
        )
    head = by_name[name]
    names = [other for other, layer in by_name.items() if layer is head]
    if len(names) > 1:
        raise ValueError(
            f"the linear layer {' = '.join(names)} of {kind} is used more than once: {ask(module)}"
        )
    parts = name.split(".")
    for depth in range(len(parts)):
        above = module.get_submodule(".".join(parts[:depth]))
        # Torch's own uses the weight of its last layer without calling it.
        known = isinstance(above, nn.MultiheadAttention)
        if depth and (known or (guessed and "attention" in type(above).__name__.lower())):
            raise ValueError(
                f"{name} of {kind} belongs to an attention layer ({type(above).__name__}), it is not the head: "
                f"{ask(module)}"
            )
    return head
