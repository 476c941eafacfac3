"""`lam query`; vectors are answered without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from laplacian_metric.serve.index import Index, Reply


def query(
    index: Annotated[Path, typer.Argument(help="The folder of an index, or of a saved Trust.")],
    images: options.Images,
    printing: options.Printing,
    queries: Annotated[
        str | None,
        typer.Argument(
            help="An image, a folder of images, or a file of vectors: .npz or .safetensors with the arrays features "
            "(Q, H) and, if there are, ids (Q,); or .npy."
        ),
    ] = None,
    texts: Annotated[
        list[str] | None, typer.Option("--text", help="A text to search for; may be repeated.")
    ] = None,
    model: options.QueryModel = None,
    sentences: options.Sentences = None,
    gallery: options.Address = None,
    k: Annotated[int, typer.Option("-k", "--items", min=1, max=50, help="Items that are shown.")] = 1,
) -> None:
    """Search an index: the nearest item, the probability that it is right, and a verdict.

    Example: lam query photos.index new.jpg --model model

    Example: lam query photos.index new.npz -k 3 --json
    """

    from laplacian_metric.serve.index import Index

    if (queries is None) == (not texts):
        raise ValueError("pass either queries, an image or a file of vectors, or --text")
    loaded = Index.load(index, gallery)
    ids, features = _texts(texts, sentences) if queries is None else _features(queries, loaded, model, images)
    replies = loaded.replies(features, k)
    if printing.as_json:
        pairs = zip(ids, replies, strict=True)
        common.print_json({"replies": [{"query": name, **reply.model_dump()} for name, reply in pairs]})
    else:
        _show(ids, replies, k)


def _features(place: str, index: Index, model: Path | None, images: options.Images) -> tuple[list[str], Any]:
    """Return names and features (Q, H) of images or of the vectors in a file."""
    from laplacian_metric.core import array_files

    if Path(place).suffix.lower() in array_files.SUFFIXES:
        read = array_files.read_features(Path(place))
        return [str(name) for name in read.ids.tolist()], read.rows
    if model is None:
        raise ValueError(f"{place} is no file of vectors: pass --model, the model of the index, for images")
    from laplacian_metric.laplace.frozen_features import features_of
    from laplacian_metric.serve.queries import Inputs

    loaded = images.model(model)
    Inputs(loaded).check(index)
    source = images.open(place, loaded, every_image=True)
    return list(source.ids), features_of(loaded.encoder, source).features


def _texts(texts: list[str] | None, sentences: str | None) -> tuple[list[str], Any]:
    from laplacian_metric.serve.queries import load_inputs

    return list(texts or []), load_inputs(None, sentences, "cpu").of_texts(list(texts or []))


def _show(ids: list[str], replies: list[Reply], k: int) -> None:
    rows: list[tuple[str, ...]] = []
    for name, reply in zip(ids, replies, strict=True):
        said = (common.number(reply.probability, 3), reply.verdict, reply.because)
        for place, item in enumerate(reply.neighbours):
            first = place == 0
            near = (str(item.id), str(item.label), common.number(item.distance))
            rows.append((name if first else "", *near, *(said if first else ("", "", ""))))
    header = ("query", "nearest", "label", "distance", "probability", "verdict", "because")
    common.show(common.table(header, rows, slice(3, 5)))
    accepted = sum(reply.verdict == "accept" for reply in replies)
    common.show(f"{accepted} of {len(replies)} answers accepted")
