"""The command lines of the experiments: where data, networks, results and tables are, and which cells are wanted."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import write_text

HERE = Path(__file__).resolve().parent
CELLS = HERE / "cells"


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows a module's description as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def folders(
    description: str | None, required: Iterable[str] = ("--data", "--cache", "--out")
) -> argparse.ArgumentParser:
    """Return a parser of folders, all of which are needed."""
    command = parser(description)
    for option in required:
        command.add_argument(option, type=Path, required=True)
    return command


def result_folders(command: argparse.ArgumentParser) -> None:
    """Add where results, descriptions of tables and published numbers are, and where output goes."""
    command.add_argument("--results", type=Path, default=Path("figures/results"), help="folder of results")
    command.add_argument("--out", type=Path, default=Path("figures"), help="folder of figures")
    command.add_argument(
        "--tables", type=Path, default=HERE / "tables.yaml", help="what goes into each table"
    )
    command.add_argument("--published", type=Path, default=HERE / "published_numbers.yaml")


def add_places(command: argparse.ArgumentParser, described: Path) -> None:
    """Add where data, networks, results and cells are, and which seeds are wanted."""
    command.add_argument("--data", type=Path, help="folder of the data sets")
    command.add_argument("--work", type=Path, required=True, help="folder with the networks of cells")
    command.add_argument("--results", type=Path, default=Path("figures/results"))
    command.add_argument("--out", type=Path, default=Path("figures"))
    command.add_argument("--described", type=Path, default=described)
    command.add_argument("--cells-dir", type=Path, default=CELLS)
    command.add_argument("--seeds", type=int, nargs="+", help="only these")
    command.add_argument("--trained", action="store_true", help="only cells whose networks are in WORK")


def done(options: argparse.Namespace) -> set[tuple[str, int]]:
    """Return the cells and seeds that have a result, and are wanted."""
    from experiments.harness.cell_fitting import is_trained
    from experiments.harness.results import read_results

    finished = {
        (result.cell, result.seed)
        for result in read_results(options.results)
        if result.done and (options.seeds is None or result.seed in options.seeds)
    }
    if not options.trained:
        return finished
    return {one for one in finished if is_trained(*one, cells_dir=options.cells_dir, work=options.work)}


def kept(path: Path, compute: Callable[[], Mapping[str, Any]]) -> bool:
    """Write what is computed into a JSON file unless it exists; return whether it was computed."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(compute(), indent=2) + "\n")
    return True


def kept_results(folder: Path) -> list[dict[str, Any]]:
    """Return what the JSON files of a folder hold, in the order of their names."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    if not results:
        raise SystemExit(f"there are no results in {folder}: run it first")
    return results


def run_or_table(
    description: str | None,
    run: Callable[[Path, Path, Path], Iterable[str]],
    table: Callable[[Path], Iterable[Path]],
) -> None:
    """Read the command line of experiments on cached features: `run` what is missing, or make the `table`.

    ``run`` takes the folders of data, features and results and yields the name of whatever it has finished; ``table``
    takes the last of them and returns what it wrote.
    """
    command = parser(description)
    command.add_argument("action", choices=["run", "table"])
    command.add_argument("--data", type=Path, help="folder of the data sets")
    command.add_argument(
        "--cache", type=Path, help="folder of features, that of experiments.trust if there is one"
    )
    command.add_argument("--out", type=Path, required=True, help="folder of results and tables")
    options = command.parse_args()
    if options.action == "table":
        for path in table(options.out):
            print(f"written: {path}")
        return
    if options.cache is None or options.data is None:
        command.error("run needs --data and --cache")
    torch.set_num_threads(1)
    for name in run(options.data, options.cache, options.out):
        print(f"finished: {name}", flush=True)
