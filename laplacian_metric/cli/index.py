"""`lam index`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from laplacian_metric.core.dataset import Dataset
    from laplacian_metric.laplace.model_folder import ModelFolder
    from laplacian_metric.retrieval import Index, Items
    from laplacian_metric.trust.trust import Trust


NAMED = 5  # repeated images that a message names


@dataclass(frozen=True)
class Promise:
    """What an index is calibrated to, see `laplacian_metric.retrieval.calibrate`."""

    alpha: Annotated[
        float, typer.Option(help="Promise: the largest share of wrong answers among all answers.")
    ] = 0.05
    delta: Annotated[float, typer.Option(help="The probability that the promise does not hold.")] = 0.1
    level: Annotated[float, typer.Option(help="Promise: the share of answer sets with a right item.")] = 0.9
    seed: options.Seed = 0


def index(
    model: options.Model,
    data: Annotated[str, typer.Argument(help=f"The images that are searched. {options.DATA}")],
    out: Annotated[Path, typer.Option(help="The folder of the index to write.")],
    promise: Promise,
    images: options.LabelledImages,
    output: options.Output,
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="Labelled images outside of index and training, by which the index learns to refuse."
        ),
    ] = None,
    kind: Annotated[
        Literal["flat", "ivf", "hnsw"],
        typer.Option(help="flat is exact; ivf and hnsw are approximate, and faster for many items."),
    ] = "flat",
    clean: Annotated[float, typer.Option(help="Leave out this share of items, the least certain.")] = 0.0,
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Index each repeated image once.")
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Keep the items in qdrant:URL, qdrant:FOLDER, milvus:URI or milvus:FILE.db; the index's folder then "
            "holds only the calibration."
        ),
    ] = None,
    collection: Annotated[
        str, typer.Option(help="Name of the collection in the engine.")
    ] = "laplacian_metric",
) -> None:
    """Build an index of images. Once calibrated, it rejects queries that it is likely to get wrong.

    With a model of fit --calibrate the index gives the probability that each answer is right, and a reason for doubt.

    Unless a split is named, the training images of a data set are indexed, or all images of a folder.

    Example: lam index model photos:train --calibrate photos:test --alpha 0.1 --out photos.index

    Example: lam index model photos --engine qdrant:http://localhost:6333 --collection photos --out photos.index
    """
    from laplacian_metric.core.artifact import check_target
    from laplacian_metric.laplace.frozen_features import features_of
    from laplacian_metric.retrieval import Index, engines
    from laplacian_metric.retrieval.engines.storage import CollectionManifest
    from laplacian_metric.retrieval.storage import IndexManifest, save

    check_target(out, IndexManifest if engine is None else CollectionManifest, overwrite=output.force)
    loaded = images.model(model)
    gallery = _once(images.open(data, loaded, "train"), drop_duplicates)
    queries = None if calibrate is None else images.open_other(calibrate, loaded, "validation")
    if queries is not None:
        _check_queries(loaded, gallery, queries)
    features = features_of(loaded.encoder, gallery)
    trust = _trust_over(loaded, gallery, features)
    items = _items(loaded, features, by_point=trust is not None)
    built = Index(items, list(gallery.ids), kind=kind if engine is None else "flat").with_trust(trust)
    if clean:
        built = built.cleaned(clean)
    if queries is not None:
        built = _calibrated(built, loaded, gallery, queries, promise)
    place = ""
    if engine is None:
        save(built, out, overwrite=output.force)
    else:
        kept = engines.from_index(
            built,
            engine,
            collection=collection,
            overwrite=output.force,
            **({"kind": kind} if engine.startswith("milvus:") else {}),
        )
        engines.save(kept, out, overwrite=output.force)
        place = f" in {kept.engine.address}"
        kept.close()
    if output.as_json:
        common.print_json({"out": str(out), **_description(built), "engine": engine})
    else:
        common.show(f"{out}: {len(built)} items in {built.dim} dimensions{place}.", _promise(built))


def _once(gallery: Dataset, drop: bool) -> Dataset:
    """Return the images without repeats if they are to be dropped; warn about them otherwise."""
    import torch

    first: dict[int, int] = {}  # the row of the first image with a digest
    originals = [first.setdefault(digest, row) for row, digest in enumerate(gallery.digests().tolist())]
    repeated = {row: original for row, original in enumerate(originals) if row != original}
    if not repeated:
        return gallery
    ids, names = gallery.ids, None if gallery.labels is None else gallery.label_names
    pairs = [f"{ids[row]} repeats {ids[original]}" for row, original in repeated.items()]
    named = ", ".join(pairs[:NAMED]) + (", ..." if len(pairs) > NAMED else "")
    other = [] if names is None else [row for row, one in repeated.items() if names[row] != names[one]]
    classes = f", {len(other)} of them with another class than the first" if other else ""
    are = "is a repeat" if len(repeated) == 1 else "are repeats"
    text = f"{len(repeated)} of the {len(gallery)} images of {gallery.title} {are}{classes} ({named})"
    if not drop:
        common.warn(
            f"warning: {text}: each finds its copy, so that answers look more certain than they are; "
            "--drop-duplicates indexes each once"
        )
        return gallery
    common.note(f"{text}: each is indexed once")
    keep = torch.ones(len(gallery), dtype=torch.bool)
    keep[list(repeated)] = False
    return gallery.select(keep)


def _items(model: ModelFolder, features: Dataset, by_point: bool) -> Items:
    """Return features as items; those of an index with `Trust` have the deterministic embeddings as directions."""
    from laplacian_metric.retrieval import Items

    embedding = model.lam.embed_features(features).to("cpu")
    if by_point:
        embedding = replace(embedding, mean=embedding.point)
    return Items.of(embedding, variance=False)


def _trust_over(model: ModelFolder, gallery: Dataset, features: Dataset) -> Trust | None:
    """Return the model's `Trust` over a gallery; None where it has none, or nobody knows the gallery's classes."""
    import numpy as np

    from laplacian_metric.core.labelled_gallery import LabelledGallery
    from laplacian_metric.laplace.model_inputs import class_labels

    if model.trust is None:
        return None
    if gallery.labels is None:
        common.warn(
            "warning: the classes of the images are not known, so that the index cannot say what to trust"
        )
        return None
    rows, own = features.features.float().cpu().numpy(), model.trust.gallery
    if isinstance(own, LabelledGallery) and np.array_equal(rows, own.features.rows):
        return model.trust  # the images that it was calibrated over
    return model.trust.with_gallery(rows, class_labels(gallery))


def _check_queries(model: ModelFolder, gallery: Dataset, queries: Dataset) -> None:
    """Refuse queries that are in the gallery, and warn about queries that the model was fitted to."""
    from laplacian_metric.core.dataset import shared
    from laplacian_metric.laplace.model_inputs import warn_if_seen

    gallery.known_labels()
    queries.require_classes("a calibration")
    count = shared(queries.digests(), gallery.digests())
    if count:
        raise ValueError(
            f"{count} of the {len(queries)} calibration images of {queries.title} are in the index themselves, so "
            f"that each would find itself: index {gallery.name}:train and calibrate with {gallery.name}:test, or with "
            "other images"
        )
    warn_if_seen(model, queries, "the promise may not hold for new ones")


def _calibrated(
    index: Index, model: ModelFolder, gallery: Dataset, queries: Dataset, promise: Promise
) -> Index:
    """Return the index with what is promised for queries like these."""
    import numpy as np

    from laplacian_metric.core.dataset import same_classes
    from laplacian_metric.laplace.frozen_features import features_of
    from laplacian_metric.retrieval import calibrate

    features = features_of(model.encoder, queries)

    labels, gallery_labels = same_classes(queries, gallery)
    class_of = dict(zip(gallery.ids, gallery_labels.tolist(), strict=True))
    return calibrate(
        index,
        _items(model, features, by_point=index.trust is not None),
        labels,
        [class_of[name] for name in index.ids.tolist()],
        alpha=promise.alpha,
        delta=promise.delta,
        level=promise.level,
        generator=np.random.default_rng(promise.seed),
        features=None if index.trust is None else features.features.float().cpu().numpy(),
    )


def _description(index: Index) -> dict[str, Any]:
    """Return what an index is and what it promises, as plain values."""
    threshold = index.threshold
    promise = threshold and {
        "uncertainty": threshold.value,
        "promised_error": threshold.alpha,
        "confidence": 1 - threshold.delta,
        "tested": threshold.tested,
        "answered": threshold.answered,
        "wrong": threshold.wrong,
    }
    return {
        "items": len(index),
        "dim": index.dim,
        "kind": index.kind.name,
        "source": index.source,
        "threshold": promise,
        "trust": None if index.trust is None else str(index.trust.calibration_error),
        "calibrated": [
            name for name in ("threshold", "credible", "matching", "drift") if index.calibrations.has(name)
        ],
    }


def _promise(index: Index) -> str:
    """Return what the index promises, in words."""
    threshold = index.threshold
    if threshold is None and index.trust is not None:
        return (
            "It gives the probability that each answer is right, and refuses doubtful queries. "
            "Expected calibration error:\n"
            f"{index.trust.calibration_error}. --calibrate promises an error rate."
        )
    if threshold is None:
        return "It answers every query: --calibrate lets it refuse."
    share = threshold.answered / threshold.tested
    wrong = threshold.wrong / threshold.answered if threshold.answered else 0.0
    what = f"uncertainty is at most {threshold.value:.4g}"
    if index.trust is not None:
        what = f"probability is at least {1 - threshold.value:.4g}"
    return (
        f"It answers queries whose {what}: {share:.1%} of the calibration\n"
        f"queries, {wrong:.1%} of them wrongly. Promised: at most {threshold.alpha:.1%} of its answers are wrong,\n"
        f"with probability {1 - threshold.delta:.0%}, for queries like those."
    )
