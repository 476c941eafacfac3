"""Run cells of the published tables.

    python -m experiments.run --cells "fashion_mnist/*" --data DATA --work WORK --results figures/results

A cell is a YAML file below experiments/cells. What has a result is skipped; the command may be interrupted and
repeated, and several at once share the work. WORK is for networks and features: gigabytes, outside of the repository.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import torch

import experiments.hard_margin
import experiments.methods
import experiments.published  # noqa: F401 (all register what cells need)
from experiments import harness as runs

CELLS = Path(__file__).resolve().parent / "cells"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run cells of the published tables.")
    parser.add_argument(
        "--cells", nargs="+", default=["*"], help='names or patterns, such as "fashion_mnist/*"'
    )
    parser.add_argument("--cells-dir", type=Path, default=CELLS, help="folder of the YAML files")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--work", type=Path, required=True, help="folder for networks and features")
    parser.add_argument("--results", type=Path, default=Path("figures/results"), help="folder of the results")
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of those that the cells name")
    parser.add_argument("--threads", type=int, help="processor threads; by default torch's choice")
    parser.add_argument("--device", default="cpu", help="where networks compute")
    parser.add_argument("--list", action="store_true", help="show the state of every cell, and run none")
    parser.add_argument("--retry-failed", action="store_true", help="run again what failed")
    parser.add_argument("--fresh", action="store_true", help="do anew what was made with other settings")
    parser.add_argument("--keep-features", action="store_true", help="features stay after the last cell")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    common = {
        "cells_dir": _shown(options.cells_dir),
        "work": options.work,
        "results": options.results,
        "seeds": options.seeds,
    }
    try:
        if options.list:
            for name, seed, state in runs.states(options.cells, **common):
                print(f"{state:8} {name}, seed {seed}")
            return 0
        summary = runs.run(
            options.cells,
            **common,
            data_dir=options.data,
            retry_failed=options.retry_failed,
            fresh=options.fresh,
            keep_features=options.keep_features,
            device=options.device,
            say=lambda line: print(line, flush=True),
        )
    except (runs.ConfigError, runs.RunError, OSError) as error:
        print(f"run: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("run: interrupted; the same command goes on where it was", file=sys.stderr)
        return 130
    return 0 if summary.ok else 1


def _shown(folder: Path) -> Path:
    """The folder as messages name it: from here, where it is below."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_absolute() and folder.is_relative_to(here) else folder


if __name__ == "__main__":
    sys.exit(main())
