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
            held.enter_context(artifact.lock(out))
            loaded = Index.load(out, None if place.gallery == "arrays:" else place.gallery)
        else:
            artifact.check_target(out, IndexManifest, overwrite=output.force)
        items = None if source is None else Opened.of(source, images)
        if is_change:
            built = _changed(loaded, items, data, place.remove or [])
        else:
            assert items is not None
            built = _built(items, data, calibrate, place)
        if promise.guarantee is not None:
            queries = (items or Opened(None, images)).read(promise.guarantee, "test")
            built = _promised(built, queries, promise)
        built.save(out, overwrite=output.force or is_change)
    if output.as_json:
        common.print_json({"out": str(out), **_description(built)})
    else:
        common.show(f"{out}: {len(built)} items of {built.dim} features.", *_sentences(built))


@dataclass(frozen=True)
class Opened:
    """A model that makes features of items and queries; None where files have them already."""

    model: ModelFolder | None
    images: options.LabelledImages
    vectors: str | None = None

    @staticmethod
    def of(source: str, images: options.LabelledImages) -> Opened:
        if Path(source).is_dir():
            return Opened(images.model(Path(source)), images)
        return Opened(None, images, source)

    def items(self, data: str | None) -> Features:
        """Return the items."""
        if (self.model is None) == (data is not None):
            raise ValueError(
                "data is for a model, and needed with one: a file of vectors has the items itself"
            )
        return self.read(str(data or self.vectors), "train")

    def read(self, place: str, split: str) -> Features:
        """Return labelled features; unless a split is named, of this one."""
        from laplacian_metric.core.array_files import Features, read_features

        if self.model is None:
            return read_features(Path(place), self.images.labels if split == "train" else None)
        from laplacian_metric.laplace.frozen_features import features_of
        from laplacian_metric.laplace.model_folder import warn_if_seen

        images = self.images if split == "train" else replace(self.images, labels=None)
        dataset = images.open(place, self.model, split)
        if split == "test":
            warn_if_seen(self.model, dataset, "the guarantee may not hold for new ones")
        features = features_of(self.model.encoder, dataset).features.float().cpu().numpy()
        dataset.known_labels()
        import numpy as np

        return Features(features, np.array(dataset.ids), np.array(dataset.label_names.tolist()))


def _built(opened: Opened, data: str | None, calibrate: str | None, place: Place) -> Index:
    """Return a new index."""
    from laplacian_metric.serve.index import Index
    from laplacian_metric.trust import Trust

    items, model = opened.items(data), opened.model
    if items.labels is None:
        raise ValueError("labels are missing: whether the nearest item is right is a question of its label")
    calibrated = None if model is None else model.trust
    if calibrate is None and calibrated is None:
        raise ValueError("pass --calibrate QUERIES: nothing says yet how often the nearest item is right")
    head = None if model is None else _head(model)
    gallery, features = _galleries(place, items, head)
    if calibrate is not None:
        queries = opened.read(calibrate, "validation")
        trust = Trust.fit(gallery, (queries.rows, queries.labels), features=features, encoder=head)
    else:
        assert calibrated is not None
        trust = _over(calibrated, gallery, features, items)
    return Index(trust, None if model is None else model.encoder.fingerprint())


def _head(model: ModelFolder) -> Any:
    from laplacian_metric.trust.head import Head

    return Head.of(model.encoder)


def _galleries(place: Place, items: Features, head: Any) -> tuple[Any, Any]:
    """Return the gallery of the embeddings, and that of the features where there is a head."""
    from laplacian_metric.core.gallery import open_gallery

    ids, labels = items.ids.tolist(), None if items.labels is None else items.labels.tolist()
    spaces = [(place.collection, items.rows if head is None else head.embed(items.rows).astype("float32"))]
    if head is not None:
        spaces.append((f"{place.collection}_features", items.rows))
    galleries = []
    for name, rows in spaces:
        gallery = open_gallery(place.gallery, dim=rows.shape[1], name=name)
        if len(gallery):
            raise ValueError(f"collection {name!r} has items already: pass --add, or another --collection")
        gallery.add(ids, rows, labels)
        galleries.append(gallery)
    return galleries[0], galleries[1] if head is not None else None


def _over(calibrated: Trust, gallery: Any, features: Any, items: Features) -> Trust:
    """Return what a model was calibrated to over a gallery; over its own training items as it is."""
    import numpy as np

    own = calibrated.spaces.of_features
    assert own is not None
    if np.array_equal(own.sample(len(own)).vectors, items.rows):
        return replace(calibrated, spaces=replace(calibrated.spaces, gallery=gallery, features=features))
    return calibrated.with_gallery(gallery, features=features)


def _changed(index: Index, opened: Opened | None, data: str | None, remove: list[str]) -> Index:
    """Return an index with further items and without some; its guarantee was of the former items."""
    trust = index.trust
    gallery, features = trust.spaces.gallery, trust.spaces.features
    galleries = [(gallery, trust.spaces.head), *([] if features is None else [(features, None)])]
    if opened is not None:
        if opened.model is not None and opened.model.encoder.fingerprint() != index.encoder:
            raise ValueError(
                "the model is not that of the index: pass the model that the index was built with"
            )
        items = opened.items(data)
        labels = None if items.labels is None else items.labels.tolist()
        for space, head in galleries:
            rows = items.rows if head is None else head.embed(items.rows).astype("float32")
            space.add(items.ids.tolist(), rows, labels)
    if remove:
        ids = [int(name) for name in remove] if _has_numbers(gallery) else remove
        for space, _ in galleries:
            space.remove(ids)
    trust.refresh()
    trust.calibration = trust.calibration.withdrawn("the index was changed since the calibration")
    if index.guarantee is not None:
        common.warn(
            "warning: the guarantee was for the former items: --guarantee chooses a threshold for these"
        )
    return replace(index, guarantee=None)


def _has_numbers(gallery: Any) -> bool:
    return bool(gallery.sample(1).ids.dtype.kind == "i")


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
    trust = index.trust
    return {
        "items": len(index),
        "dim": index.dim,
        "threshold": trust.threshold,
        "guarantee": None if index.guarantee is None else vars(index.guarantee),
        "calibration_error": None if trust.calibration_error is None else vars(trust.calibration_error),
        "note": trust.note,
        "inputs": trust.inputs,
    }


def _sentences(index: Index) -> list[str]:
    """Return the calibration error and the guarantee in words."""
    trust, guarantee = index.trust, index.guarantee
    said = [f"calibration error of the probability: {trust.calibration_error or trust.note}"]
    if guarantee is None:
        return [
            *said,
            f"accepts answers with a probability of at least {trust.threshold:.2f}, without a guarantee",
        ]
    share, wrong = guarantee.answered / guarantee.tested, guarantee.wrong / max(guarantee.answered, 1)
    return [
        *said,
        f"accepts answers with a probability of at least {guarantee.threshold:.2f}: {share:.1%} of the queries of",
        f"--guarantee, {wrong:.1%} of them wrong. Guaranteed with probability {guarantee.confidence:.0%}: at most "
        f"{guarantee.error:.1%} are wrong.",
    ]
