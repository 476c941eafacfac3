r"""The diagonal of the last linear layer's GGN in closed form.

With u = W h + b, x = [h, 1] and the output Hessian M of :mod:`hessians.output_hessian`,

    diag_kh = sum_n A_nk x_nh^2  -  sum_{n,m} (R (Y kron I) R)_{nk,mk} x_nh x_mh,

the node term and the edge term. Writing F_nm = r_n r_m Y_nm and s_nm = <z_n, z_m>, the edge term is

    sum_n (1 - 2 z_nk^2) x_nh (F x)_nh  +  2 sum_{pairs} F_p s_p (z_ik z_jk) (x_ih x_jh):

a product with F that all k share, and one matrix product over the active pairs, in chunks. No tensor of
pairs x Z x H is made.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hessians.approximations import Approximation
from hessians.checks import check_matrix, check_no_overflow, check_same_device, without_autocast
from hessians.class_moments import diagonal_by_moments, moments_pay
from hessians.features import FeatureReader
from hessians.graph import DENSE_IMAGES, PairGraph, PositiveGraph
from hessians.output_hessian import (
    BlockHessian,
    CoupledHessian,
    OutputHessian,
    StructuredHessian,
)
from hessians.pair_loss import PairLoss
from hessians.pairs import Pairs
from hessians.unsquared import UnsquaredHessian

Diagonal = tuple[Tensor, Tensor | None]

DEFAULT_MEMORY = 64 << 20
# The products of a chunk's pairs stay in the processor's cache between being made and being multiplied.
PAIRS_PER_CHUNK = 512
# Gathering and multiplying the features of a pair takes as long as this many of its dimensions in the matrix product
# that follows (measured).
GATHER_COST = 90


@without_autocast
def last_layer_ggn_diagonal(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pairs: Pairs,
    loss: PairLoss,
    approximation: str | Approximation = Approximation.FULL,
    *,
    embeddings: Tensor | None = None,
    memory_budget: int = DEFAULT_MEMORY,
) -> Diagonal:
    """diag of the GGN in the weights and biases of a last linear layer, all pairs exactly, unclamped.

    Works the same for a batch and for a data set: features are read in blocks of rows, so that they may be a tensor
    that is mapped from a file, and nothing of size N x N is made beyond 4,096 images.

    Args:
        features: h, (N, H), the inputs of the layer; float32 or float64 (half precisions are computed in float32).
        weight: W, (Z, H).
        bias: b, (Z,), or None.
        pairs: over the N images.
        loss: the pair loss whose curvature is taken.
        approximation: "full", "fixed", "positive" or "clipped".
        embeddings: u = W h + b, (N, Z), where they are known already: then "fixed" reads the features once instead of
            twice (``positive`` and the others do too).
        memory_budget: bytes for the chunks of features and of pairs; the result and N x Z come on top.

    Returns:
        (w, b): w of shape (Z, H); b of shape (Z,), None without a bias.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> features, weight = torch.eye(4), torch.eye(2, 4) + 0.1
        >>> pairs, loss = Pairs.from_labels([0, 0, 1, 1]), ContrastiveLoss(margin=0.7)
        >>> w, b = last_layer_ggn_diagonal(features, weight, torch.zeros(2), pairs, loss, "fixed")
        >>> w.shape, b.shape
        (torch.Size([2, 4]), torch.Size([2]))
    """
    approximation = Approximation.parse(approximation)
    check_layer(features, weight, bias, pairs, embeddings)
    if memory_budget < 1:
        raise ValueError(f"memory_budget is {memory_budget}, a positive number of bytes is needed")
    reader = FeatureReader(features, memory_budget)
    u = reader.embed(weight, bias) if embeddings is None else embeddings.detach().to(reader.dtype)
    hessian = loss.output_hessian(u, pairs, approximation)
    base = hessian.base if isinstance(hessian, UnsquaredHessian) else hessian
    graph = base.graph if isinstance(base, StructuredHessian) else None
    if isinstance(hessian, CoupledHessian):
        w, b = _coupled(hessian, reader)
    elif not isinstance(hessian, (StructuredHessian, BlockHessian, UnsquaredHessian)):
        raise TypeError(f"there is no closed form for an output Hessian of type {type(hessian).__name__}")
    elif (
        isinstance(base, StructuredHessian) and isinstance(graph, PositiveGraph) and moments_pay(pairs, base)
    ):
        w, b = diagonal_by_moments(base, graph, pairs, reader)
    else:
        total = Total(hessian.diagonal_per_dimension(), reader)
        if isinstance(base, StructuredHessian) and graph is not None:
            _subtract_edges(total, hessian, base, graph, reader, memory_budget)
        w, b = total.weight.to(reader.dtype), total.bias.to(reader.dtype)
    check_no_overflow(features, len(features), w)
    return w, (None if bias is None else b)


def check_layer(
    features: Tensor, weight: Tensor, bias: Tensor | None, pairs: Pairs, embeddings: Tensor | None = None
) -> None:
    """Refuse features, weight, bias, pairs and embeddings that do not belong together."""
    check_matrix("features", features)
    check_matrix("weight", weight)
    check_same_device(features=features, weight=weight, bias=bias, embeddings=embeddings)
    if len(features) != pairs.num_images:
        raise ValueError(
            f"the pairs are over {pairs.num_images} images, but features has {len(features)} rows"
        )
    if weight.shape[1] != features.shape[1]:
        raise ValueError(
            f"weight has shape {tuple(weight.shape)} for features of {features.shape[1]} columns: (Z, H) is needed"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias has shape {tuple(bias.shape)} for a weight of {len(weight)} rows")
    for name, other in (("weight", weight), ("bias", bias)):
        if other is not None and other.dtype != features.dtype:
            raise TypeError(
                f"{name} has dtype {other.dtype}, but features have {features.dtype}: convert one of them"
            )
    if embeddings is not None:
        check_matrix("embeddings", embeddings)
        if embeddings.shape != (len(features), len(weight)):
            raise ValueError(
                f"embeddings has shape {tuple(embeddings.shape)}, but {len(features)} rows of features and a weight "
                f"of {len(weight)} rows give ({len(features)}, {len(weight)})"
            )


class Total:
    """Sums (Z, H) matrices and biases: in float64 where there are many blocks, whose sum would lose digits.

    They begin with the node term, sum_n A_nk x_nh^2 for ``per_node`` A (N, Z): one matrix product.
    """

    def __init__(self, per_node: Tensor, reader: FeatureReader) -> None:
        if len(reader.blocks) < 2:
            block = reader.read(0, reader.num_images)
            self.weight = per_node.T @ (block * block)
        else:
            self.weight = per_node.new_zeros(per_node.shape[1], reader.width, dtype=torch.float64)
            for start, stop in reader.blocks:
                self.weight += per_node[start:stop].T @ reader.read(start, stop).square()
        self.bias = per_node.to(self.weight.dtype).sum(0)


def _subtract_edges(
    total: Total,
    hessian: OutputHessian,
    base: StructuredHessian,
    graph: PairGraph,
    reader: FeatureReader,
    budget: int,
) -> None:
    """The edge term, of the squared distance's part ``base`` and of what the un-squared one adds."""
    coupling = _dense_coupling(base, graph)
    _subtract_edge_products(total, base, graph, coupling, reader)
    if coupling is None and base.unit is not None:
        _subtract_listed_edges(total, graph, base.edge_coefficients, reader, budget)
    if isinstance(hessian, UnsquaredHessian):
        _subtract_listed_edges(total, hessian.bend, hessian.edge_coefficients, reader, budget)


def _dense_coupling(hessian: StructuredHessian, graph: PairGraph) -> Tensor | None:
    """Y * C, (N, N), C the cosines, where one dense product for each k costs less than a product over listed pairs."""
    if hessian.unit is None or graph.num_images > DENSE_IMAGES:
        return None
    dense = graph.dense()
    listed = int(dense.count_nonzero()) / 2 * (GATHER_COST + hessian.dim)
    return dense * (hessian.unit @ hessian.unit.T) if hessian.dim * graph.num_images**2 < listed else None


def _subtract_edge_products(
    total: Total, hessian: StructuredHessian, graph: PairGraph, coupling: Tensor | None, reader: FeatureReader
) -> None:
    """The edge term's products with N x N matrices, in blocks of columns of x = [h, 1].

    - sum_n (1 - 2 z_nk^2) x_nh (F x)_nh; where the coupling is dense, - sum_n z_nk x'_nh ((Y * C) (z_k * x'))_nh too.
    """
    copies = 1 if coupling is None else hessian.dim
    for columns in reader.column_blocks(copies):
        total.weight[:, columns] -= _edge_products(reader.read_columns(columns), hessian, graph, coupling)
    ones = torch.ones_like(hessian.nodes)[:, None]
    total.bias -= _edge_products(ones, hessian, graph, coupling)[:, 0]


def _edge_products(
    block: Tensor, hessian: StructuredHessian, graph: PairGraph, coupling: Tensor | None
) -> Tensor:
    """The share of a block of columns (N, h), (Z, h)."""
    if hessian.unit is None or hessian.inverse_norm is None:
        return (block * graph.product(block)).sum(0).expand(hessian.dim, -1)
    block = block * hessian.inverse_norm[:, None]
    shared = (1 - 2 * hessian.unit.square()).T @ (block * graph.product(block))
    if coupling is not None:
        scaled = hessian.unit[:, :, None] * block[:, None, :]
        shared += (coupling @ scaled.flatten(1)).view_as(scaled).mul_(scaled).sum(0)
    return shared


def _subtract_listed_edges(
    total: Total,
    graph: PairGraph,
    coefficients: Callable[[Tensor, Tensor, Tensor], Tensor],
    reader: FeatureReader,
    budget: int,
) -> None:
    """- 2 sum over pairs p of c_pk (x_ih x_jh), c (P, Z): one matrix product over the pairs, in chunks."""
    dim = len(total.bias)
    chunk = max(16, min(PAIRS_PER_CHUNK, budget // (2 * (reader.width + dim) * reader.dtype.itemsize)))
    for first, second, weight in graph.edges():
        partial = torch.zeros(dim, reader.width, dtype=reader.dtype, device=first.device)
        for i, j, y in zip(first.split(chunk), second.split(chunk), weight.split(chunk), strict=True):
            products = coefficients(i, j, y)
            partial.addmm_(products.T, reader.gather(i).mul_(reader.gather(j)))
            total.bias -= 2 * products.sum(0)
        total.weight.sub_(partial, alpha=2)


def _coupled(hessian: CoupledHessian, reader: FeatureReader) -> tuple[Tensor, Tensor]:
    """sum_{n,m} M_{nk,mk} x_nh x_mh for every k, by one product with an N x N matrix for each."""
    weight = reader.features.new_empty(hessian.dim, reader.width, dtype=reader.dtype)
    bias = weight.new_empty(hessian.dim)
    for k in range(hessian.dim):
        coupling = hessian.coupling(k)
        for columns in reader.column_blocks():
            block = reader.read_columns(columns)
            weight[k, columns] = (block * (coupling @ block)).sum(0)
        bias[k] = coupling.sum()
    return weight, bias
