r"""The "positive" diagonal of a last layer over all positive pairs of whole classes, without listing them.

With x' = r x, and sums over the images of a class, a_h = sum x'_h, c_lkh = sum z_l z_k x'_h and b_kh = c_kkh, the
pairs of the class have the edge term

    a_h^2 - 2 a_h b_kh + sum_l c_lkh^2 - sum_i (1 - z_ik^2) x'_ih^2,

which costs O(N Z^2 H) instead of O(sum n_c^2 Z H). Without a norm it is a_h^2 - sum_i x_ih^2. Everything is summed
in float64, since the edge term nearly cancels the node term where a class has collapsed to a point.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from hessians.features import FeatureReader
from hessians.graph import PositiveGraph
from hessians.output_hessian import StructuredHessian
from hessians.pairs import LabelPairs, Pairs


def moments_pay(pairs: Pairs, hessian: StructuredHessian) -> TypeGuard[LabelPairs]:
    """Whether the moments cost fewer operations than a product over the listed positive pairs."""
    if not isinstance(pairs, LabelPairs):
        return False
    if hessian.unit is None:
        return True
    listed = float((pairs.class_sizes * (pairs.class_sizes - 1)).sum()) / 2 * hessian.dim
    moments = (
        hessian.num_images * (2 + hessian.dim * (hessian.dim + 1) / 2)
        + len(pairs.class_sizes) * hessian.dim**2
    )
    return moments < listed


def diagonal_by_moments(
    hessian: StructuredHessian, graph: PositiveGraph, pairs: LabelPairs, reader: FeatureReader
) -> tuple[Tensor, Tensor]:
    """(w, b) of shapes (Z, H) and (Z,); every row of the features is read once."""
    # The node term and the share of the edge term that has its form, in one matrix.
    per_node = hessian.diagonal_per_dimension().double()
    own = _own_share(hessian)
    per_node = per_node + graph.weight * own
    weight = torch.zeros(hessian.dim, reader.width, dtype=torch.float64, device=per_node.device)
    bias = per_node.sum(0)
    rows_at_once = max(1, reader.rows // 2)  # the copy in float64 takes twice the memory
    for members in pairs.members():
        products = _products(hessian, members)
        moments = products.new_zeros(products.shape[1], reader.width)
        for rows, part in zip(members.split(rows_at_once), products.split(rows_at_once), strict=True):
            block = reader.gather(rows).double()
            moments.addmm_(part.T, block)
            weight.addmm_(per_node[rows].T, block.square_())
        weight.sub_(_square(moments, hessian), alpha=graph.weight)
        bias -= graph.weight * _square(products.sum(0)[:, None], hessian)[:, 0]
    return weight.to(reader.dtype), bias.to(reader.dtype)


def _own_share(hessian: StructuredHessian) -> Tensor:
    """The pairing of an image with itself, which the squared sums contain: r^2 (1 - z^2), (N, Z)."""
    if hessian.unit is None or hessian.inverse_norm is None:
        return torch.ones(hessian.num_images, hessian.dim, dtype=torch.float64, device=hessian.nodes.device)
    return (1 - hessian.unit.double().square()) * hessian.inverse_norm.double().square()[:, None]


def _products(hessian: StructuredHessian, members: Tensor) -> Tensor:
    """r [1, z_l z_k for l <= k] of a class's images, (n, 1 + Z (Z + 1)/2); without a norm a column of ones."""
    if hessian.unit is None or hessian.inverse_norm is None:
        return torch.ones(len(members), 1, dtype=torch.float64, device=members.device)
    unit = hessian.unit[members].double()
    rows, columns = torch.triu_indices(hessian.dim, hessian.dim, device=members.device)
    products = torch.cat([unit.new_ones(len(members), 1), unit[:, rows] * unit[:, columns]], dim=1)
    return products * hessian.inverse_norm[members].double()[:, None]


def _square(moments: Tensor, hessian: StructuredHessian) -> Tensor:
    """a^2 - 2 a b_k + sum_l c_lk^2 from the rows [a, c_lk for l <= k], (Z, H); without a norm a^2."""
    total = moments[0]
    if hessian.unit is None:
        return total.square().expand(hessian.dim, -1)
    dim = hessian.dim
    rows, columns = torch.triu_indices(dim, dim, device=moments.device)
    position = torch.empty(dim, dim, dtype=torch.long, device=moments.device)
    position[rows, columns] = position[columns, rows] = torch.arange(1, len(rows) + 1, device=moments.device)
    result = total.square() - 2 * total * moments[position.diagonal()]
    for other in range(dim):
        result += moments[position[other]].square()
    return result
