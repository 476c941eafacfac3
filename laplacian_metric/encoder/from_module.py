"""Cutting a module before its head, by its structure; nothing is copied but the containers on the way to the head."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

from laplacian_metric.encoder.checks import is_tracing

LISTED = 20


def cut_module(module: nn.Module, name: str | None, example_inputs: Any) -> tuple[nn.Module, nn.Linear]:
    """The backbone and the head of a module; see `Encoder.from_module`."""
    _check_module(module)
    if name is None:
        name = _last_registered(module) if example_inputs is None else _last_run(module, example_inputs)
    head = _named_head(module, name)
    if head is module:
        return nn.Identity(), head
    chain = _cut_chain(module, name.split("."))
    if chain is None:
        backbone: nn.Module = BeforeHead(module, name)
    elif (problem := _problem_after(chain[1], head)) is not None:
        raise ValueError(f"{problem}: {_remedy(module, name)}")
    else:
        backbone = chain[0]
    if example_inputs is not None:
        if chain is None:
            trial(backbone, example_inputs)  # its first call checks it
        else:
            _verify_chain(head, module, name, example_inputs)
    return backbone, head


# --- which linear layer ---


def linears(module: nn.Module) -> dict[str, nn.Linear]:
    """All linear layers by name; one that has several names is there several times."""
    named = module.named_modules(remove_duplicate=False)
    found = ((name, layer._held[0] if isinstance(layer, _Tap) else layer) for name, layer in named)
    return {name: layer for name, layer in found if isinstance(layer, nn.Linear)}


def list_linears(module: nn.Module) -> str:
    """The linear layers as an error names them."""
    found = [
        f"{name or '(itself)'} ({x.in_features} -> {x.out_features})" for name, x in linears(module).items()
    ]
    more = f" and {len(found) - LISTED} before them" if len(found) > LISTED else ""
    return f"its linear layers are {', '.join(found[-LISTED:])}{more}"


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


def _last_registered(module: nn.Module) -> str:
    return list(linears(module))[-1]


def _last_run(module: nn.Module, example_inputs: Any) -> str:
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


def _named_head(module: nn.Module, name: str) -> nn.Linear:
    by_name = linears(module)
    kind = type(module).__name__
    if name not in by_name:
        try:
            found = type(module.get_submodule(name)).__name__
        except AttributeError:
            raise ValueError(f"{kind} has no layer {name!r}; {list_linears(module)}") from None
        raise TypeError(f"{name} of {kind} is a {found}, a torch.nn.Linear is needed; {list_linears(module)}")
    head = by_name[name]
    names = [other for other, layer in by_name.items() if layer is head]
    if len(names) > 1:
        raise ValueError(
            f"the linear layer {' = '.join(names)} of {kind} is used more than once: {_ask(module)}"
        )
    parts = name.split(".")
    for depth in range(len(parts)):
        above = module.get_submodule(".".join(parts[:depth]))
        if "attention" in type(above).__name__.lower() and depth:
            raise ValueError(
                f"{name} of {kind} belongs to an attention layer ({type(above).__name__}), it is not the head: "
                f"{_ask(module)}"
            )
    return head


def _ask(module: nn.Module) -> str:
    return (
        f"name the right one, from_module(module, head=...), or put a head on top with Encoder.with_head; "
        f"{list_linears(module)}"
    )


def _remedy(module: nn.Module, name: str) -> str:
    return f"{name!r} is not the head of {type(module).__name__}. If another layer is, {_ask(module)}"


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
    probe = torch.linspace(-1, 2, 2 * head.out_features, dtype=weight.dtype, device=weight.device)
    probe = probe.reshape(2, head.out_features)
    given = probe
    with torch.no_grad():
        for _, module in after:
            given = module(given)
    if _is_raw_or_unit(given, probe):
        return None
    listed = ", ".join(f"{name} ({type(module).__name__})" for name, module in after)
    return f"what comes after the head, {listed}, is not the l2 norm"


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


# --- any other module ---


class _Reached(Exception):  # noqa: N818 - it is no error, and never seen outside of this file
    """Carries what goes into the head out of a module's forward pass."""

    def __init__(self, features: Any) -> None:
        super().__init__("the head was reached")
        self.features = features


class _Tap(nn.Module):
    """Stands in the place of the head, and asks the `BeforeHead` that it belongs to what to do."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self._held = (head,)  # in a tuple, so that it is no submodule: it has its place in the encoder
        self.calls: list[tuple[Any, Any]] | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "_held":  # while it is copied, there is nothing yet to ask
            raise AttributeError(name)
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._held[0], name)  # models read the dtype of the head's weight, for instance

    def forward(self, features: Any) -> Any:
        if self.calls is None:
            raise _Reached(features)
        result = self._held[0](features)
        self.calls.append((features, result))
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
        self.tap = (_Tap(tapped),)  # a tuple, as it has its place inside of the module
        self.module = _with_replaced(module, head.split("."), self.tap[0])
        self.head_name = head
        self.verified = False
        self.training = module.training
        self.tap[0].training = tapped.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() or not self.verified:
            return self._to_the_end(args, kwargs, check=not is_tracing())
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
            raise ValueError(f"{self._label()} {times}, once is needed: {_ask(self.module)}")
        features, raw = calls[0]
        if check:
            self.verified = _check_output(self.module, self.head_name, output, raw)
        return features

    def _label(self) -> str:
        return f"the head {self.head_name!r} of {type(self.module).__name__}"

    def extra_repr(self) -> str:
        return f"head={self.head_name!r}"


def _with_replaced(module: nn.Module, path: list[str], replacement: nn.Module) -> nn.Module:
    """A shallow copy of the modules along a path, with another one at its end."""
    made = copy.copy(module)
    # Not copied: the dictionaries of parameters and buffers, so that both modules see what is put into them.
    vars(made)["_modules"] = dict(module._modules)
    child = module._modules[path[0]]
    assert child is not None
    made._modules[path[0]] = _with_replaced(child, path[1:], replacement) if len(path) > 1 else replacement
    return made


# --- checks by running ---


def trial(module: nn.Module, inputs: Any) -> Any:
    """What a module returns for a tensor, a tuple of positional or a dictionary of named arguments.

    Nothing is left of the call: neither running statistics nor random numbers change.
    """
    args = inputs if isinstance(inputs, tuple) else () if isinstance(inputs, dict) else (inputs,)
    kwargs = inputs if isinstance(inputs, dict) else {}
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    devices = {x.device.index for x in module.parameters() if x.device.type == "cuda"}
    with torch.no_grad(), torch.random.fork_rng(devices=sorted(devices)):
        return functional_call(module, buffers, args, kwargs)


def _verify_chain(head: nn.Linear, module: nn.Module, name: str, inputs: Any) -> None:
    """Run a chain as it is, and refuse it if its output is not that of the head."""
    outputs: list[Tensor] = []
    handle = head.register_forward_hook(lambda _, __, output: outputs.append(output))
    try:
        output = trial(module, inputs)
    finally:
        handle.remove()
    _check_output(module, name, output, outputs[-1])


def _check_output(module: nn.Module, name: str, output: Any, raw: Any) -> bool:
    """Refuse an output that is not the head's; False where it cannot be looked at."""
    kind = type(module).__name__
    if not isinstance(output, Tensor):
        raise TypeError(
            f"{kind} returns a {type(output).__name__}, its embeddings (N, Z) as one tensor are needed: wrap it in a "
            "module that returns them, or name the layer and cut before it yourself, Encoder(backbone, head)"
        )
    try:
        same = _is_raw_or_unit(output.detach(), raw.detach())
    except RuntimeError:  # inside vmap, where no value may be looked at
        return False
    if not same:
        raise ValueError(
            f"the output of {kind}, of shape {tuple(output.shape)}, is neither the output of {name!r}, of shape "
            f"{tuple(raw.shape)}, nor its l2 norm: {_remedy(module, name)}"
        )
    return True


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
