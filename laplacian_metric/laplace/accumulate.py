"""The curvature of the last layer over a data set: one structure at a time, from features that may be mapped."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal
from hessians.approximations import Approximation
from hessians.graph import DENSE_IMAGES
from hessians.layer_ggn import LayerBatch, LayerGGN
from hessians.output_hessian import CoupledHessian, MatrixHessian, OutputHessian
from hessians.pair_loss import PairLoss
from hessians.pairs import LabelPairs, PairSums, Population
from laplacian_metric.core.parallel import Reduce
from laplacian_metric.core.progress import track
from laplacian_metric.laplace.batching import class_balanced_batches
from laplacian_metric.laplace.layer import (
    DiagonalCurvature,
    FullCurvature,
    KroneckerCurvature,
    LayerCurvature,
    LowRankCurvature,
    Structure,
)
from laplacian_metric.laplace.layer.full import check_dense_weights
from laplacian_metric.laplace.options import FitSettings, PairChoice
from laplacian_metric.laplace.pair_search import search_pairs, warn_if_inexact

LOGGER = logging.getLogger(__name__)

# Of the vectors in the dtype of the features, at the peak: the posterior has four of them in float64.
LOW_RANK_COPIES = 9
POWER_ITERATIONS = 2  # of the subspace that finds the eigenvectors

DENSE_MEMORY = 1 << 30  # bytes of dense output Hessians that are kept between passes


@dataclass(frozen=True)
class LayerData:
    """Features (N, H), labels (N,) or pairs, embeddings u (N, Z), and the layer; ``bias`` where it is random too."""

    features: Tensor
    labels: Tensor | Pairs
    embeddings: Tensor
    weight: Tensor
    bias: Tensor | None
    loss: PairLoss


@dataclass(frozen=True)
class Part:
    """A batch: its rows (None for all of them) and its pairs, with the population counts of all batches."""

    data: LayerData
    rows: Tensor | None
    pairs: Pairs
    approximation: Approximation
    keeps_dense: bool
    _hessian: list[OutputHessian] = field(default_factory=list)

    def select(self, rows: Tensor) -> Tensor:
        """Those of the rows (N, ...) of all images that are of this batch."""
        return rows if self.rows is None else rows[self.rows.to(rows.device)]

    def hessian(self) -> OutputHessian:
        """Kept once it is computed, unless it is dense and all of them would be too large."""
        if self._hessian:
            return self._hessian[0]
        hessian = self.data.loss.output_hessian(
            self.select(self.data.embeddings), self.pairs, self.approximation
        )
        if self.keeps_dense or not isinstance(hessian, (MatrixHessian, CoupledHessian)):
            self._hessian.append(hessian)
        return hessian


def accumulate(
    data: LayerData, settings: FitSettings, batches: Sequence[Tensor] | None = None
) -> tuple[LayerCurvature, list[Part], Population, float]:
    """Return the curvature of the loss, averaged over the data set's pairs, in the weights of the layer.

    Beside it the batches with their pairs, the counts of positives and negatives in all of them, and the error of an
    estimated curvature's diagonal in the l2 norm, 0 where every pair was looked at.

    Without ``batches``, "fixed" and "positive" are over all pairs of the data set, and "full" and "clipped" over the
    pairs inside class-balanced batches, each batch standing for its share: the counts are summed over all batches
    and divided by once.
    """
    labels, options = data.labels, settings.options
    # The pairs of a whole data set are too many for the others.
    over_all = options.approximation is Approximation.FIXED or (
        options.approximation is Approximation.POSITIVE and options.structure is not Structure.KRONECKER
    )
    searched = None
    if isinstance(labels, Tensor) and batches is None:
        searched = _searched(data, labels, settings) if over_all else None
        if not over_all or data.loss.couples_batch:
            batches = class_balanced_batches(labels, settings.batch_size, generator=settings.generator)
    parts, population = _parts(data, settings, batches, searched)
    if options.structure is Structure.DIAGONAL:
        curvature: LayerCurvature = DiagonalCurvature(_summed_diagonal(data, parts, settings))
    else:
        make = {Structure.KRONECKER: _kronecker, Structure.LOW_RANK: _low_rank, Structure.FULL: _full}
        curvature = make[options.structure](data, parts, settings)
    # The curvature of "positive" has no negatives, and its positives are summed by classes.
    error = searched[2] if searched and options.approximation is Approximation.FIXED else 0.0
    if error:
        warn_if_inexact(error, float(curvature.diagonal().double().norm()), settings.tolerance)
    return curvature, parts, population, error


def _searched(
    data: LayerData, labels: Tensor, settings: FitSettings
) -> tuple[PairSums, Tensor, float] | None:
    """Return what `search_pairs` does; None where the pairs of a data set are summed row by row."""
    choice = settings.options.pairs
    if not settings.search:
        return None
    if type(data.loss) is not ContrastiveLoss or data.loss.power != 2:
        if choice is PairChoice.ESTIMATE:
            raise ValueError(
                'pairs="estimate" is for a ContrastiveLoss with power=2: take pairs="exact", or approximation="full" '
                'or "clipped", which go over batches'
            )
        return None
    if settings.options.approximation is not Approximation.FIXED:
        settings = replace(settings, reduce=None)
    if settings.reduce is None and len(labels) <= DENSE_IMAGES and choice is not PairChoice.ESTIMATE:
        return None
    return search_pairs(
        data.loss, data.embeddings, labels, data.features, settings, bias=data.bias is not None
    )


def _parts(
    data: LayerData,
    settings: FitSettings,
    batches: Sequence[Tensor] | None,
    searched: tuple[PairSums, Tensor, float] | None,
) -> tuple[list[Part], Population]:
    """The batches, with the counts of positives and negatives in all of them and in all processes."""
    labels, approximation, reduce = data.labels, settings.options.approximation, settings.reduce
    if settings.options.structure is Structure.KRONECKER and approximation is Approximation.FULL:
        raise ValueError(
            'structure "kron" of the indefinite approximation "full" has no nearest positive semi-definite product '
            'that could be found: take approximation="clipped", its positive part, or "fixed"'
        )
    if isinstance(labels, Pairs):
        if batches is not None:
            raise ValueError("batches are given with pairs: pass labels, or pairs of one batch")
        sets: list[Pairs] = [labels]
    else:
        parts = [labels] if batches is None else [labels[rows] for rows in batches]
        sets = [LabelPairs(part) for part in parts]
    counted = sets
    if searched is not None and len(searched[1]) > len(data.features):  # the labels of all processes
        counted, reduce = [LabelPairs(searched[1])], None
    positives, negatives = (
        sum(pairs.num_positives for pairs in counted),
        sum(pairs.num_negatives for pairs in counted),
    )
    if reduce is not None:
        counts = torch.tensor([positives, negatives], dtype=torch.float64, device=data.embeddings.device)
        positives, negatives = reduce(counts).tolist()
    population = (positives, negatives)
    sets = [pairs.with_population(population) for pairs in sets]
    if searched is not None:
        sets = [pairs.with_sums(searched[0]) for pairs in sets]
    if batches is None:
        return [Part(data, None, sets[0], approximation, keeps_dense=True)], population
    u = data.embeddings
    dense = sum((len(rows) * u.shape[1]) ** 2 for rows in batches) * u.element_size()
    return [
        Part(data, rows, pairs, approximation, keeps_dense=dense <= DENSE_MEMORY)
        for rows, pairs in zip(batches, sets, strict=True)
    ], population


def _summed_diagonal(data: LayerData, parts: list[Part], settings: FitSettings) -> Tensor:
    """diag(G) without a clamp, (Z, H'), summed in float64."""
    inputs = data.weight.shape[1] + int(data.bias is not None)
    total = torch.zeros(len(data.weight), inputs, dtype=torch.float64, device=data.embeddings.device)
    show = settings.progress if len(parts) > 1 else False
    for part in track(parts, "curvature", show=show):
        w, b = last_layer_ggn_diagonal(
            part.select(data.features),
            data.weight,
            data.bias,
            part.pairs,
            data.loss,
            settings.options.approximation,
            embeddings=part.select(data.embeddings),
        )
        total += w if b is None else torch.cat([w, b[:, None]], dim=1)
    total = total if settings.reduce is None else settings.reduce(total)
    return total.to(data.embeddings.dtype)


def _operator(data: LayerData, parts: list[Part], settings: FitSettings) -> LayerGGN:
    batches = [LayerBatch(part.select(data.features), part.hessian) for part in parts]
    return LayerGGN(batches, len(data.weight), data.bias is not None, reduce=settings.reduce)


def _kronecker(data: LayerData, parts: list[Part], settings: FitSettings) -> LayerCurvature:
    width = data.weight.shape[1] + 1
    what = f"the Kronecker factors and eigenvectors of {width} inputs"
    _announce(what, 4 * width**2, data.embeddings, 'structure "lowrank" or "diag"')
    factors = _operator(data, parts, settings).kronecker(tolerance=1e-3, max_iterations=10)
    return KroneckerCurvature.from_factors(factors.output, factors.input)


def _full(data: LayerData, parts: list[Part], settings: FitSettings) -> LayerCurvature:
    ggn = _operator(data, parts, settings)
    check_dense_weights(*ggn.shape)
    what = "the dense curvature and its eigenvectors"
    _announce(what, 4 * math.prod(ggn.shape) ** 2, data.embeddings, 'structure "lowrank" or "kron"')
    return FullCurvature.from_matrix(ggn.dense(), len(data.weight))


def _low_rank(data: LayerData, parts: list[Part], settings: FitSettings) -> LayerCurvature:
    """The largest positive eigenpairs by subspace iteration, and what they leave of the diagonal."""
    ggn = _operator(data, parts, settings)
    size = math.prod(ggn.shape)
    rank = min(settings.options.rank, size)
    width = min(size, rank + 10)
    what = f"{width} vectors over {size} weights, and the posterior in float64,"
    _announce(what, LOW_RANK_COPIES * width * size, data.embeddings, 'a lower rank, or structure "diag"')
    values, vectors = largest_eigenpairs(ggn, width, POWER_ITERATIONS, settings.generator, settings.reduce)
    keep = values.argsort(descending=True)[:rank]
    keep = keep[values[keep] > 0]
    factor = (vectors[keep] * values[keep].sqrt()[:, None]).view(-1, *ggn.shape)
    diagonal = _summed_diagonal(data, parts, settings)
    return LowRankCurvature(diagonal - factor.square().sum(0), factor)


def largest_eigenpairs(
    ggn: LayerGGN,
    width: int,
    iterations: int,
    generator: torch.Generator | None,
    reduce: Reduce | None = None,
) -> tuple[Tensor, Tensor]:
    """Eigenvalues (width,) and eigenvectors (width, Z H') of G in the span of its powers of random vectors."""
    size = math.prod(ggn.shape)
    start = torch.randn(width, size, generator=generator, dtype=ggn.dtype, device=ggn.device)
    # Every process has to multiply the same vectors, whatever its generator drew.
    start = start if reduce is None else reduce(start)
    basis = torch.linalg.qr(start.T).Q.T
    for _ in range(iterations + 1):
        product = ggn.matmul(basis.reshape(width, *ggn.shape)).view(width, size)
        basis = torch.linalg.qr(product.T).Q.T
    product = ggn.matmul(basis.reshape(width, *ggn.shape)).view(width, size)
    small = (basis @ product.T).double()
    values, turn = torch.linalg.eigh((small + small.T) / 2)
    return values.to(ggn.dtype), turn.T.to(ggn.dtype) @ basis


def _announce(what: str, elements: float, like: Tensor, instead: str) -> None:
    """Say beforehand what memory it will take, and refuse what the machine does not have."""
    needed, available = elements * like.element_size() / 2**30, memory_of(like.device) / 2**30
    LOGGER.info("%s take about %.2f GiB", what, needed)
    if needed > available:
        # Many systems end a process that takes more without another word.
        raise MemoryError(
            f"{what} take about {needed:.1f} GiB, and {like.device.type} has {available:.1f}: take {instead}"
        )


def memory_of(device: torch.device) -> float:
    """Bytes of memory that a device has in all; infinity where that is not known."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf
