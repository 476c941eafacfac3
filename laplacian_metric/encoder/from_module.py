"""Cutting a module before its head, by its structure; nothing is copied but the containers on the way to the head."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from laplacian_metric.encoder.encoder import is_tracing
from laplacian_metric.encoder.linear_layers import (
    StandIn,
    ask,
    last_registered,
    last_run,
    linears,
    named_head,
    remedy,
    trial,
)


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
    if _is_raw_or_unit(output, probe):
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


# The first call of one thread at a time: its tap notes what passes.
_FIRST_CALLS = threading.RLock()


class _Reached(Exception):  # noqa: N818 - it is no error, and never seen outside of this file
    """Carries what goes into the head out of a module's forward pass."""

    def __init__(self, features: Any) -> None:
        super().__init__("the head was reached")
        self.features = features


class Tap(StandIn):
    """Stands in the place of the head, and asks the `BeforeHead` that it belongs to what to do."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__(head)
        self.calls: list[tuple[Any, Any]] | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "layers":  # while it is copied, there is nothing yet to ask
            raise AttributeError(name)
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.layers[0], name)  # models read the dtype of the head's weight, for instance

    def forward(self, features: Any) -> Any:
        if self.calls is None:
            raise _Reached(features)
        result = self.layers[0](features)
        self.calls.append((features, result.detach().clone()))  # what follows may work in place
        return result


class BeforeHead(nn.Module):
    """A module up to what goes into one of its linear layers.

    The modules on the way to the head are shallow copies, so that the original keeps its head; parameters, buffers and
    all other modules are the original's own. The first call runs the module to its end, and checks that the head's
    output is what comes out of it.
    """

    def __init__(self, module: nn.Module, head: str) -> None:
        super().__init__()
        tapped = module.get_submodule(head)
        assert isinstance(tapped, nn.Linear)
        self.tap = (Tap(tapped),)  # a tuple, as it has its place inside of the module
        self.module = _with_replaced(module, head.split("."), self.tap[0])
        self.head_name = head
        self.verified = False
        self.training = module.training
        self.tap[0].training = tapped.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return self._to_the_end(args, kwargs, check=False)
        if not self.verified:
            with _FIRST_CALLS:
                if not self.verified:
                    return self._to_the_end(args, kwargs, check=True)
        try:
            self.module(*args, **kwargs)
        except _Reached as reached:
            return reached.features
        raise ValueError(f"{self._label()} was not reached by this input")

    def _to_the_end(self, args: tuple[Any, ...], kwargs: dict[str, Any], check: bool) -> Any:
        """Run the module as it is: the first time, and in a graph, which exceptions are no part of."""
        (tap,) = self.tap
        calls: list[tuple[Any, Any]] = []
        tap.calls = calls
        try:
            output = self.module(*args, **kwargs)
        finally:
            tap.calls = None
        if len(calls) != 1:
            times = f"ran {len(calls)} times" if calls else "did not run as a module"
            raise ValueError(f"{self._label()} {times}, once is needed: {ask(self.module)}")
        features, raw = calls[0]
        if check:
            self.verified = check_output(self.module, self.head_name, output, raw)
        return features

    def _label(self) -> str:
        return f"the head {self.head_name!r} of {type(self.module).__name__}"

    def extra_repr(self) -> str:
        return f"head={self.head_name!r}"


def _with_replaced(module: nn.Module, path: list[str], replacement: nn.Module) -> nn.Module:
    """A shallow copy of the modules along a path, with another one at its end."""
    replaced = copy.copy(module)
    # Not copied: the dictionaries of parameters and buffers, so that both modules see what is put into them.
    vars(replaced)["_modules"] = dict(module._modules)
    child = module._modules[path[0]]
    assert child is not None
    replaced._modules[path[0]] = (
        _with_replaced(child, path[1:], replacement) if len(path) > 1 else replacement
    )
    return replaced


def check_output(module: nn.Module, name: str, output: Any, raw: Any) -> bool:
    """Refuse an output that is not the head's; False where there is nothing to look at."""
    kind = type(module).__name__
    if not isinstance(output, Tensor):
        raise TypeError(
            f"{kind} returns a {type(output).__name__}, its embeddings (N, Z) as one tensor are needed: wrap it in a "
            "module that returns them, or name the layer and cut before it yourself, Encoder(backbone, head)"
        )
    try:
        same = _is_raw_or_unit(output.detach(), raw)
    except RuntimeError:  # inside vmap, where no value may be looked at
        return False
    if not same:
        raise ValueError(
            f"the output of {kind}, of shape {tuple(output.shape)}, is neither the output of {name!r}, of shape "
            f"{tuple(raw.shape)}, nor its l2 norm: {remedy(module, name)}"
        )
    return bool(raw.numel())


def _is_raw_or_unit(output: Any, raw: Tensor) -> bool:
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
