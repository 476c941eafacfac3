"""`lam index`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from laplacian_metric.core.array_files import Features
    from laplacian_metric.laplace.model_folder import ModelFolder
    from laplacian_metric.serve.index import Index
    from laplacian_metric.trust import Trust

SAME = 1e-6  # a query that is closer to an item is the item itself


@dataclass(frozen=True)
class Promise:
    """The guarantee of a threshold."""

    guarantee: Annotated[
        str | None,
        typer.Option(help="Other labelled queries, which nothing was fitted on, that choose the threshold."),
    ] = None
    error: Annotated[float, typer.Option(help="Largest share of wrong answers among accepted ones.")] = 0.1
    confidence: Annotated[float, typer.Option(help="Probability that the guarantee holds.")] = 0.9


@dataclass(frozen=True)
class Place:
    """Where the items are, and changes of an index."""

    gallery: Annotated[
        str,
        typer.Option(
            help="arrays:, faiss:HNSW32, postgresql://..., qdrant:..., milvus:..., lancedb:... or chroma:..."
        ),
    ] = "arrays:"
    collection: Annotated[str, typer.Option(help="Name of the collection in the gallery.")] = "items"
    add: Annotated[bool, typer.Option("--add", help="Add the items to the index that is there.")] = False
    remove: Annotated[
        list[str] | None, typer.Option(help="Remove the item with this id; may be repeated.")
    ] = None


def index(
    out: Annotated[Path, typer.Option(help="The folder of the index.")],
    promise: Promise,
    place: Place,
    images: options.LabelledImages,
    output: options.Output,
    source: Annotated[
        str | None,
        typer.Argument(
            help="A model folder; or a file of vectors, .npz or .safetensors with the arrays features (N, H), labels "
            "(N,) and, if there are, ids (N,)."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Argument(help=f"The items, where the source is a model. {options.DATA}")
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(help="Labelled queries, neither items nor trained on, that calibrate the probability."),
    ] = None,
) -> None:
    """Build an index of labelled items that answers with a calibrated probability, or change it.

    The probability was calibrated by lam fit, or is calibrated here on the queries of --calibrate.

    Example: lam index model photos:train --guarantee photos:test --error 0.1 --out photos.index

    Example: lam index items.npz --calibrate queries.npz --gallery qdrant:http://localhost:6333 --out items.index

    Example: lam index model more-photos --add --out photos.index
    """
    from laplacian_metric.core import artifact
    from laplacian_metric.serve.index import Index, IndexManifest

    is_change = place.add or bool(place.remove)
    if (source is None) == (place.add or not place.remove):
        raise ValueError(
            "pass the source of the items, a model or a file of vectors; or --remove and no source"
        )
    with ExitStack() as held:
        if is_change:
            artifact.read_manifest(out, IndexManifest)  # it is there
            held.enter_context(artifact.lock(out))  # nobody else changes it meanwhile
        else:
            artifact.check_target(out, IndexManifest, overwrite=output.force)
        model = images.model(Path(source)) if source is not None and Path(source).is_dir() else None
        if source is not None and (model is None) == (data is not None):
            raise ValueError(
                "data is for a model, and needed with one: a file of vectors has the items itself"
            )
        items = None if source is None else _read(model, images, data or source, "train")
        if is_change:
            loaded = Index.load(out, None if place.gallery == "arrays:" else place.gallery)
            built = _changed(loaded, model, items, place.remove or [])
        else:
            assert items is not None
            queries = None if calibrate is None else _read(model, images, calibrate, "validation")
            encoder = None if model is None else model.encoder.fingerprint()
            built = Index(_calibrated(model, items, queries, place), encoder)
        if promise.guarantee is not None:
            built = _promised(built, _read(model, images, promise.guarantee, "test"), promise)
        built.save(out, overwrite=output.force or is_change)
    if output.as_json:
        common.print_json({"out": str(out), **_description(built)})
    else:
        common.show(f"{out}: {len(built)} items of {built.dim} features.", *_sentences(built))


def _read(model: ModelFolder | None, images: options.LabelledImages, place: str, split: str) -> Features:
    """Return labelled features: those in a file, or those that a model makes; unless a split is named, of this one."""
    from laplacian_metric.core.array_files import Features, read_features

    images = images if split == "train" else replace(images, labels=None)
    if model is None:
        return read_features(Path(place), images.labels)
    import numpy as np

    from laplacian_metric.laplace.frozen_features import features_of
    from laplacian_metric.laplace.model_folder import class_labels, warn_if_seen

    dataset = images.open(place, model, split)
    labels = class_labels(dataset)
    if split == "test":
        warn_if_seen(model, dataset, "the guarantee may not hold for new ones")
    features = features_of(model.encoder, dataset).features.float().cpu().numpy()
    return Features(features, np.array(dataset.ids), np.array(labels))


def _calibrated(model: ModelFolder | None, items: Features, queries: Features | None, place: Place) -> Trust:
    """Return a Trust over items, calibrated on queries or as the model was."""
    import numpy as np

    from laplacian_metric.core.gallery import open_gallery
    from laplacian_metric.trust import Trust
    from laplacian_metric.trust.head import Head

    if items.labels is None:
        raise ValueError("labels are missing: whether the nearest item is right is a question of its label")
    calibrated = None if model is None else model.trust
    if queries is None and calibrated is None:
        raise ValueError("pass --calibrate QUERIES: nothing says yet how often the nearest item is right")
    head = None if model is None else Head.of(model.encoder)
    names = [place.collection] if head is None else [place.collection, f"{place.collection}_features"]
    dims = [items.rows.shape[1]] if head is None else [len(head.weight), head.width]
    spaces = [open_gallery(place.gallery, dim=dim, name=name) for name, dim in zip(names, dims, strict=True)]
    if any(len(space) for space in spaces):
        raise ValueError(f"collection {place.collection!r} has items: pass --add, or another --collection")
    _add(items, spaces, head)
    gallery, features = spaces[0], None if head is None else spaces[1]
    if queries is not None:
        return Trust.fit(gallery, (queries.rows, queries.labels), features=features, encoder=head)
    assert calibrated is not None
    own = calibrated.spaces.of_features
    if own is not None and np.array_equal(own.sample(len(own)).vectors, items.rows):
        # The items that it was calibrated over: they trained the head, and none may be left out to calibrate again.
        return replace(calibrated, spaces=replace(calibrated.spaces, gallery=gallery, features=features))
    return calibrated.with_gallery(gallery, features=features)


def _add(items: Features, spaces: list[Any], head: Any) -> None:
    """Add items to the gallery of embeddings and, where there is a head, to that of the features."""
    rows = [items.rows] if head is None else [head.embed(items.rows).astype("float32"), items.rows]
    for space, vectors in zip(spaces, rows, strict=True):
        space.add(items.ids.tolist(), vectors, None if items.labels is None else items.labels.tolist())


def _changed(index: Index, model: ModelFolder | None, items: Features | None, remove: list[str]) -> Index:
    """Return an index with further items and without some; its guarantee was of the former items."""
    trust = index.trust
    spaces: list[Any] = [
        space for space in (trust.spaces.gallery, trust.spaces.features) if space is not None
    ]
    if items is not None:
        if model is not None and model.encoder.fingerprint() != index.encoder:
            raise ValueError(
                "the model is not that of the index: pass the model that the index was built with"
            )
        _add(items, spaces, trust.spaces.head)
    for space in spaces if remove else []:
        space.remove([int(name) for name in remove] if space.sample(1).ids.dtype.kind == "i" else remove)
    trust.refresh()
    trust.calibration = trust.calibration.withdrawn("the index was changed since the calibration")
    if index.guarantee is not None:
        common.warn(
            "warning: the guarantee was for the former items: --guarantee chooses a threshold for these"
        )
    return replace(index, guarantee=None)


def _promised(index: Index, queries: Features, promise: Promise) -> Index:
    """Return the index with a threshold above which few enough answers are wrong."""
    import numpy as np

    from laplacian_metric.trust.guarantee import Guarantee

    answer = index.trust(queries.rows)
    if queries.labels is None or answer.labels is None:
        raise ValueError("the labels of the queries of --guarantee are needed")
    if same := int((answer.distance < SAME).sum()):
        raise ValueError(
            f"{same} of the {len(answer)} queries of --guarantee are items of the index: pass others"
        )
    right = np.array(answer.labels.tolist(), dtype=object) == np.array(queries.labels.tolist(), dtype=object)
    guarantee = Guarantee.fit(answer.probability, right, error=promise.error, confidence=promise.confidence)
    return replace(index, trust=index.trust.accepting(guarantee), guarantee=guarantee)


def _description(index: Index) -> dict[str, Any]:
    """Return an index as plain values."""
    trust, error = index.trust, index.trust.calibration_error
    return {
        "items": len(index),
        "dim": index.dim,
        "threshold": trust.threshold,
        "guarantee": None if index.guarantee is None else vars(index.guarantee),
        "calibration_error": None if error is None else vars(error),
        "note": trust.note,
        "inputs": trust.inputs,
    }


def _sentences(index: Index) -> list[str]:
    """Return the calibration error and the guarantee in words."""
    trust, guarantee = index.trust, index.guarantee
    said = [
        f"calibration error of the probability: {trust.calibration_error or trust.note}",
        f"answers with a probability of at least {trust.threshold:.2f} are accepted"
        + ("" if guarantee else ", without a guarantee"),
    ]
    if guarantee is not None:
        wrong, share = guarantee.wrong / max(guarantee.answered, 1), guarantee.answered / guarantee.tested
        said += [
            f"guaranteed with probability {guarantee.confidence:.0%}: at most {guarantee.error:.1%} of them are wrong",
            f"of the queries of --guarantee {share:.1%} are accepted, {wrong:.1%} of these wrong",
        ]
    return said
