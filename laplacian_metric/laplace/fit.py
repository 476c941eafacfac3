"""One pass of curvature over the data: from features and labels to what a posterior is made of."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hessians import Pairs
from hessians.approximations import Approximation
from hessians.checks import CurvatureWarning, check_no_overflow, check_varied, compute_dtype
from hessians.features import FeatureReader
from hessians.pair_loss import PairLoss
from laplacian_metric.core.devices import exact_device
from laplacian_metric.core.embedding import unit_rows
from laplacian_metric.core.parallel import check_agreement
from laplacian_metric.laplace.accumulate import LayerData, Settings, accumulate
from laplacian_metric.laplace.diagnostics import loss_and_gradient
from laplacian_metric.laplace.embedding_norms import root_mean_square, sum_of_squares
from laplacian_metric.laplace.encoder_guard import Watch
from laplacian_metric.laplace.fit_inputs import check_columns
from laplacian_metric.laplace.head import FEATURE_MEMORY
from laplacian_metric.laplace.pair_search import warn_if_inexact
from laplacian_metric.laplace.state import Fitted


@torch.no_grad()
def layer_data(
    head: nn.Linear,
    loss: PairLoss,
    features: Tensor,
    labels: Tensor | Pairs,
    approximation: Approximation,
) -> LayerData:
    """The embeddings of all images, and which part of the head is random."""
    check_columns(features, head.in_features)
    weight = head.weight.detach().to(features.device)
    bias = None if head.bias is None else head.bias.detach().to(features.device)
    # From the weights as they are, in the dtype that is computed in; further on only their shape counts.
    embeddings = FeatureReader(features, FEATURE_MEMORY).embed(weight, bias)
    if len(embeddings) and torch.allclose(embeddings, embeddings[:1], rtol=1e-4):
        check_varied("features", features)
    if getattr(loss, "normalize", False):
        unit_rows(embeddings)  # refuses what has no direction here, where no other process waits yet
    random_bias = None
    if bias is not None and bias_is_known(loss, approximation):
        random_bias = bias.to(features.dtype)
    return LayerData(features, labels, embeddings, weight.to(features.dtype), random_bias, loss)


def bias_is_known(loss: PairLoss, approximation: Approximation) -> bool:
    """Without a norm a translation changes no distance: the data say nothing of the bias, which stays fixed."""
    return getattr(loss, "normalize", True) or approximation is Approximation.FIXED


@torch.no_grad()
def fit_layer(data: LayerData, settings: Settings, batches: Sequence[Tensor] | None, watch: Watch) -> Fitted:
    """The curvature, and what else is known about the data, summed over all processes."""
    reduce, weight = settings.reduce, watch.encoder.head.weight
    pairs = "" if settings.search is None else f" ({settings.search.choice.value} pairs)"
    check_agreement(
        reduce,
        f"structure {settings.structure.value!r} (rank {settings.rank}) of {settings.approximation.value!r}{pairs} "
        f"over {tuple(data.weight.shape)} weights in {data.embeddings.dtype}, encoder {watch.fingerprint[:12]}",
    )
    with warnings.catch_warnings():
        if isinstance(data.labels, Tensor):
            # Said once for the data set, not for every batch.
            warnings.filterwarnings("ignore", "there is no .* pair", CurvatureWarning)
        accumulated = accumulate(data, settings, batches)
        for tensor in accumulated.curvature.tensors().values():
            check_no_overflow(data.features, len(data.features), tensor)
        value, gradient = loss_and_gradient(data.loss, data, accumulated, reduce)
    if settings.search is not None and accumulated.error:
        size = float(accumulated.curvature.diagonal().double().norm())
        warn_if_inexact(accumulated.error, size, settings.search.tolerance)
    sums = torch.tensor(
        [len(data.features), len(accumulated.batches), sum_of_squares(data.embeddings)],
        dtype=torch.float64,
        device=gradient.device,
    )
    num_images, num_batches, squares = (sums if reduce is None else reduce(sums)).tolist()
    device, dtype = exact_device(weight.device), compute_dtype(weight)
    return Fitted(
        curvature=accumulated.curvature.to(device, dtype),
        num_images=round(num_images),
        num_positives=accumulated.num_positives,
        num_negatives=accumulated.num_negatives,
        num_batches=round(num_batches),
        loss_value=value,
        gradient=gradient.to(device, dtype),
        bias_is_random=data.bias is not None,
        fingerprint=watch.fingerprint,
        length=root_mean_square(squares, num_images),
        curvature_error=accumulated.error,
    )


def warn_if_zero(fitted: Fitted) -> None:
    """Say so where the data have no say in the posterior."""
    if not fitted.curvature.trace() > 0:
        warnings.warn(
            "the curvature is 0 for every weight, or was clamped at 0: the posterior is the prior. Train longer, or "
            "take another approximation",
            CurvatureWarning,
            stacklevel=3,
        )
