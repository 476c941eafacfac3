"""J diag(S) J^T of a layer for every image, from what was carried back to the layer's outputs for every dimension.

With j_nk the gradient of dimension k of image n's embedding in a parameter, every parameter adds

    C_n[k, l] += sum_p S_p j_nkp j_nlp,

which takes products of two dimensions of the same image, and none of two images. C is the number of columns (Z of
them, one for each dimension) in shapes below; otherwise the notation is that of ``hessians.backward``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from hessians.backward import Layer
from hessians.backward.attention import PROJECTION_PARAMETERS, MultiheadAttentionRule, projections
from hessians.backward.bilinear import BilinearRule
from hessians.backward.embedding import EmbeddingRule
from hessians.backward.linear import linear_inputs, linear_outputs
from hessians.backward.local import ImageGraphs
from hessians.backward.rules import DirectRule

# Blocks beyond this size gain nothing, and fall out of the caches.
BLOCK_BYTES = 16 << 20
# An element written to memory and read again takes about as long as this many multiplications of a matrix product.
MEMORY_COST = 24


class Collected:
    """What is kept of a layer's cotangents while the columns come in: gradients where those are smaller.

    Args:
        layer: with its calls.
        variance: of each parameter, by the model's names.
        outputs: how many numbers a column of its cotangents has for each image.
    """

    def __init__(self, layer: Layer, variance: Mapping[str, Tensor], outputs: int) -> None:
        self.layer = layer
        self.variance = variance
        self.outputs = outputs
        self.is_small = is_small(layer, outputs)
        parameters = sum(variance[name].numel() for name in layer.names.values())
        self.kept = min(parameters, outputs) if self.is_small else outputs
        self.waiting = 0  # bytes that `flush` makes fewer
        self._columns: list[list[Tensor]] = [[] for _ in layer.calls]
        self._gradients: list[Tensor] = []

    def add(self, cotangents: Sequence[Tensor]) -> None:
        """The next column, (1, *shape of the output) for each call."""
        for mine, columns in zip(cotangents, self._columns, strict=True):
            columns.append(mine)
            self.waiting += mine.numel() * mine.element_size() if self.is_small else 0

    def flush(self) -> None:
        """Turn the columns that wait into gradients."""
        if self._columns[0]:
            self._gradients.append(scaled_gradients(self.layer, self._split(), self.variance))
            self.waiting = 0

    def covariance(self, memory_budget: int) -> Tensor:
        """What the layer adds to the covariances, (N, C, C); its columns are given up."""
        if not self.is_small or (not self._gradients and not isinstance(self.layer.rule, DirectRule)):
            return layer_covariance(self.layer, self._split(), self.variance, memory_budget)
        self.flush()
        j = torch.cat(self._gradients, dim=1)
        self._gradients = []
        return j @ j.mT

    def _split(self) -> list[Tensor]:
        """The columns that wait, with their images first, (N, C, k, ...)."""
        pieces = []
        for call, columns in zip(self.layer.calls, self._columns, strict=True):
            pieces.append(call.layout.split_columns(torch.cat(columns)))
            columns.clear()
        return pieces


def layer_covariance(
    layer: Layer, cotangents: Sequence[Tensor], variance: Mapping[str, Tensor], memory_budget: int
) -> Tensor:
    """What a layer's parameters add to the covariance of every image, (N, C, C).

    Args:
        layer: with its calls.
        cotangents: for each call those of its output, (N, C, k, ...).
        variance: of each parameter, by the model's names.
        memory_budget: bytes that per-image gradients may take at a time.
    """
    own = {name: variance[full] for name, full in layer.names.items()}
    if isinstance(layer.rule, BilinearRule):
        return _bilinear(layer, layer.rule, cotangents, own, memory_budget)
    if isinstance(layer.rule, MultiheadAttentionRule):
        return _attention(layer, cotangents, own, memory_budget)
    if isinstance(layer.rule, EmbeddingRule):
        return _embedding(layer, cotangents, own["weight"])
    return _local(layer, cotangents, own)


def is_small(layer: Layer, outputs: int) -> bool:
    """Whether the gradients of a column take less memory than its cotangents, ``outputs`` numbers for each image."""
    if isinstance(layer.rule, DirectRule):
        return True
    parameters = sum(layer.module.get_parameter(name).numel() for name in layer.names)
    return isinstance(layer.rule, BilinearRule) and parameters < outputs


def scaled_gradients(layer: Layer, cotangents: Sequence[Tensor], variance: Mapping[str, Tensor]) -> Tensor:
    """sqrt(S_p) j_ncp for all of a layer's parameters, (N, C, P); its rule is for direct gradients or bilinear."""
    root = {name: variance[full].sqrt() for name, full in layer.names.items()}
    if isinstance(layer.rule, DirectRule):
        gradients = {name: _summed(layer, layer.rule, name, cotangents) for name in layer.names}
        return torch.cat([(j * root[name]).flatten(2) for name, j in gradients.items()], dim=2)
    assert isinstance(layer.rule, BilinearRule)
    d = torch.cat([layer.rule.outputs(layer.module, mine) for mine in cotangents], dim=-1)
    parts = []
    if "bias" in root:
        parts.append(d.sum(-1).transpose(1, 2).flatten(2) * root["bias"])
    if "weight" in root:
        features = layer.rule.features(layer.module)
        x = torch.cat([layer.rule.inputs(layer.module, call, 0, features) for call in layer.calls], dim=2)
        scale = _in_groups(layer.rule, layer.module, root["weight"], d.shape[1], d.shape[3])
        j = (d.flatten(2, 3) @ x).view(*d.shape[:4], -1) * scale[None, :, None]
        parts.append(j.transpose(1, 2).flatten(2))
    return torch.cat(parts, dim=2)


def _summed(layer: Layer, rule: DirectRule, name: str, cotangents: Sequence[Tensor]) -> Tensor:
    """j (N, C, *shape of the parameter), the calls added up."""
    calls = zip(layer.calls, cotangents, strict=True)
    return torch.stack([rule.image_gradients(layer, name, call, mine) for call, mine in calls]).sum(0)


def gram(gradients: Tensor, variance: Tensor) -> Tensor:
    """sum_p S_p j_ncp j_ndp, (N, C, C), of j (N, C, ...) and S (...)."""
    j = gradients.flatten(2) * variance.sqrt().flatten()
    return j @ j.mT


def _bilinear(
    layer: Layer,
    rule: BilinearRule,
    cotangents: Sequence[Tensor],
    variance: Mapping[str, Tensor],
    memory_budget: int,
) -> Tensor:
    """Weight and bias of out = W x at L positions: j = d x, with d (N, G, C, O, L) and x (N, G, L, K)."""
    d = torch.cat([rule.outputs(layer.module, mine) for mine in cotangents], dim=-1)
    num_images, groups, columns, outputs, positions = d.shape
    result = d.new_zeros(num_images, columns, columns)
    if "bias" in layer.names:
        result += gram(d.sum(-1).transpose(1, 2), variance["bias"])
    if "weight" not in layer.names:
        return result
    weight = variance["weight"]
    S = _in_groups(rule, layer.module, weight, groups, outputs)
    features = rule.features(layer.module)
    kernel = S.shape[2] // features
    each = num_images * groups * positions * kernel * d.element_size()
    step = max(1, memory_budget // (2 * max(1, each)))
    for start in range(0, features, step):
        stop = min(features, start + step)
        x = torch.cat([rule.inputs(layer.module, call, start, stop) for call in layer.calls], dim=2)
        result += _of_weight(x, d, S[:, :, start * kernel : stop * kernel], memory_budget)
    return result


def _of_weight(x: Tensor, d: Tensor, S: Tensor, memory_budget: int) -> Tensor:
    """The share of a weight with variances S (G, O, K) for x (N, G, L, K) and d (N, G, C, O, L)."""
    columns, positions, inputs = d.shape[2], d.shape[4], x.shape[-1]
    if positions == 1:
        return _one_position(x, d, S)
    # Multiplications for one output; those of an element that is written and read again are about as many.
    pairs = positions * (positions + 1) // 2
    by_positions = pairs * (inputs + 2 * MEMORY_COST) + columns * positions * (
        positions + columns + MEMORY_COST
    )
    if by_positions < columns * inputs * (positions + columns + MEMORY_COST):
        return _by_positions(x, d, S, memory_budget)
    return _by_gradients(x, d, S, memory_budget)


def _in_groups(rule: BilinearRule, module: nn.Module, weight: Tensor, groups: int, outputs: int) -> Tensor:
    """Values of a weight's shape as (G, O, K): the way back from ``as_weight``."""
    places = torch.arange(weight.numel(), device=weight.device).view(groups, outputs, -1)
    grouped = torch.empty_like(weight).flatten()
    grouped[rule.as_weight(module, places).flatten()] = weight.flatten()
    return grouped.view(places.shape)


def _one_position(x: Tensor, d: Tensor, S: Tensor) -> Tensor:
    """An output o of an image has the variance sum_k S_ok x_k^2, and d carries it on."""
    variance = torch.einsum("ngk,gok->ngo", x.squeeze(2).square(), S)
    d = d.squeeze(-1)  # (N, G, C, O)
    return ((d * variance[:, :, None]) @ d.mT).sum(1)


def _by_positions(x: Tensor, d: Tensor, S: Tensor, memory_budget: int) -> Tensor:
    """The covariances T_o of an output's positions, for many outputs by one product; then d_o T_o d_o^T."""
    num_images, groups, columns, outputs, positions = d.shape
    result = d.new_zeros(num_images, columns, columns)
    first, second = torch.triu_indices(positions, positions, device=x.device)
    bytes_each = num_images * groups * d.element_size()
    step = max(1, memory_budget // (2 * bytes_each * positions**2))
    for start in range(0, outputs, step):
        part, mine = S[:, start : start + step], d[:, :, :, start : start + step].transpose(2, 3)
        T = d.new_empty(num_images, groups, part.shape[1], positions, positions)
        for pairs in _blocks(len(first), 2 * bytes_each * x.shape[-1], memory_budget):
            i, j = first[pairs], second[pairs]
            values = part @ (x[:, :, i] * x[:, :, j]).mT  # (N, G, o, pairs)
            T[..., i, j] = values
            T[..., j, i] = values
        for chosen in _blocks(part.shape[1], 4 * bytes_each * columns * positions, memory_budget):
            result += _paired(mine[:, :, chosen] @ T[:, :, chosen], mine[:, :, chosen])
    return result


def _paired(one: Tensor, other: Tensor) -> Tensor:
    """sum of one_c other_c' over groups, outputs and positions, (N, C, C), of two (N, G, o, C, L)."""
    one, other = (part.permute(0, 3, 1, 2, 4).flatten(2) for part in (one, other))
    return one @ other.mT


def _by_gradients(x: Tensor, d: Tensor, S: Tensor, memory_budget: int) -> Tensor:
    """The gradients of every image and column for some outputs at a time, and their products."""
    num_images, groups, columns, outputs, _ = d.shape
    result = d.new_zeros(num_images, columns, columns)
    root = S.sqrt()
    inputs = x.shape[-1]
    each = 2 * num_images * groups * columns * inputs * d.element_size()
    for chosen in _blocks(outputs, each, memory_budget):
        mine = d[:, :, :, chosen]
        j = (mine.flatten(2, 3) @ x).view(*mine.shape[:4], inputs)
        j *= root[None, :, None, chosen]
        j = j.flatten(3)
        result += (j @ j.mT).sum(1)
    return result


def _blocks(outputs: int, bytes_each: int, memory_budget: int) -> Iterator[slice]:
    """Some outputs (or whatever is counted) at a time."""
    size = max(1, min(memory_budget, BLOCK_BYTES) // max(1, bytes_each))
    for start in range(0, outputs, size):
        yield slice(start, min(outputs, start + size))


def _attention(
    layer: Layer, cotangents: Sequence[Tensor], variance: Mapping[str, Tensor], memory_budget: int
) -> Tensor:
    """Each projection is a linear layer, once its cotangents are known."""
    every = dict(variance)
    for joint, parts in (("in_proj_weight", "{}_proj_weight"), ("in_proj_bias", "{}_bias")):
        if joint in every:
            every.update(
                (parts.format(which), part) for which, part in zip("qkv", every[joint].chunk(3), strict=True)
            )
    shares = []
    for name, projected in projections(layer, cotangents).items():
        weight, bias = PROJECTION_PARAMETERS[name]
        d = torch.cat([linear_outputs(part.cotangents) for part in projected], dim=-1)
        if weight in every:
            x = torch.cat([linear_inputs(part.inputs) for part in projected], dim=2)
            shares.append(_of_weight(x, d, every[weight][None], memory_budget))
        if bias in every:
            shares.append(gram(d.sum(-1).transpose(1, 2), every[bias]))
    return torch.stack(shares).sum(0)


def _embedding(layer: Layer, cotangents: Sequence[Tensor], variance: Tensor) -> Tensor:
    """Two places of an image share parameters where they look up the same row of the table."""
    module = layer.module
    assert isinstance(module, nn.Embedding)
    ids = torch.cat([call.split_input.flatten(1) for call in layer.calls], dim=1)  # (N, L)
    d = torch.cat([mine.flatten(2, -2) for mine in cotangents], dim=2)  # (N, C, L, D)
    same = ids[:, :, None] == ids[:, None, :]
    if module.padding_idx is not None:
        same = same & (ids != module.padding_idx)[:, :, None]
    spread = same.to(d.dtype)[:, None] @ d
    spread = spread * variance[ids][:, None]
    return d.flatten(2) @ spread.flatten(2).mT


def _local(layer: Layer, cotangents: Sequence[Tensor], variance: Mapping[str, Tensor]) -> Tensor:
    """By autograd through the module, for each image by itself."""
    names = list(layer.names)
    graphs = [
        ImageGraphs(layer.module, names, call.args, call.kwargs, call.layout, call.output)
        for call in layer.calls
    ]
    columns: list[dict[str, Tensor]] = []
    for at in range(cotangents[0].shape[1]):
        each = [graph.gradients(mine[:, at]) for graph, mine in zip(graphs, cotangents, strict=True)]
        columns.append(
            {name: torch.stack([one_gradient[name] for one_gradient in each]).sum(0) for name in names}
        )
    shares = [
        gram(torch.stack([column[name] for column in columns], dim=1), variance[name]) for name in names
    ]
    return torch.stack(shares).sum(0)
