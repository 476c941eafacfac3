"""Layers bilinear in their weight and (patches of) their input: Linear, convolutions, attention's projections.

    out_cnlo = sum_k W_ok x_nlk      at L positions l of image n, so that      j_cn,ok = sum_l d_cnol x_nlk

with d the cotangents of the output. Two ways to the same diagonal, and the cheaper one is taken:

- per image: build j for some outputs o at a time, then the quadratic form;
- Gram: diag_ok = sum_{nl,ml'} x_nlk T_nl,ml' x_ml'k with T = E_nm sum_c d_cnol d_cmol', without columns.

Channel groups (G of them) are an axis of their own: x (N, G, L, K), d (N, G, C, O, L), weight (G, O, K).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from hessians.backward.quadratic import Quadratic
from hessians.backward.rules import Call, Cotangents, Layer, Rule

# An element written to memory and read again takes about as long as this many multiplications of a matrix product.
_MEMORY_COST = 24
# Blocks beyond this size gain nothing, and fall out of the caches.
_BLOCK_BYTES = 16 << 20
# How many outputs are taken at a time where there is one column only.
_CHECKED_OUTPUTS = 64


class BilinearRule(Rule):
    """Weight and bias of a layer that is bilinear in its weight and in what ``inputs`` makes of its input."""

    @abstractmethod
    def features(self, module: nn.Module) -> int:
        """How many input features (channels) a group has."""

    @abstractmethod
    def inputs(self, module: nn.Module, call: Call, start: int, stop: int) -> Tensor:
        """x (N, G, L, K) of the input features start..stop-1 of each group."""

    @abstractmethod
    def outputs(self, module: nn.Module, cotangents: Tensor) -> Tensor:
        """d (N, G, C, O, L) from the cotangents (N, C, k, ...) of the output."""

    def direct_gradients(self, layer: Layer) -> Callable[[Tensor], Tensor] | None:
        """A faster way from d (N, G, C, O, L) to j (N, G, C, O, K) than by ``inputs``, where there is one."""
        return None

    def as_weight(self, module: nn.Module, values: Tensor) -> Tensor:
        """Values (G, O, K) of all features in the shape of the weight."""
        weight = module.weight
        assert isinstance(weight, Tensor)
        return values.reshape(weight.shape)

    def diagonal(
        self, layer: Layer, cotangents: Sequence[Cotangents], form: Quadratic, memory_budget: int
    ) -> dict[str, Tensor]:
        # The columns stay in the blocks that they came in: joining them is worth a copy only for the Gram matrices.
        blocks = [
            torch.cat([self.outputs(layer.module, mine) for mine in calls], dim=-1)
            for calls in zip(*(mine.blocks for mine in cotangents), strict=True)
        ]
        result = {}
        if "weight" in layer.names:
            direct = self.direct_gradients(layer)
            if direct is not None:
                values = _of_direct_gradients(direct, blocks, form, memory_budget)
            else:
                parts = self._inputs_in_parts(layer, blocks[0], memory_budget)
                values = torch.cat([weight_diagonal(x, blocks, form, memory_budget) for x in parts], dim=-1)
            result["weight"] = self.as_weight(layer.module, values)
        if "bias" in layer.names:
            result["bias"] = form(torch.cat([d.sum(-1) for d in blocks], dim=2), column_axis=2).flatten()
        return result

    def gradient(self, layer: Layer, cotangents: Sequence[Tensor]) -> dict[str, Tensor]:
        d = torch.cat([self.outputs(layer.module, mine) for mine in cotangents], dim=-1)
        result = {}
        if "weight" in layer.names:
            direct = self.direct_gradients(layer)
            if direct is not None:
                values = torch.cat(
                    [direct(part).sum((0, 2)) for part in d.split(_CHECKED_OUTPUTS, dim=3)], dim=1
                )
            else:
                parts = self._inputs_in_parts(layer, d, 4 * _BLOCK_BYTES)
                values = torch.cat([weight_gradient(x, d) for x in parts], dim=-1)
            result["weight"] = self.as_weight(layer.module, values)
        if "bias" in layer.names:
            result["bias"] = d.sum((0, 2, 4)).flatten()
        return result

    def _inputs_in_parts(self, layer: Layer, d: Tensor, memory_budget: int) -> Iterator[Tensor]:
        """x of all calls side by side along their positions, some features at a time."""
        features = self.features(layer.module)
        weight = layer.module.weight
        assert isinstance(weight, Tensor)
        kernel = weight.shape[2:].numel() if weight.ndim > 2 else 1
        each = d.shape[0] * d.shape[1] * d.shape[4] * kernel * d.element_size()
        size = max(1, memory_budget // (2 * max(1, each)))
        for start in range(0, features, size):
            stop = min(features, start + size)
            inputs = [self.inputs(layer.module, call, start, stop) for call in layer.calls]
            yield inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=2)


def weight_gradient(x: Tensor, d: Tensor) -> Tensor:
    """sum_n j_n, (G, O, K), of a single column."""
    if d.shape[3] < x.shape[2]:
        return (d.squeeze(2) @ x).sum(0)
    # Fewer positions than outputs: the sum over both images and positions in one product, for which x is copied.
    return torch.einsum("ngol,nglk->gok", d.squeeze(2), x)


def weight_diagonal(x: Tensor, blocks: Sequence[Tensor], form: Quadratic, memory_budget: int) -> Tensor:
    """The quadratic form of j_cn = d_cn x_n, (G, O, K), for x (N, G, L, K) and blocks of columns d (N, G, c, O, L)."""
    num_images, _, positions, inputs = x.shape
    columns = sum(d.shape[2] for d in blocks)
    if positions > 1 and not _gram_is_cheaper(num_images, positions, inputs, columns, form):
        result = x.new_zeros(blocks[0].shape[1], blocks[0].shape[3], inputs)
        start = 0
        for d in blocks:
            stop = start + d.shape[2]
            result += _per_image(x, d, form.select(start, stop), memory_budget)
            start = stop
        return result
    d = blocks[0] if len(blocks) == 1 else torch.cat(list(blocks), dim=2)
    result = x.new_zeros(d.shape[1], d.shape[3], inputs)
    if form.edges is not None:
        result += _gram_of_edges(x, d, form.edges, memory_budget)
    if form.nodes is not None:
        result += _gram_of_nodes(x, d, form.nodes, memory_budget)
    return result


def _gram_is_cheaper(num_images: int, positions: int, inputs: int, columns: int, form: Quadratic) -> bool:
    """Compare the multiplications for one output, memory traffic included."""
    coupled = form.edges is not None
    rows = num_images * positions if coupled else positions
    batches = 1 if coupled else num_images
    coupling = num_images if coupled else 0
    per_image = columns * num_images * inputs * (positions + coupling + _MEMORY_COST)
    gram = batches * rows * (rows * (columns + inputs + _MEMORY_COST) + inputs * _MEMORY_COST)
    return gram < per_image


def _output_blocks(outputs: int, bytes_each: int, memory_budget: int) -> Iterator[slice]:
    size = max(1, min(memory_budget, _BLOCK_BYTES) // max(1, bytes_each))
    size = math.ceil(outputs / math.ceil(outputs / size)) if outputs else 1
    for start in range(0, outputs, size):
        yield slice(start, min(outputs, start + size))


def _per_image(x: Tensor, d: Tensor, form: Quadratic, memory_budget: int) -> Tensor:
    """j for some columns or outputs at a time: one matrix product for j, one for the coupling of the images."""
    num_images, groups, _, inputs = x.shape
    columns, outputs = d.shape[2:4]
    one_output = 2 * num_images * groups * inputs * x.element_size()
    limit = min(memory_budget, _BLOCK_BYTES)
    # Whole columns where several fit; a single column is a view of d, also where only some of its outputs fit.
    step = max(1, min(columns, limit // max(1, one_output * outputs)))
    result = x.new_zeros(groups, outputs, inputs)
    for first in range(0, columns, step):
        last = min(columns, first + step)
        part = form.select(first, last)
        for chosen in _output_blocks(outputs, one_output * (last - first), limit):
            block = d[:, :, first:last, chosen]
            j = block.flatten(2, 3) @ x
            result[:, chosen] += part(j.view(*block.shape[:4], inputs), column_axis=2)
    return result


def _of_direct_gradients(
    direct: Callable[[Tensor], Tensor], blocks: Sequence[Tensor], form: Quadratic, memory_budget: int
) -> Tensor:
    """The quadratic form of gradients that a function makes of one column at a time."""
    columns: list[Tensor] = [column for d in blocks for column in d.split(1, dim=2)]
    images, groups, _, outputs, _ = columns[0].shape
    inputs = direct(columns[0][:, :, :, :1]).shape[-1]
    each = 2 * images * groups * inputs * columns[0].element_size()
    result = columns[0].new_zeros(groups, outputs, inputs)
    for at, column in enumerate(columns):
        for chosen in _output_blocks(outputs, each, memory_budget):
            gradients = direct(column[:, :, :, chosen])
            result[:, chosen] += form.select(at, at + 1)(gradients, column_axis=2)
    return result


def _gram_of_edges(x: Tensor, d: Tensor, edges: Tensor, memory_budget: int) -> Tensor:
    """sum_{nm} E_nm j_n j_m by the Gram matrices T (see the module), over all positions of all images."""
    num_images, groups, positions, inputs = x.shape
    outputs = d.shape[3]
    rows = num_images * positions
    x = x.transpose(0, 1).reshape(groups, rows, inputs)
    if positions > 1:
        edges = edges.repeat_interleave(positions, 0).repeat_interleave(positions, 1)
    result = x.new_empty(groups, outputs, inputs)
    for chosen in _output_blocks(
        outputs, 2 * groups * rows * (rows + inputs) * x.element_size(), memory_budget
    ):
        block = d[:, :, :, chosen].permute(1, 3, 0, 4, 2).reshape(groups, -1, rows, d.shape[2])
        gram = (block @ block.mT).mul_(edges)
        product = (gram.flatten(1, 2) @ x).view(groups, -1, rows, inputs)
        result[:, chosen] = product.mul_(x[:, None]).sum(2)
    return result


def _gram_of_nodes(x: Tensor, d: Tensor, nodes: Tensor, memory_budget: int) -> Tensor:
    """sum_cn nodes_nc j_cn^2 by the Gram matrices of each image's positions."""
    num_images, groups, positions, inputs = x.shape
    outputs = d.shape[3]
    if positions == 1:
        # One position: T is a number, and what is left is one matrix product.
        weighted = (d.squeeze(-1).square() * nodes[:, None, :, None]).sum(2)
        return torch.einsum("ngo,ngk->gok", weighted, x.squeeze(2).square())
    result = x.new_empty(groups, outputs, inputs)
    each = 2 * num_images * groups * positions * (positions + inputs) * x.element_size()
    for chosen in _output_blocks(outputs, each, memory_budget):
        block = d[:, :, :, chosen].permute(0, 1, 3, 4, 2)  # (N, G, o, L, C)
        gram = (block * nodes[:, None, None, None]) @ block.mT
        product = (gram.flatten(2, 3) @ x).view(num_images, groups, -1, positions, inputs)
        result[:, chosen] = product.mul_(x[:, :, None]).sum((0, 3))
    return result
