"""Everything that the demo shows, computed: train, embed, measure, compare."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from hessians import ContrastiveLoss
from laplacian_metric.data import ImageSet, embedded_sample
from laplacian_metric.demo.curvature import Agreement, Curvature, compare, measure
from laplacian_metric.demo.refusal import Refusal, refuse
from laplacian_metric.demo.settings import COMPARED_IMAGES, CURVATURE_BATCH, MARGIN, VALIDATION
from laplacian_metric.demo.training import OnStage, OnStep, Training, extract_features, train
from laplacian_metric.demo.uncertainty import Uncertainty, assess
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.features import Features
from laplacian_metric.metrics import recall_at_k

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Embedded:
    """Images with their features, (N, H), and the recall at 1 of their embeddings and of their pixels."""

    sample: ImageSet
    features: torch.Tensor
    recall: float
    pixel_recall: float


@dataclass(frozen=True, eq=False)
class DemoResult:
    """All that the page and the closing table are made from."""

    seed: int
    epochs: int
    training: Training
    train_images: int
    inside: Embedded
    outside: Embedded
    curvatures: list[Curvature]
    agreements: list[Agreement]
    uncertainty: Uncertainty
    refusal: Refusal
    seconds: float


def _embed(training: Training, sample: ImageSet) -> Embedded:
    images = sample.floats()
    with torch.no_grad():
        features = extract_features(training.backbone, images)
        directions = F.normalize(training.head(features), dim=1)
    recall = recall_at_k(directions, sample.labels)
    pixels = F.normalize(images.flatten(1), dim=1)
    return Embedded(sample, features, recall, recall_at_k(pixels, sample.labels))


def split(sample: ImageSet, validation: int) -> tuple[ImageSet, ImageSet]:
    """Images to train on, and the last ones of every class, as many of each, to choose by."""
    of_each = validation // len(torch.unique(sample.labels))
    place = torch.zeros_like(sample.labels)
    for label in torch.unique(sample.labels):
        rows = (sample.labels == label).nonzero().flatten()
        place[rows] = torch.arange(len(rows), 0, -1)
    chosen = place <= of_each
    return _some(sample, ~chosen), _some(sample, chosen)


def _some(sample: ImageSet, rows: torch.Tensor) -> ImageSet:
    return replace(
        sample, images=sample.images[rows], labels=sample.labels[rows], indices=sample.indices[rows]
    )


def compute(
    seed: int, epochs: int, on_step: OnStep | None = None, on_stage: OnStage = logger.info
) -> DemoResult:
    """Everything that the demo shows. The same seed on the same machine gives the same numbers, times aside."""
    begin = time.perf_counter()
    sample, validation = split(embedded_sample("fashion-mnist", "train"), VALIDATION)
    loss = ContrastiveLoss(margin=MARGIN, distance="arccos", negatives="active")
    training = train(sample, loss, epochs, seed, on_step)
    logger.info("trained %d epochs in %.1f s", epochs, training.seconds)
    on_stage("computing the curvature, and comparing it with autograd")
    features, held_out = (_features(training, images) for images in (sample, validation))
    batch = torch.randperm(len(sample), generator=torch.Generator().manual_seed(seed))[:CURVATURE_BATCH]
    few = batch[:COMPARED_IMAGES]
    curvatures = measure(features.features, sample.labels, training.head, MARGIN, batch)
    agreements = compare(features.features[few], sample.labels[few], training.head, MARGIN)
    on_stage("fitting the posterior, and embedding")
    inside = _embed(training, embedded_sample("fashion-mnist", "test"))
    outside = _embed(training, embedded_sample("mnist", "test"))
    test = Features(inside.features, inside.sample.labels)
    encoder = Encoder(training.backbone, training.head)
    uncertainty = assess(
        encoder, loss, features, held_out, test, Features(outside.features, outside.sample.labels), seed
    )
    on_stage("calibrating retrieval that can refuse")
    refusal = refuse(uncertainty.lam, features, test, uncertainty.inside, uncertainty.outside, seed)
    return DemoResult(
        seed=seed,
        epochs=epochs,
        training=training,
        train_images=len(sample),
        inside=inside,
        outside=outside,
        curvatures=curvatures,
        agreements=agreements,
        uncertainty=uncertainty,
        refusal=refusal,
        seconds=time.perf_counter() - begin,
    )


def _features(training: Training, images: ImageSet) -> Features:
    return Features(extract_features(training.backbone, images.floats()), images.labels)
