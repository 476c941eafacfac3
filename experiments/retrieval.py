"""Retrieval that can refuse, on the embeddings of the papers' cells.

    python -m experiments.retrieval --data DATA --work WORK --results figures/results --out figures

What is measured is in `experiments/retrieval.yaml`. Only cells and seeds that have a result file are taken; their
networks are read from WORK, where embeddings are kept too, and trained anew where they are not there, or left out with
--trained. Written are OUT/retrieval_<what>.md and .json for the errors
among answered queries (refusal), safe retrieval (safe), promised error rates (promise), credible sets (credible), match
probabilities (matching) and drift (drift), and OUT/plots/retrieval_refusal.png and retrieval_matching.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import save, show
from experiments.arguments import add_places, done
from experiments.refusal.embedded import OWN, Embedded, embedded
from experiments.refusal.measures import Matched, SplitSearch, rejection_curve, split_search
from experiments.refusal.pictures import refusal_picture, reliability_picture
from experiments.refusal.tables import (
    NOTES,
    SHARES,
    TITLES,
    Judge,
    Row,
    credible_rows,
    drift_rows,
    matching_rows,
    promise_rows,
    refusal_rows,
    safe_rows,
)
from laplacian_metric.core.checked import read_yaml
from laplacian_metric.core.files import atomic_write
from laplacian_metric.core.progress import track

HERE = Path(__file__).resolve().parent


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure retrieval that can refuse.")
    add_places(parser, HERE / "retrieval.yaml")
    options = parser.parse_args(arguments)
    described = read_yaml(options.described)["sets"]
    results = done(options)
    rows: dict[str, list[Row]] = {
        name: [] for name in ("refusal", "safe", "promise", "credible", "matching", "drift")
    }
    curves: dict[str, dict[str, list[NDArray[np.float64]]]] = {}
    tables: dict[str, dict[str, list[Matched]]] = {}
    for test_set in described.values():
        title = test_set["title"]
        judges = _judges(test_set, results, options)
        if not judges:
            continue
        rows["refusal"] += refusal_rows(title, judges)
        rows["safe"] += safe_rows(title, judges)
        rows["promise"] += promise_rows(title, judges, test_set["alphas"])
        rows["credible"] += credible_rows(title, judges)
        more, tables[title] = matching_rows(title, judges)
        rows["matching"] += more
        rows["drift"] += drift_rows(title, judges, test_set["ood"])
        curves[title] = {
            judge.label: [
                rejection_curve(e.scores[judge.score][search.queries], search.wrong, SHARES)
                for e, search in judge.runs
            ]
            for judge in judges
        }
    if not curves:
        raise SystemExit(
            f"{options.results} has no result of a cell in {options.described.name} that is asked for: run cells first"
        )
    for name, table_rows in rows.items():
        if not table_rows:
            print(f"retrieval_{name}: no result that is asked for has what it shows, left out")
            continue
        show(TITLES[name], table_rows)
        save(options.out, f"retrieval_{name}", TITLES[name], table_rows, NOTES[name])
    folder = options.out / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in (
        ("retrieval_refusal", refusal_picture(SHARES, curves)),
        ("retrieval_matching", reliability_picture(tables)),
    ):
        with atomic_write(folder / f"{name}.png") as temporary:
            temporary.write_bytes(picture)


def _judges(
    described: Mapping[str, Any], done: set[tuple[str, int]], options: argparse.Namespace
) -> list[Judge]:
    """The rows of a data set for which there are networks."""
    kept: dict[tuple[str, int], tuple[Embedded, SplitSearch]] = {}
    judges = []
    for row in track(described["rows"], described["title"]):
        runs = []
        for seed in described["seeds"]:
            key = (row["cell"], seed)
            if key not in done:
                continue
            if key not in kept:
                e = embedded(*key, cells_dir=options.cells_dir, work=options.work, data=options.data)
                kept[key] = e, split_search(e)
            runs.append(kept[key])
        if runs:
            judges.append(Judge(row["label"], row.get("score", OWN), runs))
    return judges


if __name__ == "__main__":
    main()
