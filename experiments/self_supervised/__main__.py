"""What embeddings that were learned without labels are worth, and what their uncertainties are.

    python -m experiments.self_supervised --data DATA --work WORK --out figures      # of all cells trained in WORK

The networks are those of the cells below experiments/cells/self_supervised, trained by `experiments.harness run`.
Labels are used here alone. Each network's numbers are kept in figures/self_supervised; a repeated call computes what is
missing. With --pictures, figures/plots gets self_supervised_outliers.png and self_supervised_extremes.png.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import write_text
from experiments.arguments import CELLS
from experiments.harness.cell_fitting import Fitted, fitted
from experiments.harness.config import Cells
from experiments.harness.image_sets import TEST, TRAIN
from experiments.harness.work import Work
from experiments.self_supervised import measure, outliers, tables
from laplacian_metric.core.files import atomic_write
from laplacian_metric.data.views import ImageViews

PICTURED = {
    "NT-Xent": ("self_supervised/nt_xent", 0),
    "ISIF": ("self_supervised/isif", 0),
    "UMM": ("self_supervised/umm", 0),
}
PICTURED_SCORES = {measure.OWN: "tr Sigma", "gallery distance": "distance", "embedding norm": "1/norm"}
PICTURED_SCORES |= {"LAM, InfoNCE: 1/kappa": "1/kappa", "Trust, 300 labels": "Trust"}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evaluate embeddings that were learned without labels.")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--work", type=Path, required=True, help="folder of the trained networks")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    parser.add_argument("--cells", nargs="+", default=["self_supervised/*"])
    parser.add_argument("--pictures", action="store_true", help="draw the pictures too")
    return parser.parse_args(arguments)


class Networks:
    """The trained networks by cell and seed, and the numbers of each that are in files.

    Args:
        options: of the command.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.cells = Cells(CELLS)
        self.work = Work(options.work)

    def run(self, name: str, seed: int) -> Fitted:
        """Return a trained network with its images."""
        options = self.options
        return fitted(name, seed, cells_dir=CELLS, work=options.work, data_dir=options.data, progress=False)

    def record(self, path: Path, name: str, seed: int, compute: Callable[[Fitted], Any]) -> Any:
        """Return the numbers in a file, computed where it is missing; None where the network is not trained."""
        if not path.exists():
            if self.work.trained(name, seed) is None:
                return None
            numbers = compute(self.run(name, seed))
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary:
                temporary.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
        return json.loads(path.read_text(encoding="utf-8"))

    def records(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Return the numbers of all networks that are trained, by cell and seed."""
        records: dict[str, dict[int, dict[str, Any]]] = {}
        for name in self.cells.matching(self.options.cells):
            views = getattr(self.cells[name].method.make(), "views", ImageViews())
            for seed in self.cells[name].seeds:
                path = self.options.out / f"{name}-{seed}.json"
                record = self.record(path, name, seed, lambda run: measure.evaluate(run, views))  # noqa: B023
                if record is not None:
                    records.setdefault(name, {})[seed] = record
        return records

    def outliers(self, records: tables.Records) -> tuple[dict[str, dict[int, dict[str, Any]]], Any]:
        """Return what each network makes of the outliers, and how to have these themselves.

        Without the network whose mistakes they are, only numbers that are in files are returned.
        """
        chosen: list[outliers.Outliers] = []

        def pairs() -> outliers.Outliers:
            if not chosen:
                run = self.run(*tables.REFERENCE)
                images = run.sets[TRAIN]
                chosen.append(outliers.outliers_of(outliers.embeddings(run, images), images))
            return chosen[0]

        measured: dict[str, dict[int, dict[str, Any]]] = {}
        for name, runs in records.items():
            for seed in runs if "quality" in tables.first(runs) else ():
                path = self.options.out / f"{name}-{seed}-outliers.json"
                if not path.exists() and self.work.trained(*tables.REFERENCE) is None:
                    continue
                record = self.record(path, name, seed, lambda run: outliers.measured(run, pairs()))
                if record is not None:
                    measured.setdefault(name, {})[seed] = record
        return measured, pairs


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    networks = Networks(options)
    records = networks.records()
    titles = {name: networks.cells[name].title for name in records}
    reference, seed = tables.REFERENCE
    measured, pairs = networks.outliers(records) if seed in records.get(reference, {}) else ({}, None)
    text = tables.page(records, titles, measured)
    write_text(options.out / "self_supervised.md", text)
    print(text)
    if options.pictures and pairs is not None:
        runs = {title: networks.run(*key) for title, key in PICTURED.items()}
        chosen = {title: records[name][seed]["extremes"] for title, (name, seed) in PICTURED.items()}
        test = next(iter(runs.values())).sets[TEST]
        pictures = {
            "outliers": outliers.neighbours_picture(runs, pairs()),
            "extremes": outliers.extremes_picture(chosen, PICTURED_SCORES, test),
        }
        for name, picture in pictures.items():
            with atomic_write(options.out / "plots" / f"self_supervised_{name}.png") as temporary:
                temporary.write_bytes(picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
