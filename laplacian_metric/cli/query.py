"""`lam query`; nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from laplacian_metric.cli.steps.querying import Reply


def query(
    index: Annotated[Path, typer.Argument(help="An index's folder, made by index.")],
    ids: Annotated[
        list[str] | None, typer.Option("--id", help="An item of the index; may be given several times.")
    ] = None,
    array: Annotated[Path | None, typer.Option(help="A file of embeddings, made by embed.")] = None,
    k: Annotated[int, typer.Option("-k", "--items", min=1, help="How many items for each query.")] = 5,
    order: Annotated[
        str, typer.Option(help="What comes first: cosine, expected distance, match probability.")
    ] = "cosine",
    answer_all: Annotated[bool, typer.Option("--all", help="Give items for refused queries too.")] = False,
    as_json: options.AsJson = False,
    config: options.Config = None,
) -> None:
    """Ask an index: what is found, how probable each match is, and which queries are refused.

    Example: lam query photos.index --array new.npz

    Example: lam query photos.index --id cat/001.jpg -k 3 --json
    """
    from laplacian_metric.cli.steps.querying import ask

    replies = ask(index, ids=ids or None, array=array, k=k, order=order, answer_all=answer_all)
    if as_json:
        common.print_json({"replies": [reply.to_dict() for reply in replies]})
        return
    if replies and replies[0].answered is None:
        common.note("this index has no threshold: every query is answered")
    common.show(None, common.table(("query", "answer", "similarity", "match probability"), _rows(replies), 2))
    refused = [reply for reply in replies if reply.answered is False]
    common.show(f"{len(replies) - len(refused)} of {len(replies)} queries answered")


def _rows(replies: list[Reply]) -> list[tuple[str, str, str, str]]:
    rows = []
    for reply in replies:
        name = reply.query
        if reply.answered is False:
            rows.append((name, f"refused: {reply.reason}", "", ""))
            name = ""
        for match in reply.matches:
            rows.append((name, match.item, common.number(match.similarity), common.number(match.probability)))
            name = ""
    return rows
