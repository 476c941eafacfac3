"""Parameters that enter the network by one broadcast operation: class tokens, position embeddings, scales, shifts.

Which module they belong to plays no part: autograd's graph tells. The cotangent of the operation's output has an axis
for the images, so that the gradient of each image is a sum over the other axes that the parameter was spread over:

    out = x + p  or  p.expand(...):   j_cn = sum d_cn            out = x * p:   j_cn = sum d_cn * x_n
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from hessians.backward.rules import Call, DirectRule, Layer, Layout

_COPIES = ("ExpandBackward0", "RepeatBackward0")


class BroadcastRule(DirectRule):
    """The sum over the axes that a parameter was spread over, other than that of the images."""

    def is_doubtful(self, call: Call) -> bool:
        # A vector may have been added to a table of positions as well, of which there happen to be as many as images.
        return super().is_doubtful(call) or len(_output_shape(call.edge.node)) < 3

    def image_gradients(self, layer: Layer, name: str, call: Call, cotangents: Tensor) -> Tensor:
        # (N, C, ...) with the axes of the operation's output but for that of the images.
        d = cotangents if call.layout.axis == 1 else cotangents.squeeze(2)
        if call.args:
            factor = call.split_input if call.layout.axis == 1 else call.split_input.squeeze(1)
            d = d * factor[:, None]
        shape = layer.module.get_parameter(name).shape
        own = _aligned(shape, d.ndim - 1)
        own = own[1:] if call.layout.axis == 0 else own[:1] + own[2:]
        spread = [2 + at for at, size in enumerate(own) if size == 1]
        return (d.sum(spread) if spread else d).reshape(*d.shape[:2], *shape)


def broadcast_layers(
    model: nn.Module, consumers: Mapping[str, Sequence[tuple[Any, int]]], num_images: int
) -> list[Layer]:
    """A layer for each parameter whose only consumer in the graph, a node and an input of it, is such an operation."""
    layers = []
    for name, nodes in consumers.items():
        if len(nodes) != 1:
            continue
        call = _broadcast_call(*nodes[0], model.get_parameter(name).shape, num_images)
        if call is not None:
            layers.append(Layer(model, BroadcastRule(), {name: name}, [call]))
    return layers


def _broadcast_call(node: Any, position: int, shape: Sequence[int], num_images: int) -> Call | None:
    out = _output_shape(node)
    factors: tuple[Tensor, ...] = ()
    if node.name() == "MulBackward0":
        factor = node._saved_other if position == 0 else node._saved_self
        if not isinstance(factor, Tensor) or tuple(factor.shape) != out:
            return None
        factors = (factor,)
    elif not (node.name() in _COPIES or (node.name() == "AddBackward0" and node._saved_alpha == 1)):
        return None
    own = _aligned(shape, len(out))
    if len(own) != len(out) or any(size not in (1, whole) for size, whole in zip(own, out, strict=True)):
        return None
    layouts = [
        Layout(num_images, axis)
        for axis in range(min(2, len(out)))
        if out[axis] == num_images and own[axis] == 1
    ]
    return Call(factors, {}, 0, GradientEdge(node, 0), layouts) if layouts else None


def _output_shape(node: Any) -> tuple[int, ...]:
    """The shape of an operation's output: what goes into its backward node. Empty where torch does not tell."""
    metadata: Sequence[Any] = getattr(node, "_input_metadata", ())
    return tuple(metadata[0].shape) if len(metadata) == 1 else ()


def _aligned(shape: Sequence[int], ndim: int) -> list[int]:
    """A shape as broadcasting reads it against ``ndim`` axes."""
    return [1] * (ndim - len(shape)) + list(shape)
