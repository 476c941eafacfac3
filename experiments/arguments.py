"""What commands that look further than result files are asked for: where things are, and which cells and seeds."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.refusal.embedded import is_trained
from experiments.run import CELLS
from laplacian_metric.runs.results import read_results


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
    found = {
        (result.cell, result.seed)
        for result in read_results(options.results)
        if result.done and (options.seeds is None or result.seed in options.seeds)
    }
    if not options.trained:
        return found
    return {one for one in found if is_trained(*one, cells_dir=options.cells_dir, work=options.work)}
