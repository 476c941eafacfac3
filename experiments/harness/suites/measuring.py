"""The numbers of one part: by which its setting is chosen, and by which it is judged."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.harness.measurements import method_scores, norms
from experiments.harness.suites.fitting import Fitted
from experiments.harness.suites.judging import (
    GALLERY,
    GALLERY_DISTANCE,
    IMAGE,
    MATCH_RISK,
    TRUST,
    GalleryScores,
    Searched,
    intervals,
    retrieval_numbers,
)
from experiments.harness.suites.sets import (
    CLEAN,
    CORRUPTED,
    CROPPED,
    PEOPLE,
    SEEN,
    TRAIN,
    UNSEEN,
    VALIDATION,
    TrackSets,
)
from experiments.harness.suites.suite import Entry
from laplacian_metric import metrics
from laplacian_metric.core.array_gallery import ArrayGallery
from laplacian_metric.core.check import unit_rows
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.splits import require_selectable
from laplacian_metric.metrics.evaluation import OWN
from laplacian_metric.trust.view import GaussianView

Scores = dict[str, dict[str, Tensor]]
BESIDE = "beside the method"  # scores of its network that need no method
TIMED = 200  # images that the backbone is timed on
SAFE_SHARE = 0.1
COMPARED = (GALLERY_DISTANCE, MATCH_RISK, TRUST)


def chosen_by(fitted: Fitted, entry: Entry, sets: TrackSets) -> dict[str, dict[str, float]]:
    """Return recall@1 and the R-AUROC of the entry's score on every set that settings are chosen by.

    Raises:
        TestDataError: one of them holds test images.
    """
    numbers = {}
    for name in sets.choosing():
        images = sets[name]
        require_selectable(images, "choose a setting")
        points, scores = _embedded(fitted, entry, {name: images})
        of_set = retrieval_numbers(
            sets.searched(name, points[name]), {entry.score: scores[entry.score][name]}
        )
        numbers[name] = {"recall@1": of_set["recall@1"], **of_set["scores"][entry.score]}
    return numbers


def measured(
    fitted: Fitted, entry: Entry, sets: TrackSets, resamples: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return everything that is measured of a part, and scores of the main set by which parts are compared.

    Nothing is chosen by it. The tensors are "right" and "classes" (N,), and (N,) for each of `COMPARED`.
    """
    inputs = {name: sets[name] for name in sets.names() if name not in (TRAIN, *sets.choosing()[1:])}
    beside = _beside(fitted, sets, inputs) if fitted.embedder.module is fitted.encoder else {}
    begun = time.perf_counter()
    points, scores = _embedded(fitted, entry, inputs, beside)
    seconds = time.perf_counter() - begun
    record: dict[str, Any] = {"score": entry.score, "sets": {}, "intervals": {}}
    by_gallery: GalleryScores | None = None
    kept: dict[str, Tensor] = {}
    for name in (VALIDATION, *sets.unseen(), *([SEEN] if SEEN in inputs else [])):
        searched = sets.searched(name, points[name])
        uncertainty = scores[entry.score][name]
        by_gallery = by_gallery or GalleryScores.fit(searched, uncertainty)
        both = by_gallery(searched, uncertainty)
        record["groups"] = {
            **dict.fromkeys(both, GALLERY),
            **dict.fromkeys(beside, BESIDE),
            **dict.fromkeys(scores, IMAGE),
        }
        alone = {one: values[name] for one, values in {**beside, **scores}.items()}
        record["sets"][name] = retrieval_numbers(searched, {**alone, **both})
        compared = {OWN: uncertainty, **{one: both[one] for one in COMPARED}}
        if resamples and name in sets.unseen():
            record["intervals"][name] = compared_intervals(searched, uncertainty, both, resamples)
        if name == UNSEEN + sets.track.main:
            record["safe"] = {one: safe_retrieval(searched, values) for one, values in compared.items()}
            kept = {one: values.float() for one, values in compared.items()}
            kept |= {"right": torch.from_numpy(searched.right), "classes": torch.from_numpy(searched.classes)}
    images = sum(len(one) for one in inputs.values())
    backbone = _backbone_ms(sets) if sets.track.network.frozen else 0.0
    record |= {
        "image": {one: _of_image(values, sets, inputs) for one, values in {**beside, **scores}.items()},
        "settings": fitted.embedder.settings(),
        "seconds": {
            "training": round(fitted.training_seconds, 2),
            "fit": round(fitted.fit_seconds, 2),
            "embedding": round(seconds, 2),
        },
        "ms": {"backbone": backbone, "method": round(1000 * seconds / images, 4)},
        "parameters": _parameters(fitted.embedder.module, sets),
    }
    return record, kept


def safe_retrieval(searched: Searched, uncertainty: Tensor, share: float = SAFE_SHARE) -> dict[str, float]:
    """Return recall@1 where the least certain queries are rejected, gallery items dropped, or both; and at random.

    Items are dropped from the whole gallery, whatever their class: no labels are needed.

    Example:
        >>> z = torch.nn.functional.normalize(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)))
        >>> sorted(safe_retrieval(Searched.of(z, torch.arange(60) % 3), torch.arange(60.0)))
        ['all', 'both', 'both, at random', 'gallery', 'queries', 'queries, at random']
    """
    number = len(searched.right)
    kept = round(number * (1 - share))
    right = torch.from_numpy(searched.right)
    every = torch.ones(number, dtype=torch.bool)
    sure, chance = ~every, ~every
    sure[torch.argsort(uncertainty.double(), stable=True)[:kept]] = True
    chance[torch.randperm(number, generator=torch.Generator().manual_seed(0))[:kept]] = True

    def recall(queries: Tensor, items: Tensor) -> float:
        return float(_nearest_is_right(searched, items)[queries].double().mean())

    return {
        "all": float(right.double().mean()),
        "queries": float(right[sure].double().mean()),
        "queries, at random": float(right[chance].double().mean()),
        "gallery": recall(every, sure),
        "both": recall(sure, sure),
        "both, at random": recall(chance, chance),
    }


def _nearest_is_right(searched: Searched, items: Tensor) -> Tensor:
    """Return for every image whether the nearest of some items (N,), a mask, other than itself has its class."""
    kept = items.numpy()
    gallery = ArrayGallery(searched.points[items], searched.classes[kept], np.flatnonzero(kept))
    neighbours = gallery.search(searched.points, 2).without(np.arange(len(kept)))
    assert neighbours.labels is not None
    return torch.from_numpy(neighbours.labels[:, 0] == searched.classes)


def _embedded(
    fitted: Fitted, entry: Entry, inputs: Mapping[str, Dataset], beside: Scores | None = None
) -> tuple[dict[str, Tensor], Scores]:
    """Return the points of every set and the scores of the image alone; known norms are not computed again."""
    embedded: dict[str, StochasticEmbedding] = {
        name: fitted.embedder.embed(images, progress=False).to("cpu") for name, images in inputs.items()
    }
    scores = method_scores(fitted.embedder, inputs, embedded)
    if entry.score not in scores:  # the method has none of its own
        computed = (beside or {}).get(entry.score)
        scores = {
            entry.score: computed
            or {name: norms(fitted.encoder, images)[entry.score] for name, images in inputs.items()}
        }
    return {name: e.point for name, e in embedded.items()}, scores


def _beside(fitted: Fitted, sets: TrackSets, inputs: Mapping[str, Dataset]) -> Scores:
    """Return the norms of features and embeddings, and the Mahalanobis distance where there are features."""
    scores: Scores = {}
    view = GaussianView.of(sets[TRAIN].inputs) if sets.track.network.frozen else None
    for name, images in inputs.items():
        of_set = norms(fitted.encoder, images)
        if view is not None:
            units = unit_rows(name, images.inputs.numpy())
            outside = view.outside(view.project(units))
            of_set["Mahalanobis"] = torch.from_numpy(outside["distance to the nearest class"])
        for score, values in of_set.items():
            scores.setdefault(score, {})[name] = values
    return scores


def _of_image(values: Mapping[str, Tensor], sets: TrackSets, inputs: Mapping[str, Dataset]) -> dict[str, Any]:
    """Return what a score of the image alone says of crops, corruptions, classes that were seen and people's doubts."""
    main = values[UNSEEN + sets.track.main]
    numbers: dict[str, Any] = {"crop_test": metrics.crop_test(values[CLEAN], values[CROPPED])}
    if SEEN in values:
        numbers["unseen_auroc"] = metrics.ood_auroc(values[SEEN], main)
    numbers["corruption"] = {
        name.removeprefix(CORRUPTED): metrics.ood_auroc(values[CLEAN], values[name])
        for name in sets.corrupted()
    }
    if PEOPLE in values:
        human = inputs[PEOPLE].extras.get("human_distribution")
        if human is not None:
            numbers["people"] = metrics.rank_correlation(values[PEOPLE], metrics.label_entropy(human))
    return numbers


def compared_intervals(
    searched: Searched, uncertainty: Tensor, both: Mapping[str, Tensor], resamples: int
) -> dict[str, dict[str, float]]:
    """Return the ends of the intervals of R-AUROC, and of how much each score is above the gallery distance.

    Args:
        searched: the images.
        uncertainty: of each alone.
        both: the scores of image and gallery.
        resamples: draws of classes.
    """
    scores = {OWN: uncertainty, **{name: both[name] for name in COMPARED if name in both}}
    others = [name for name in scores if name != GALLERY_DISTANCE and GALLERY_DISTANCE in scores]
    differences = {f"{name} less {GALLERY_DISTANCE}": (name, GALLERY_DISTANCE) for name in others}
    ends = intervals(searched, scores, differences, resamples)
    return {name: {"low": one.low, "high": one.high} for name, one in ends.items()}


def _backbone_ms(sets: TrackSets) -> float:
    """Return the milliseconds that the frozen backbone takes for an image."""
    images = sets.images(UNSEEN + sets.track.main)
    block = images.select(torch.arange(min(TIMED, len(images)))).floats()
    backbone = sets.encoder.backbone
    with torch.inference_mode():
        backbone(block[:2])
        begun = time.perf_counter()
        backbone(block)
    return round(1000 * (time.perf_counter() - begun) / len(block), 3)


def _parameters(module: nn.Module, sets: TrackSets) -> int:
    modules = [module, *([sets.encoder.backbone] if sets.track.network.frozen else [])]
    unique = {id(p): p.numel() for one in modules for p in one.parameters()}
    return sum(unique.values())
