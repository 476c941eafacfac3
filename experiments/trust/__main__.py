"""Measure `Trust` beside every free rival on all settings.

    python -m experiments.trust --data DATA --cache CACHE --out figures [--only NAME ...]

CACHE, outside of the repository, keeps features and inputs. Written are OUT/results/trust/NAME-SEED.json, one for each
setting and seed that is not there yet, and from all of them OUT/tables/trust*.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.arguments import folders
from experiments.trust.ablation import ablation
from experiments.trust.features import Arrays, cached
from experiments.trust.measure import (
    MEASURES,
    NOVELTY,
    OWN,
    TRUST,
    Scored,
    bootstrap_weights,
    inputs,
    measures,
    scored,
    weighted,
)
from experiments.trust.picture import draw
from experiments.trust.promise import promise
from experiments.trust.settings import DEVELOPMENT, NAMES, seeds_of, setting
from experiments.trust.tables import write_tables
from laplacian_metric.core.files import atomic_write

QUERIES = 300
SIZES = (100, 300, 1000)
DRAWS = 10
RESAMPLES = 200
DRAWN, DRAWN_TITLE = "cifar-lite0", "CIFAR-10, three classes held out"


def inputs_of(data: Path, cache: Path, name: str, seed: int) -> Arrays:
    """Return the inputs of a setting, from the cache where it has them."""
    return cached(cache / "inputs" / f"{name}-{seed}.npz", lambda: inputs(setting(data, cache, name, seed)))


def difference(values: torch.Tensor, others: torch.Tensor, own: float, other: float) -> dict[str, float]:
    """Return a difference with its bootstrap interval and standard error."""
    draws = (values - others).numpy()
    draws = draws[np.isfinite(draws)]
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"value": own - other, "low": float(low), "high": float(high), "se": float(draws.std())}


def compared(scored_queries: Scored, classes: Any, summary: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return how much better the probability (of R and O) and the novelty (of S) are than each rival, paired."""
    weights = bootstrap_weights(scored_queries, RESAMPLES, classes=classes)
    draws = {name: weighted(scored_queries, name, weights) for name in scored_queries.scores["test"]}
    result: dict[str, Any] = {}
    for measure in MEASURES:
        own = TRUST if measure in ("R", "O") else NOVELTY
        if measure in summary[own]:
            result[measure] = {
                name: difference(
                    draws[own][measure], draws[name][measure], summary[own][measure], summary[name][measure]
                )
                for name in draws
                if name not in OWN
            }
    return result


def by_number(arrays: Arrays) -> dict[str, Any]:
    """Return the measures with 100, 300 and 1,000 validation queries, ten draws each."""
    num = len(arrays["validation:right"])
    result = {}
    for size in SIZES:
        if size > num:
            continue
        draws = []
        for number in range(DRAWS if size < num else 1):
            rows = np.random.default_rng(number).permutation(num)[:size]
            if len(np.unique(arrays["validation:right"][rows])) < 2:
                continue
            scores = scored(arrays, rows, free=False)
            values = measures(scores, TRUST)
            novelty = measures(scores, NOVELTY)
            announced = scores.announced
            draws.append(
                {"R": values["R"], "O": values["O"], "S": novelty["S"], "ECE": scores.calibration_error}
                | {"inside": float(announced.low <= scores.calibration_error <= announced.high)}
                | {"flagged": scores.flagged}
            )
        if draws:
            result[str(size)] = draws
    return result


def cell(arrays: Arrays, name: str, seed: int) -> dict[str, Any]:
    """Return everything that is measured of a setting."""
    scored_queries = scored(arrays, slice(0, QUERIES))
    summary = {score: measures(scored_queries, score) for score in scored_queries.scores["test"]}
    announced = scored_queries.announced
    return {
        "name": name,
        "seed": seed,
        "development": name in DEVELOPMENT,
        "zero-shot": "test:classes" in arrays,
        "test": len(scored_queries.right),
        "wrong": int((~scored_queries.right).sum()),
        "validation": int(min(QUERIES, len(arrays["validation:right"]))),
        "ood": {
            part: len(scores[NOVELTY]) for part, scores in scored_queries.scores.items() if part != "test"
        },
        "ECE": scored_queries.calibration_error,
        "announced": {"value": announced.value, "low": announced.low, "high": announced.high},
        "Brier": float(np.mean((scored_queries.probability - scored_queries.right) ** 2)),
        "flagged": scored_queries.flagged,
        "scores": summary,
        "differences": compared(scored_queries, arrays.get("test:classes"), summary),
        "by number of queries": by_number(arrays),
    }


def main() -> None:
    """Run the command line."""
    parser = folders(__doc__)
    parser.add_argument("--only", nargs="*", default=NAMES, choices=NAMES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = options.out / "results" / "trust"
    results.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        for seed in seeds_of(name):
            path = results / f"{name}-{seed}.json"
            if path.is_file():
                continue
            print(f"{name}, seed {seed}", flush=True)
            result = cell(inputs_of(options.data, options.cache, name, seed), name, seed)
            with atomic_write(path) as temporary:
                temporary.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    for name in options.only:
        path = results / "further" / f"{name}.json"
        if path.is_file():
            continue
        print(f"{name}, the promise and the posterior", flush=True)
        arrays = inputs_of(options.data, options.cache, name, 0)
        scored_queries = scored(arrays, slice(0, QUERIES))
        rivals = tuple(score for score in scored_queries.scores["test"] if score not in OWN[1:])
        result = {
            "name": name,
            "wrong": int((~scored_queries.right).sum()),
            "promise": promise(scored_queries, rivals),
        }
        content = setting(options.data, options.cache, name, 0)
        if content.head is not None and not content.zero_shot:
            result["posterior"] = ablation(content, arrays, slice(0, QUERIES))
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    write_tables(results, options.out / "tables")
    drawn = scored(inputs_of(options.data, options.cache, DRAWN, 0), slice(0, QUERIES))
    draw(drawn, DRAWN_TITLE, options.out / "plots" / "trust.png")


if __name__ == "__main__":
    main()
