"""`lam data`: data sets by name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from laplacian_metric.cli import common, options

app = typer.Typer(
    help="Data sets: which there are, whether they are here, where to get them.", no_args_is_help=True
)

Names = Annotated[list[str] | None, typer.Argument(help="Data sets; all of them if none is named.")]


@app.command("list")
def list_all(as_json: options.AsJson = False) -> None:
    """All data sets by name, with their splits and licences.

    Example: lam data list
    """
    from laplacian_metric import data

    found = [data.info(name) for name in data.names()]
    if as_json:
        common.print_json(
            [
                {
                    "name": one.name,
                    "title": one.title,
                    "splits": [split.value for split in one.splits],
                    "licence": one.licence,
                    "page": one.page,
                    "citation": one.citation,
                }
                for one in found
            ]
        )
        return
    rows = [
        (one.name, one.title, ", ".join(split.value for split in one.splits), one.licence) for one in found
    ]
    common.show(None, common.table(("name", "title", "splits", "licence"), rows, numeric=4))


@app.command()
def check(name: Names = None, data_dir: options.DataDir = None, as_json: options.AsJson = False) -> None:
    """Whether the files of data sets are found; ends with 1 where one that is named is not.

    Example: lam data check fashion-mnist cub-200-2011 --data-dir datasets
    """
    from laplacian_metric import data
    from laplacian_metric.cli.steps.data_sets import state

    found = [state(one, data_dir) for one in name or data.names()]
    if as_json:
        common.print_json([asdict(one) for one in found])
    else:
        rows = [(one.name, "yes" if one.found else "no", one.place or _short(one.problem)) for one in found]
        common.show(None, common.table(("name", "found", "where"), rows, numeric=3))
    if name and not all(one.found for one in found):
        raise typer.Exit(1)


def _short(problem: str) -> str:
    return "not found: see lam data where" if "was not found" in problem else problem


@app.command()
def where(name: Names = None, data_dir: options.DataDir = None, as_json: options.AsJson = False) -> None:
    """Which folders are looked in, and how to get data sets and lay out their files.

    Example: lam data where cub-200-2011
    """
    from laplacian_metric import data

    folders = [str(folder) for folder in data.data_folders(data_dir)]
    found = [data.info(one) for one in name or []]
    told: list[dict[str, Any]] = [
        {"name": one.name, "title": one.title, "page": one.page, "layout": one.layout, "obtain": one.obtain}
        for one in found
    ]
    if as_json:
        common.print_json({"folders": folders, "data": told})
        return
    common.show(f"folders, in order: {', '.join(folders)}")
    for one in told:
        rows = [(key, one[key]) for key in ("page", "layout", "obtain") if one[key]]
        common.show(f"{one['name']}: {one['title']}", common.table(("", ""), rows, numeric=2))
