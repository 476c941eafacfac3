"""`lam data`: data sets by name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from laplacian_metric.cli import common, options

app = typer.Typer(
    help="List data sets, check whether their files are found, and say where to get them.",
    no_args_is_help=True,
)

Names = Annotated[list[str] | None, typer.Argument(help="Data sets; by default all of them.")]


@app.command("list")
def list_all(as_json: options.AsJson = False) -> None:
    """List all data sets by name, with their splits and licences.

    Example: lam data list
    """
    from laplacian_metric import data

    infos = [data.info(name) for name in data.names()]
    splits = [[split.value for split in info.splits] for info in infos]
    if as_json:
        fields = ("name", "title", "licence", "page", "citation")
        common.print_json(
            [
                {**{field: getattr(info, field) for field in fields}, "splits": names}
                for info, names in zip(infos, splits, strict=True)
            ]
        )
        return
    rows = [
        (info.name, info.title, ", ".join(names), info.licence)
        for info, names in zip(infos, splits, strict=True)
    ]
    common.show(common.table(("name", "title", "splits", "licence"), rows, slice(4, None)))


@app.command()
def check(name: Names = None, data_dir: options.DataDir = None, as_json: options.AsJson = False) -> None:
    """Check whether the files of data sets are found; exit with 1 if a named one is missing.

    Example: lam data check fashion-mnist cub-200-2011 --data-dir datasets
    """
    from laplacian_metric import data
    from laplacian_metric.data.registry import state

    states = [state(one, data_dir) for one in name or data.names()]
    if as_json:
        common.print_json([asdict(one) for one in states])
    else:
        rows = [(one.name, "yes" if one.found else "no", one.place or _short(one.problem)) for one in states]
        common.show(common.table(("name", "found", "where"), rows, slice(3, None)))
    if name and not all(one.found for one in states):
        raise typer.Exit(1)


def _short(problem: str) -> str:
    return "not found: see lam data where" if "was not found" in problem else problem


@app.command()
def where(name: Names = None, data_dir: options.DataDir = None, as_json: options.AsJson = False) -> None:
    """List the folders that are searched, and say how to get data sets and lay out their files.

    Example: lam data where cub-200-2011
    """
    from laplacian_metric import data

    folders = [str(folder) for folder in data.data_folders(data_dir)]
    fields = ("name", "title", "page", "layout", "obtain")
    infos = [{field: getattr(data.info(one), field) for field in fields} for one in name or []]
    if as_json:
        common.print_json({"folders": folders, "data": infos})
        return
    common.show(f"folders, in order: {', '.join(folders)}")
    for info in infos:
        common.show(f"\n{info['name']}: {info['title']}")
        common.show(*(f"{field}: {info[field]}" for field in fields[2:] if info[field]))
