"""`lam query`; nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from laplacian_metric.retrieval.replies import Reply


LISTED = 20  # refused queries that are listed one by one


def query(
    index: Annotated[Path, typer.Argument(help="An index's folder, made by index.")],
    printing: options.Printing,
    ids: Annotated[
        list[str] | None, typer.Option("--id", help="An item of the index; may be repeated.")
    ] = None,
    array: Annotated[Path | None, typer.Option(help="A file of embeddings, made by embed.")] = None,
    k: Annotated[int, typer.Option("-k", "--items", min=1, help="Items that each query returns.")] = 5,
    order: Annotated[
        Literal["cosine", "expected distance", "match probability"],
        typer.Option(help="What the items are ordered by."),
    ] = "cosine",
    answer_all: Annotated[bool, typer.Option("--all", help="Return items for refused queries too.")] = False,
) -> None:
    """Search an index: the nearest items, how probable each match is, and which queries are refused.

    Example: lam query photos.index --array new.npz

    Example: lam query photos.index --id cat/001.jpg -k 3 --json
    """
    from laplacian_metric.retrieval.replies import query_embedded, query_ids
    from laplacian_metric.retrieval.storage import open_saved

    if (not ids) == (array is None):
        raise ValueError("pass either --id, an item of the index, or --array, a file of embeddings")
    loaded = open_saved(index)
    most = len(loaded) - bool(ids)
    if k > most:
        common.note(f"each query returns {most} items: the index has no more")
    if array is None:
        replies = query_ids(loaded, ids or [], min(k, most), order=order, answer_all=answer_all)
    else:
        from laplacian_metric.retrieval.embedding_files import Embedded

        embedded = Embedded.read(array)
        replies = query_embedded(
            loaded,
            embedded.items if loaded.trust is None else embedded.by_point(),
            embedded.ids,
            min(k, most),
            order=order,
            answer_all=answer_all,
            features=embedded.features,
        )
    if printing.as_json:
        common.print_json({"replies": [reply.to_dict() for reply in replies]})
        return
    if replies and replies[0].answered is None:
        common.note("this index has no threshold: every query is answered")
    _show(replies)


def _show(replies: list[Reply]) -> None:
    rows: list[tuple[str, ...]] = []
    refused = [reply for reply in replies if reply.answered is False]
    for reply in replies:
        name = reply.query
        for match in reply.matches:
            right = common.number(reply.probability) if match is reply.matches[0] and reply.trust else ""
            numbers = (common.number(match.similarity), common.number(match.probability))
            rows.append((name, match.item, *numbers, right))
            name = ""
    header = ["query", "answer", "similarity", "match probability", "nearest is right"]
    if not any(reply.trust for reply in replies):
        header, rows = header[:-1], [row[:-1] for row in rows]
    if rows:
        common.show(common.table(header, rows, slice(2, None)))
    # Reasons are long: in the same table they would make every line as long.
    listed = [(reply.query, f"refused: {reply.reason}") for reply in refused[:LISTED]]
    if listed:
        common.show(common.table(("query", "reason"), listed, slice(2, None)))
    if len(refused) > LISTED:
        common.show(f"... {len(refused)} queries are refused in all; --json lists each with its reason")
    common.show(f"{len(replies) - len(refused)} of {len(replies)} queries answered")
