"""Run cells and suites, and make their tables.

    python -m experiments.harness run --cells "fashion_mnist/*" --data DATA --work WORK --results figures/results
    python -m experiments.harness tables --results figures/results --out figures
    python -m experiments.harness suite --suite url-small --data DATA --out WORK

A cell is a YAML file below experiments/cells, what goes into each table is in experiments/tables.yaml, a suite is a
YAML file below experiments/harness/suites. Run an interrupted command again to resume; several processes share the
cells of one command. WORK is for networks and features: gigabytes, outside of the repository.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from experiments import harness
from experiments.arguments import CELLS, parser, result_folders
from experiments.harness.results import read_results
from experiments.harness.suites import leaderboard
from experiments.harness.suites.running import Benchmark
from experiments.harness.suites.suite import load
from experiments.harness.tables.descriptions import read_published, read_tables
from experiments.harness.tables.tables import write_table

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = parse(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        return int(options.act(options))
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again to resume", file=sys.stderr)
        return INTERRUPTED


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; "act" is what they ask for."""
    command = parser(__doc__)
    command.add_argument("--threads", type=int, help="threads on the processor; by default torch's choice")
    actions = command.add_subparsers(required=True, metavar="{run,tables,suite}")

    run = actions.add_parser("run", help="run the cells that have no result yet")
    run.set_defaults(act=run_cells)
    run.add_argument("--cells", nargs="+", default=["*"], help='names or patterns, such as "fashion_mnist/*"')
    run.add_argument("--cells-dir", type=Path, default=CELLS, help="folder of the YAML files")
    run.add_argument("--data", type=Path, help="folder of the data sets")
    run.add_argument("--work", type=Path, required=True, help="folder for networks and features")
    run.add_argument("--results", type=Path, default=Path("figures/results"), help="folder of the results")
    run.add_argument("--seeds", type=int, nargs="+", help="instead of those that the cells name")
    run.add_argument("--device", default="cpu", help="where networks compute")
    run.add_argument("--list", action="store_true", help="show the state of every cell, and run none")
    run.add_argument("--retry-failed", action="store_true", help="run failed cells again")
    run.add_argument("--fresh", action="store_true", help="discard results and networks with other settings")
    run.add_argument("--keep-features", action="store_true", help="keep features after their last cell")

    tables = actions.add_parser("tables", help="make tables from result files, in OUT/tables")
    tables.set_defaults(act=make_tables)
    result_folders(tables)
    tables.add_argument("--only", nargs="+", metavar="NAME", default=[], help="make only these tables")

    suite = actions.add_parser("suite", help="run a suite, or judge scores by it")
    suite.set_defaults(act=run_suite)
    suite.add_argument(
        "--out", type=Path, required=True, help="folder for finished parts and the leaderboard"
    )
    suite.add_argument("--suite", default="url-small", help='its name; "quick" takes a minute or two')
    for name in ("track", "method", "seed"):
        kind = int if name == "seed" else str
        suite.add_argument(f"--{name}", nargs="+", type=kind, help=f"run only this {name}, or these")
    suite.add_argument("--scores", type=Path, help="judge an .npz file of embeddings, labels and uncertainty")
    suite.add_argument("--data", type=Path, help="folder of the data sets")

    for action in (run, tables, suite):
        action.add_argument("--threads", type=int, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return command.parse_args(arguments)


def run_cells(options: argparse.Namespace) -> int:
    """Run cells, or list their states."""
    common = {
        "cells_dir": options.cells_dir,
        "work": options.work,
        "results": options.results,
        "seeds": options.seeds,
    }
    if options.list:
        for name, seed, state in harness.states(options.cells, **common):
            print(f"{state:8} {name}, seed {seed}")
        return 0
    summary = harness.run(
        options.cells,
        **common,
        data_dir=options.data,
        retry_failed=options.retry_failed,
        fresh=options.fresh,
        keep_features=options.keep_features,
        device=options.device,
        say=_say,
    )
    return 0 if summary.ok else 1


def make_tables(options: argparse.Namespace) -> int:
    """Write every table of which some cell has been made."""
    wanted = read_tables(options.tables, options.only)
    results, published = read_results(options.results), read_published(options.published)
    for description in wanted:
        written = write_table(description, results, published, options.out / "tables")
        print(f"{description.name}: {'written' if written else 'none of its cells has been made, left out'}")
    return 0


def run_suite(options: argparse.Namespace) -> int:
    """Run a suite, or judge something by it, and write its leaderboard."""
    if options.method and options.scores:
        raise ValueError("--method runs entries of the suite, --scores judges yours: leave it out")
    run = Benchmark(
        load(options.suite),
        options.out,
        options.data,
        tracks=options.track,
        entries=options.method,
        seeds=options.seed,
        say=_say,
    )
    own = []
    ok = True
    if options.scores is not None:
        own = run.add_scores(options.scores)
    else:
        print(run.announcement(), flush=True)
        ok = run.run().ok
    print(leaderboard.write(run.results(), own or run.added(), options.out))
    return 0 if ok else 1


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
