"""From features and labels, which are checked first, to the curvature that a posterior is made of: one pass."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hessians import Pairs
from hessians.approximations import Approximation
from hessians.checks import (
    CurvatureWarning,
    check_matrix,
    check_no_overflow,
    check_varied,
    compute_dtype,
    exact_device,
)
from hessians.features import FeatureReader
from hessians.loss_summary import LossSummary, summarise, trained_gradient
from hessians.pair_loss import PairLoss
from hessians.pairs import LabelPairs
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import unit_rows
from laplacian_metric.core.labels import Labels, as_labels
from laplacian_metric.core.parallel import Reduce, check_agreement
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.accumulate import LayerData, Part, accumulate
from laplacian_metric.laplace.encoder_posterior import FittedData, warn_of_no_curvature
from laplacian_metric.laplace.head import FEATURE_MEMORY
from laplacian_metric.laplace.layer import LayerCurvature
from laplacian_metric.laplace.options import FitSettings


@dataclass(frozen=True, eq=False, kw_only=True)
class Fitted(FittedData):
    """A curvature and what it is the curvature of.

    Attributes:
        curvature: of the loss's average, unscaled.
        gradient: dL/d[W | b] at theta*, (Z, H').
        bias_is_random: whether H' counts the bias.
        length: the root mean square of |u| over the images, before the norm; None where it is not known.
        curvature_error: the error of the curvature's diagonal in the l2 norm, where pairs were sampled.
    """

    curvature: LayerCurvature
    gradient: Tensor
    bias_is_random: bool
    length: float | None = None
    curvature_error: float = 0.0


@torch.no_grad()
def layer_data(
    head: nn.Linear,
    loss: PairLoss,
    features: Tensor,
    labels: Tensor | Pairs,
    approximation: Approximation,
) -> LayerData:
    """The embeddings of all images, and which part of the head is random."""
    if features.shape[1] != head.in_features:
        raise ValueError(
            f"features has {features.shape[1]} columns, the encoder's head takes {head.in_features}: they are of "
            "another backbone"
        )
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
def fit_layer(
    data: LayerData,
    settings: FitSettings,
    batches: Sequence[Tensor] | None,
    encoder: Encoder,
    fingerprint: str,
) -> Fitted:
    """The curvature, and what else is known about the data, summed over all processes."""
    reduce, weight = settings.reduce, encoder.head.weight
    if reduce is not None:
        check_agreement(
            reduce,
            f"{settings.options} over {tuple(data.weight.shape)} weights in {data.embeddings.dtype}, encoder "
            f"{fingerprint[:12]}",
        )
    with warnings.catch_warnings():
        if isinstance(data.labels, Tensor):
            # Said once for the data set, not for every batch.
            warnings.filterwarnings("ignore", "there is no .* pair", CurvatureWarning)
        curvature, parts, population, error = accumulate(data, settings, batches)
        for tensor in curvature.tensors().values():
            check_no_overflow(data.features, len(data.features), tensor)
        value, gradient = loss_and_gradient(data, parts, population[1], reduce)
    sums = torch.tensor(
        [len(data.features), len(parts), sum_of_squares(data.embeddings)],
        dtype=torch.float64,
        device=gradient.device,
    )
    num_images, num_batches, squares = (sums if reduce is None else reduce(sums)).tolist()
    device, dtype = exact_device(weight.device), compute_dtype(weight)
    curvature = curvature.to(device, dtype)
    if not curvature.trace() > 0:
        warn_of_no_curvature(
            stacklevel=5
        )  # of whoever called LAM.fit_features, behind what switches gradients off
    return Fitted(
        curvature=curvature,
        num_images=round(num_images),
        num_positives=population[0],
        num_negatives=population[1],
        num_batches=round(num_batches),
        loss_value=value,
        gradient=gradient.to(device, dtype),
        bias_is_random=data.bias is not None,
        fingerprint=fingerprint,
        length=math.sqrt(squares / num_images),
        curvature_error=error,
    )


def loss_and_gradient(
    data: LayerData, parts: Sequence[Part], num_negatives: float, reduce: Reduce | None
) -> tuple[float, Tensor]:
    """Return L over the pairs that the curvature is of, and dL/d[W | b] (Z, H') of the loss as it is trained."""
    u = data.embeddings
    value, active = 0.0, 0.0
    positive, negative = torch.zeros_like(u[:1]).expand_as(u), torch.zeros_like(u[:1]).expand_as(u)
    for number, part in enumerate(parts):
        summary = summarise(data.loss, part.select(u), part.pairs)
        value, active = value + summary.value, active + summary.active
        if part.rows is None:  # the only batch
            positive, negative = summary.positive_gradient, summary.negative_gradient
            continue
        index = part.rows.to(u.device)
        if not number:
            positive, negative = torch.zeros_like(u), torch.zeros_like(u)
        positive.index_add_(0, index, summary.positive_gradient)
        negative.index_add_(0, index, summary.negative_gradient)
    numbers = torch.tensor([value, active], dtype=torch.float64, device=u.device)
    value, active = (numbers if reduce is None else reduce(numbers)).tolist()
    trained = trained_gradient(data.loss, LossSummary(value, positive, negative, active), num_negatives)
    gradient = pull_back(trained, data.features, data.bias is not None)
    return value, gradient if reduce is None else reduce(gradient)


def pull_back(gradient: Tensor, features: Tensor, bias: bool) -> Tensor:
    """dL/d[W | b] (Z, H') from dL/du (N, Z) and the features (N, H), read in blocks."""
    reader = FeatureReader(features, FEATURE_MEMORY)
    total = torch.zeros(gradient.shape[1], reader.width, dtype=torch.float64, device=features.device)
    for start, stop in reader.blocks:
        total += gradient[start:stop].to(reader.dtype).T @ reader.read(start, stop)
    if bias:
        total = torch.cat([total, gradient.double().sum(0)[:, None]], dim=1)
    return total.to(reader.dtype)


def sum_of_squares(u: Tensor) -> float:
    """Of the entries of raw embeddings u (N, Z), in float64.

    Example:
        >>> sum_of_squares(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        25.0
    """
    return float(torch.linalg.vector_norm(u, dtype=torch.float64)) ** 2


# --- checks of what is fitted to ---


def features_and_labels(
    features: Tensor | Dataset, labels: Labels | Pairs | None
) -> tuple[Tensor, Tensor | Pairs]:
    """Rows (N, H) and labels (N,) or pairs that fit them, on a device with float64."""
    if isinstance(features, Dataset):
        labels = features.labels if labels is None else labels
        features = features.features
    features = torch.as_tensor(features)
    check_matrix("features", features)
    features = features.to(exact_device(features.device))
    if labels is None:
        raise ValueError("labels are missing: they say which images are pairs")
    if isinstance(labels, Pairs):
        if labels.num_images != len(features):
            raise ValueError(f"the pairs are over {labels.num_images} images for {len(features)} features")
        return features, labels
    checked = LabelPairs(as_labels("labels", labels))
    _check_classes(checked, len(features))
    return features, checked.labels.to(features.device)


def checked_batches(batches: Sequence[Tensor], features: Tensor) -> list[Tensor]:
    """Positions of the images of each batch, on the features' device."""
    row_batches = [torch.as_tensor(rows, device=features.device) for rows in batches]
    if not row_batches:
        raise ValueError("batches is empty: at least one batch is needed")
    for number, rows in enumerate(row_batches):
        if rows.ndim != 1 or rows.dtype not in (torch.int64, torch.int32) or not len(rows):
            raise ValueError(
                f"batch {number} has dtype {rows.dtype} and shape {tuple(rows.shape)}: the positions of its images are "
                "needed, integers of shape (n,)"
            )
        low, high = int(rows.min()), int(rows.max())
        if low < 0 or high >= len(features):
            raise ValueError(
                f"batch {number} has the position {low if low < 0 else high}, but there are {len(features)} images: 0 "
                f"to {len(features) - 1}"
            )
    return row_batches


def _check_classes(labels: LabelPairs, num_images: int) -> None:
    """Refuse too few images, and say what is lost where classes are few or small."""
    if labels.num_images != num_images:
        raise ValueError(f"labels has {labels.num_images} entries for {num_images} rows of features")
    if num_images < 2:
        raise ValueError(
            f"there is {num_images} image: a pair needs two, and a loss of pairs knows nothing of fewer"
        )
    sizes = labels.class_sizes
    single = int((sizes == 1).sum())
    if len(sizes) == 1:
        message = (
            "all images are of one class: there is no negative pair, and the curvature knows nothing of what separates "
            "classes"
        )
    elif single == len(sizes):
        message = (
            "no two images share a class: there is no positive pair, and the curvature is clamped to 0 wherever "
            "negatives push; little is left but the prior"
        )
    elif single:
        message = (
            f"{single} of {len(sizes)} classes have a single image: it has no positive pair, and counts as a negative "
            "only"
        )
    else:
        return
    warnings.warn(message, CurvatureWarning, stacklevel=4)
