"""Cutting a module before its head, by its structure; nothing is copied but the containers on the way to the head."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from laplacian_metric.encoder.before_head import BeforeHead, check_output
from laplacian_metric.encoder.linear_layers import last_registered, last_run, linears, named_head, remedy
from laplacian_metric.encoder.trial import is_raw_or_unit, trial


def cut_module(module: nn.Module, name: str | None, example_inputs: Any) -> tuple[nn.Module, nn.Linear]:
    """The backbone and the head of a module; see `Encoder.from_module`."""
    _check_module(module)
    guessed = name is None and example_inputs is None
    if name is None:
        name = last_registered(module) if example_inputs is None else last_run(module, example_inputs)
    head = named_head(module, name, guessed)
    if head is module:
        return nn.Identity(), head
    chain = _cut_chain(module, name.split("."))
    if chain is None:
        backbone: nn.Module = BeforeHead(module, name)
    elif (problem := _problem_after(chain[1], head)) is not None:
        raise ValueError(f"{problem}: {remedy(module, name)}")
    else:
        backbone = chain[0]
    if example_inputs is not None:
        if chain is None:
            trial(backbone, example_inputs)  # its first call checks it
        else:
            _verify_chain(head, module, name, example_inputs)
    return backbone, head


def _check_module(module: nn.Module) -> None:
    kind = type(module).__name__
    if not isinstance(module, nn.Module):
        raise TypeError(f"module is a {kind}, a torch.nn.Module is needed")
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(
            "module is a TorchScript module, which cannot be cut: pass the Python module it was made of"
        )
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise TypeError(f"module is wrapped in {kind}: pass module.module, and wrap the encoder")
    if hasattr(module, "_orig_mod"):
        raise TypeError("module was compiled: pass module._orig_mod, and compile the encoder")
    if not linears(module):
        raise ValueError(
            f"{kind} has no torch.nn.Linear that could be its head: Encoder.with_head(module, example_inputs) puts one "
            "on top"
        )


# --- chains: modules one after the other ---


def _cut_chain(
    module: nn.Module, path: list[str]
) -> tuple[nn.Sequential, list[tuple[str, nn.Module]]] | None:
    """What is before and after the head, if the way to it leads through plain sequences only."""
    if (
        type(module).forward is not nn.Sequential.forward
        or module._forward_hooks
        or module._forward_pre_hooks
    ):
        return None
    names = list(module._modules)
    at = names.index(path[0])
    children = [(name, module.get_submodule(name)) for name in names]
    inner: tuple[nn.Sequential, list[tuple[str, nn.Module]]] | None = (nn.Sequential(), [])
    if len(path) > 1:
        inner = _cut_chain(children[at][1], path[1:])
        if inner is None:
            return None
    assert inner is not None
    kept = children[:at] + ([(path[0], inner[0])] if len(path) > 1 else [])
    backbone = nn.Sequential(OrderedDict(kept))
    backbone.training = module.training
    return backbone, inner[1] + children[at + 1 :]


def _problem_after(after: list[tuple[str, nn.Module]], head: nn.Linear) -> str | None:
    """What the modules after the head do beyond the l2 norm, found out by trying them."""
    if not after:
        return None
    for name, module in after:
        kind = type(module).__name__
        if isinstance(module, _DropoutNd) or any(True for _ in _tensors(module)):
            return f"{name} ({kind}) comes after the head and is not the l2 norm"
    weight = head.weight
    probe = torch.linspace(-10, 20, 2 * head.out_features, dtype=weight.dtype, device=weight.device)
    probe = probe.reshape(2, head.out_features)
    output = probe.clone()  # some modules work in place
    with torch.no_grad():
        for _, module in after:
            output = module(output)
    if is_raw_or_unit(output, probe):
        return None
    listed = ", ".join(f"{name} ({type(module).__name__})" for name, module in after)
    return f"what comes after the head, {listed}, is not the l2 norm"


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _verify_chain(head: nn.Linear, module: nn.Module, name: str, inputs: Any) -> None:
    """Run a chain as it is, and refuse it if its output is not that of the head."""
    outputs: list[Tensor] = []
    handle = head.register_forward_hook(lambda _, __, output: outputs.append(output.clone()))
    try:
        output = trial(module, inputs)
    finally:
        handle.remove()
    check_output(module, name, output, outputs[-1])
