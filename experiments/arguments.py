"""What commands that look further than result files are asked for: where things are, and which cells and seeds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from experiments.refusal.embedded import is_trained
from experiments.run import CELLS
from experiments.harness.results import read_results


def add_places(parser: argparse.ArgumentParser, described: Path) -> None:
    """The options that say where data, networks, results and cells are, and which seeds are wanted."""
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder with the networks of experiments.run"
    )
    parser.add_argument("--results", type=Path, default=Path("figures/results"))
    parser.add_argument("--out", type=Path, default=Path("figures"))
    parser.add_argument("--described", type=Path, default=described)
    parser.add_argument("--cells-dir", type=Path, default=CELLS)
    parser.add_argument("--seeds", type=int, nargs="+", help="only these")
    parser.add_argument("--trained", action="store_true", help="only cells whose networks are in WORK")


def done(options: argparse.Namespace) -> set[tuple[str, int]]:
    """The cells and seeds that have a result, and are wanted."""
    finished = {
        (result.cell, result.seed)
        for result in read_results(options.results)
        if result.done and (options.seeds is None or result.seed in options.seeds)
    }
    if not options.trained:
        return finished
    return {one for one in finished if is_trained(*one, cells_dir=options.cells_dir, work=options.work)}


def folders(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the folders of data, of what is computed once, and of results, all of which are needed."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in ("--data", "--cache", "--out"):
        parser.add_argument(option, type=Path, required=True)
    return parser


def run_or_table(
    description: str | None,
    run: Callable[[Path, Path, Path], Iterable[str]],
    table: Callable[[Path], Iterable[Path]],
) -> None:
    """Read the command line of experiments on cached features: `run` what is missing, or make the `table`.

    ``run`` takes the folders of data, features and results and yields the name of whatever it has finished; ``table``
    takes the last of them and returns what it wrote.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument(
        "--cache", type=Path, help="folder of features, that of experiments.trust if there is one"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of results and tables")
    options = parser.parse_args()
    if options.action == "table":
        for path in table(options.out):
            print(f"written: {path}")
        return
    if options.cache is None or options.data is None:
        parser.error("run needs --data and --cache")
    torch.set_num_threads(1)
    for name in run(options.data, options.cache, options.out):
        print(f"finished: {name}", flush=True)
