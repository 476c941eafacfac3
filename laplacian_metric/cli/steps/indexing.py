"""From a model and images to embeddings and to an index that can refuse."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from laplacian_metric.cli.steps.embedding_files import Embedded
from laplacian_metric.cli.steps.fitting import features_of
from laplacian_metric.cli.steps.source import Source, same_classes, shared
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.retrieval import Index, Items, calibrate

LOGGER = logging.getLogger(__name__)


def embed_source(model: ModelFolder, source: Source, *, progress: bool | None = None) -> StochasticEmbedding:
    """The distributions of a source's images, on the CPU."""
    return model.lam.embed_features(features_of(model.encoder, source, progress=progress)).to("cpu")


def embed(model: ModelFolder, source: Source, *, progress: bool | None = None) -> Embedded:
    """The distributions of a source's images with their ids, ready for a file."""
    e = embed_source(model, source, progress=progress)
    return Embedded(Items.of(e, variance=False), e.point.float().numpy(), source.ids)


@dataclass(frozen=True)
class Promise:
    """What an index is calibrated to; see `laplacian_metric.retrieval.calibrate`."""

    alpha: float | None = 0.05
    delta: float = 0.1
    level: float | None = 0.9
    seed: int = 0


def build_index(
    model: ModelFolder,
    gallery: Source,
    queries: Source | None = None,
    promise: Promise | None = None,
    *,
    kind: str = "flat",
    clean: float = 0.0,
    progress: bool | None = None,
) -> Index:
    """An index of a gallery, calibrated on labelled queries where there are any.

    Args:
        model: embeds both.
        gallery: what is searched.
        queries: labelled images that are not in the gallery, and that nothing was fitted to.
        promise: what is promised.
        kind: "flat", "ivf" or "hnsw".
        clean: the share of the gallery's most uncertain items that is left out.
        progress: whether to show bars.
    """
    if queries is not None:
        _check_queries(model, gallery, queries)
    e = embed(model, gallery, progress=progress)
    index = Index(e.items, list(e.ids), kind=kind)
    kept = np.arange(len(gallery))
    if clean:
        index = index.cleaned(clean)
        row = {name: number for number, name in enumerate(gallery.ids)}
        kept = np.array([row[name] for name in index.ids.tolist()])
    if queries is None:
        return index
    promise = Promise() if promise is None else promise
    own, items = same_classes(queries, gallery)
    return calibrate(
        index,
        Items.of(embed_source(model, queries, progress=progress)),
        own,
        items[kept],
        alpha=promise.alpha,
        delta=promise.delta,
        level=promise.level,
        generator=np.random.default_rng(promise.seed),
    )


def _check_queries(model: ModelFolder, gallery: Source, queries: Source) -> None:
    """Calibration queries find themselves where they are in the gallery, and were known where they were fitted to."""
    gallery.known_labels()
    queries.require_classes("a calibration")
    digests = queries.digests()
    inside = shared(digests, gallery.digests())
    if inside:
        raise ValueError(
            f"{inside} of the {len(queries)} calibration images of {queries.title} are in the index themselves, so "
            f"that each would find itself: index {gallery.name}:train and calibrate with {gallery.name}:test, or with "
            "other images"
        )
    warn_if_seen(model, queries, "the promise may not hold for new ones")


def warn_if_seen(model: ModelFolder, source: Source, what: str) -> dict[str, int]:
    """Say so where a model was fitted to, or calibrated by, some of the images; returns how many."""
    if not model.seen:
        return {}
    digests = source.digests()
    found = {name: shared(digests, seen) for name, seen in model.seen.items()}
    told = {"train": "was fitted to", "validation": "was calibrated by"}
    for name, count in found.items():
        if count:
            LOGGER.warning(
                "the model %s %d of the %d images of %s: %s",
                told.get(name, "has seen"),
                count,
                len(source),
                source.title,
                what,
            )
    return found


def described(index: Index) -> dict[str, Any]:
    """What an index is, and what it promises, as plain values."""
    threshold = index.threshold
    return {
        "items": len(index),
        "dim": index.dim,
        "kind": index.kind.name,
        "source": index.source,
        "threshold": None
        if threshold is None
        else {
            "uncertainty": threshold.value,
            "promised_error": threshold.alpha,
            "confidence": 1 - threshold.delta,
            "tested": threshold.tested,
            "answered": threshold.answered,
            "wrong": threshold.wrong,
        },
        "calibrated": [
            name for name in ("threshold", "credible", "matching", "drift") if index.calibrations.has(name)
        ],
    }
