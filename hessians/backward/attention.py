"""Multi-head attention: the projections of queries, keys and values, and the projection of the output.

``nn.MultiheadAttention`` calls none of its projections as a module, so there is no cotangent to be had for them.
The attention in between is computed again from the recorded inputs, and the cotangents are carried through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hessians.backward.bilinear import weight_diagonal, weight_gradient
from hessians.backward.linear import linear_inputs, linear_outputs
from hessians.backward.quadratic import Quadratic
from hessians.backward.rules import Call, Cotangents, Layer, Layout, Rule, register_rule

_ARGUMENTS = (
    "query",
    "key",
    "value",
    "key_padding_mask",
    "need_weights",
    "attn_mask",
    "average_attn_weights",
    "is_causal",
)


class Projection(NamedTuple):
    """One linear projection: its input (N, k, L, H), and the cotangents (N, C, k, L, O) of its output."""

    inputs: Tensor
    cotangents: Tensor


@register_rule(nn.MultiheadAttention)
class MultiheadAttentionRule(Rule):
    """Each projection is a linear layer, once its cotangents are known."""

    sequence_first = True

    def claims(self, module: nn.Module) -> tuple[str, ...]:
        assert isinstance(module, nn.MultiheadAttention)
        weights = ("in_proj_weight",) if module._qkv_same_embed_dim else _SEPARATE
        return (*weights, "in_proj_bias", "out_proj.weight", "out_proj.bias")

    def supports(self, module: nn.Module) -> bool:
        assert isinstance(module, nn.MultiheadAttention)
        return module.bias_k is None and module.bias_v is None and not module.add_zero_attn

    def fits(self, module: nn.Module, call: Call, layout: Layout) -> bool:
        assert isinstance(module, nn.MultiheadAttention)
        arguments = _arguments(call)
        three = [arguments["query"], arguments["key"], arguments["value"]]
        return (
            call.output == 0
            and layout.axis == (0 if module.batch_first else 1)
            and all(x.ndim == 3 and layout.fits(x) for x in three)
        )

    def diagonal(
        self, layer: Layer, cotangents: Sequence[Cotangents], form: Quadratic, memory_budget: int
    ) -> dict[str, Tensor]:
        result = {}
        for name, parts in projections(layer, [mine.joined() for mine in cotangents]).items():
            weight, bias = PROJECTION_PARAMETERS[name]
            x = torch.cat([linear_inputs(part.inputs) for part in parts], dim=2)
            d = torch.cat([linear_outputs(part.cotangents) for part in parts], dim=-1)
            result[weight] = weight_diagonal(x, [d], form, memory_budget).squeeze(0)
            result[bias] = form(d.sum(-1), column_axis=2).flatten()
        return _gather(layer, result)

    def gradient(self, layer: Layer, cotangents: Sequence[Tensor]) -> dict[str, Tensor]:
        result = {}
        for name, parts in projections(layer, cotangents).items():
            weight, bias = PROJECTION_PARAMETERS[name]
            each = [(linear_inputs(part.inputs), linear_outputs(part.cotangents)) for part in parts]
            result[weight] = torch.stack([weight_gradient(x, d) for x, d in each]).sum((0, 1))
            result[bias] = torch.stack([d.sum((0, 2, 4)) for _, d in each]).sum(0).flatten()
        return _gather(layer, result)


_SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
# Weight and bias of each projection; those of queries, keys and values may be parts of in_proj_weight and in_proj_bias.
PROJECTION_PARAMETERS = {
    "query": ("q_proj_weight", "q_bias"),
    "key": ("k_proj_weight", "k_bias"),
    "value": ("v_proj_weight", "v_bias"),
    "out": ("out_proj.weight", "out_proj.bias"),
}


def _gather(layer: Layer, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The values under the module's own names: the projections of queries, keys and values may be one parameter."""
    values["in_proj_weight"] = values["in_proj_bias"] = torch.empty(0)
    for name, ending in (("in_proj_weight", "_proj_weight"), ("in_proj_bias", "_bias")):
        if name in layer.names:
            values[name] = torch.cat([values[which + ending] for which in "qkv"])
    return {name: values[name] for name in layer.names}


def _arguments(call: Call) -> dict[str, Any]:
    """What a call was given, by name."""
    return {**dict.fromkeys(_ARGUMENTS), **dict(zip(_ARGUMENTS, call.args, strict=False)), **call.kwargs}


def projections(layer: Layer, cotangents: Sequence[Tensor]) -> dict[str, list[Projection]]:
    """The four projections by name, with one entry for each call of the module.

    Args:
        layer: an `nn.MultiheadAttention` with its calls.
        cotangents: for each call those of its output, (N, C, k, ..., E).
    """
    module = layer.module
    assert isinstance(module, nn.MultiheadAttention)
    by_parameter: dict[str, list[Projection]] = {name: [] for name in PROJECTION_PARAMETERS}
    for call, mine in zip(layer.calls, cotangents, strict=True):
        arguments = _arguments(call)
        inputs = {name: _rows_first(call, arguments[name].detach()) for name in ("query", "key", "value")}
        with torch.enable_grad():
            projected = [x.requires_grad_() for x in _project(module, inputs)]
            core = _attend(module, projected, arguments)
        back = mine @ module.out_proj.weight.detach()
        carried = [
            torch.autograd.grad(core, projected, back[:, column].reshape(core.shape), retain_graph=True)
            for column in range(mine.shape[1])
        ]
        images = (call.layout.num_images, -1)
        for name, columns in zip(inputs, zip(*carried, strict=True), strict=True):
            gradients = torch.stack([column.unflatten(0, images) for column in columns], dim=1)
            by_parameter[name].append(Projection(inputs[name].unflatten(0, images), gradients))
        by_parameter["out"].append(Projection(core.detach().unflatten(0, images), mine))
    return by_parameter


def _rows_first(call: Call, x: Tensor) -> Tensor:
    """A sequence of each row of the batch, (B, L, H), B = N k."""
    return x.movedim(1, 0) if call.layout.axis == 1 else x


def _project(module: nn.MultiheadAttention, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Queries, keys and values, each (B, L, E)."""
    if module._qkv_same_embed_dim:
        weights = module.in_proj_weight.detach().chunk(3)
    else:
        weights = tuple(getattr(module, name).detach() for name in _SEPARATE)
    biases: Sequence[Tensor | None] = (None, None, None)
    if isinstance(module.in_proj_bias, Tensor):
        biases = module.in_proj_bias.detach().chunk(3)
    return [F.linear(x, w, b) for x, w, b in zip(inputs.values(), weights, biases, strict=True)]


def _attend(module: nn.MultiheadAttention, projected: Sequence[Tensor], arguments: dict[str, Any]) -> Tensor:
    """softmax(Q K^T / sqrt(d) + mask) V for each head, (B, L, E)."""
    query, key, value = (x.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for x in projected)
    mask = None
    if arguments["attn_mask"] is not None:
        mask = _additive(arguments["attn_mask"], query.dtype)
        if mask.ndim == 3:  # (B * heads, L, S)
            mask = mask.unflatten(0, (-1, module.num_heads))
    if arguments["key_padding_mask"] is not None:
        padding = _additive(arguments["key_padding_mask"], query.dtype)[:, None, None]
        mask = padding if mask is None else mask + padding
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return attended.transpose(1, 2).flatten(2)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to be added: -inf where a boolean one says that a key is not to be seen."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))
    return mask.detach().to(dtype)
