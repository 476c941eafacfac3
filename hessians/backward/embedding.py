"""Embedding tables: only the rows that the images look up have a curvature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hessians.backward.quadratic import Quadratic
from hessians.backward.rules import Call, Cotangents, Layer, Rule, register_rule


class Lookups(NamedTuple):
    """Each (table row, image) that occurs once, sorted by row, and its gradients summed over its occurrences."""

    row: Tensor  # (P,)
    image: Tensor  # (P,)
    gradients: Tensor  # (P, C, D)


@register_rule(nn.Embedding)
class EmbeddingRule(Rule):
    """j_n of a row is the sum of the cotangents at the places where image n looks it up."""

    parameter_names = ("weight",)
    sequence_first = True

    def supports(self, module: nn.Module) -> bool:
        assert isinstance(module, nn.Embedding)
        # With these, what autograd returns is not the derivative of the output with respect to the table.
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse

    def is_doubtful(self, call: Call) -> bool:
        # A list of ids is one for each image, or positions that all images share and that happen to be as many.
        return super().is_doubtful(call) or call.input.ndim == 1

    def diagonal(
        self, layer: Layer, cotangents: Sequence[Cotangents], form: Quadratic, memory_budget: int
    ) -> dict[str, Tensor]:
        assert isinstance(layer.module, nn.Embedding)
        lookups = _lookups(layer, [mine.joined() for mine in cotangents])
        result = torch.zeros_like(layer.module.weight, requires_grad=False)
        if form.nodes is not None:
            weight = form.nodes[lookups.image][..., None]
            result.index_add_(0, lookups.row, (weight * lookups.gradients.square()).sum(1))
        if form.edges is None:
            return {"weight": result}
        # Sorted by row, the images of a row are neighbours: pair each lookup with the one `offset` places further on.
        for offset in range(len(lookups.row)):
            one = (lookups.row[: len(lookups.row) - offset] == lookups.row[offset:]).nonzero().squeeze(1)
            if not len(one):
                break
            other = one + offset
            weight = form.edges[lookups.image[one], lookups.image[other]] * (2 if offset else 1)
            product = (lookups.gradients[one] * lookups.gradients[other]).sum(1)
            result.index_add_(0, lookups.row[one], weight[:, None] * product)
        return {"weight": result}

    def gradient(self, layer: Layer, cotangents: Sequence[Tensor]) -> dict[str, Tensor]:
        assert isinstance(layer.module, nn.Embedding)
        lookups = _lookups(layer, cotangents)
        result = torch.zeros_like(layer.module.weight, requires_grad=False)
        return {"weight": result.index_add_(0, lookups.row, lookups.gradients.sum(1))}


def _lookups(layer: Layer, cotangents: Sequence[Tensor]) -> Lookups:
    module = layer.module
    assert isinstance(module, nn.Embedding)
    rows, images, values = [], [], []
    for call, mine in zip(layer.calls, cotangents, strict=True):
        ids = call.split_input.flatten(1)  # (N, L)
        index = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
        places = mine.flatten(2, -2).transpose(1, 2)  # (N, L, C, D)
        used = (
            ids != module.padding_idx
            if module.padding_idx is not None
            else torch.ones_like(ids, dtype=torch.bool)
        )
        rows.append(ids[used].long())
        images.append(index[used])
        values.append(places[used])
    num_images = layer.calls[0].layout.num_images
    keys, inverse = torch.unique(torch.cat(rows) * num_images + torch.cat(images), return_inverse=True)
    joined = torch.cat(values)
    summed = joined.new_zeros(len(keys), *joined.shape[1:]).index_add_(0, inverse, joined)
    return Lookups(keys // num_images, keys % num_images, summed)
