"""One forward pass of a model that is left as it was: what went into its modules, and where their outputs are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call

from hessians.backward.local import flat_tensors
from hessians.backward.rules import Call, Layer, Layout


@dataclass(frozen=True)
class Inputs:
    """What the model is called with; the first dimension of every tensor are the N images."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    num_images: int

    @classmethod
    def of(cls, inputs: Any) -> Inputs:
        """From a tensor, a tuple of positional or a dictionary of named arguments."""
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        if isinstance(inputs, dict):
            kwargs = dict(inputs)
        elif isinstance(inputs, tuple | list):
            args = tuple(inputs)
        else:
            args = (inputs,)
        tensors = {str(at): x for at, x in [*enumerate(args), *kwargs.items()] if isinstance(x, Tensor)}
        if not tensors:
            raise TypeError(
                f"inputs is a {type(inputs).__name__} without a tensor: pass a tensor (N, ...), a tuple of the model's "
                "positional arguments, or a dictionary of its named ones"
            )
        lengths = {name: x.shape[0] if x.ndim else None for name, x in tensors.items()}
        if None in lengths.values() or len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} has {tuple(x.shape)}" for name, x in tensors.items())
            raise ValueError(f"the first dimension of every input must be the images, but {listed}")
        return cls(args, kwargs, len(next(iter(tensors.values()))))

    def first(self) -> Inputs:
        """The first image alone."""

        def cut(x: Any) -> Any:
            return x[:1] if isinstance(x, Tensor) else x

        return Inputs(tuple(cut(x) for x in self.args), {name: cut(x) for name, x in self.kwargs.items()}, 1)


@dataclass
class Recorded:
    """A call as a hook sees it, before it is known which of its outputs the embeddings depend on."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    edges: list[GradientEdge | None]
    shapes: list[torch.Size]
    versions: list[tuple[Tensor, int]] = field(default_factory=list)

    def is_stale(self) -> bool:
        """Whether something that went in was changed in place since."""
        return any(tensor._version != version for tensor, version in self.versions)


@dataclass(frozen=True)
class Trace:
    """The embeddings u (N, Z) of a batch with their graph, and the leaves that stand for the parameters in it."""

    u: Tensor
    parameters: dict[str, Tensor]
    # The nodes of the graph that each parameter goes into, and as which input; u does not depend on what is not here.
    consumers: dict[str, list[tuple[Any, int]]]


def run(model: nn.Module, inputs: Inputs, parameters: dict[str, Tensor]) -> Tensor:
    """u = model(inputs) with other tensors in the place of its parameters, and with copies of its buffers."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    output = functional_call(model, {**buffers, **parameters}, inputs.args, inputs.kwargs)
    if not isinstance(output, Tensor):
        raise TypeError(
            f"{type(model).__name__} returns a {type(output).__name__}; one tensor of embeddings (N, Z) is needed: "
            "wrap it in a module that returns them"
        )
    return output


def trace(model: nn.Module, inputs: Inputs, names: Sequence[str], layers: Sequence[Layer]) -> Trace:
    """Run the model and fill in the calls of the layers; a layer whose rule does not hold for one of them gets none."""
    every = dict(model.named_parameters())
    parameters = {name: every[name].detach().requires_grad_() for name in names}
    others = {name: tensor.detach() for name, tensor in every.items() if name not in parameters}
    recorded: list[list[Recorded]] = [[] for _ in layers]
    handles = [
        # Before the user's own hooks, which may replace the output.
        layer.module.register_forward_hook(_recorder(calls), with_kwargs=True, prepend=True)
        for layer, calls in zip(layers, recorded, strict=True)
    ]
    try:
        with torch.enable_grad():
            u = run(model, inputs, {**others, **parameters})
    finally:
        for handle in handles:
            handle.remove()
    edges, leaves = _reachable(u)
    for layer, calls in zip(layers, recorded, strict=True):
        layer.calls = _useful_calls(layer, calls, edges, inputs.num_images)
    consumers = {name: leaves[id(leaf)] for name, leaf in parameters.items() if id(leaf) in leaves}
    return Trace(u, parameters, consumers)


def _recorder(calls: list[Recorded]) -> Callable[..., None]:
    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        tensors = flat_tensors(output)
        edges = [get_gradient_edge(tensor) if tensor.requires_grad else None for tensor in tensors]
        recorded = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and not x.is_inference()]
        versions = [(tensor, tensor._version) for tensor in recorded]
        calls.append(Recorded(args, dict(kwargs), edges, [tensor.shape for tensor in tensors], versions))

    return record


def _reachable(u: Tensor) -> tuple[set[tuple[Any, int]], dict[int, list[tuple[Any, int]]]]:
    """The edges of the graph that u depends on, and for the leaves (by id) what they go into."""
    if u.grad_fn is None:
        return set(), {}
    edges: set[tuple[Any, int]] = {(u.grad_fn, u.output_nr)}
    leaves: dict[int, list[tuple[Any, int]]] = {}
    todo = [u.grad_fn]
    seen = {u.grad_fn}
    while todo:
        node = todo.pop()
        for position, (following, index) in enumerate(node.next_functions):
            if following is None:
                continue
            if hasattr(following, "variable"):
                leaves.setdefault(id(following.variable), []).append((node, position))
            edges.add((following, index))
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return edges, leaves


def _useful_calls(
    layer: Layer, recorded: Sequence[Recorded], edges: set[tuple[Any, int]], num_images: int
) -> list[Call]:
    """The calls that u depends on; none at all if the rule does not hold for one of them."""
    calls = []
    for one in recorded:
        reached = [
            (at, edge)
            for at, edge in enumerate(one.edges)
            if edge is not None and (edge.node, edge.output_nr) in edges
        ]
        if not reached:
            continue
        if len(reached) > 1 or one.is_stale():
            return []
        at, edge = reached[0]
        possible = Layout.candidates(one.shapes[at], num_images, layer.rule.sequence_first)
        call = Call(one.args, one.kwargs, at, edge, possible)
        call.layouts = [layout for layout in possible if layer.rule.fits(layer.module, call, layout)]
        if not call.layouts:
            return []
        calls.append(call)
    return calls


@contextmanager
def unaltered(model: nn.Module) -> Iterator[None]:
    """Leave a model as it was, and have it take paths that can be differentiated.

    Modules may keep tensors as plain attributes, which hooks such as ``weight_norm`` set in each forward pass: they
    are put back. The fused transformer layer, which has no derivative, is switched off: it would be taken inside
    ``vmap``, where no tensor says that it needs a gradient.
    """
    before = [
        (module, {name: value for name, value in vars(module).items() if isinstance(value, Tensor)})
        for module in model.modules()
    ]
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, attributes in before:
            now = [name for name, value in vars(module).items() if isinstance(value, Tensor)]
            for name in now:
                if name not in attributes:
                    delattr(module, name)
            vars(module).update(attributes)
