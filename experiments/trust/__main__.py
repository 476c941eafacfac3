"""Measure `Trust` beside every free score and the learned rivals on all settings.

    python -m experiments.trust --data DATA --cache CACHE --out figures [--only NAME ...]

CACHE, outside of the repository, keeps features and inputs. Written are OUT/results/trust/NAME-SEED.json, one for each
setting and seed that is not there yet, and from all of them OUT/tables/trust*.md and OUT/plots/trust.png.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.arguments import folders
from experiments.trust.features import Arrays, cached
from experiments.trust.measure import (
    LEARNED,
    MEASURES,
    NOVELTY,
    OWN,
    RIVAL,
    TRUST,
    Scored,
    bootstrap_weights,
    calibration_of,
    inputs,
    measures,
    scored,
    weighted,
)
from experiments.trust.picture import draw
from experiments.trust.settings import DEVELOPMENT, NAMES, seeds_of, setting
from experiments.trust.tables import write_tables
from laplacian_metric.core.files import atomic_write
from laplacian_metric.trust.guarantee import Guarantee, NoGuaranteeError

QUERIES = 300
SIZES, DRAWS = (60, 100, 300, 1000), 10
RESAMPLES, SPLITS = 200, 200
NOISE = 0.01  # the share of validation queries that become duplicates with wrong labels
DRAWN, DRAWN_TITLE = "cifar-lite0", "CIFAR-10, three classes held out"


def inputs_of(data: Path, cache: Path, name: str, seed: int) -> Arrays:
    """Return the inputs of a setting, from the cache where it has them."""
    return cached(cache / "inputs2" / f"{name}-{seed}.npz", lambda: inputs(setting(data, cache, name, seed)))


def compared(scored_queries: Scored, classes: Any, summary: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return how much better the probability (R, O) and the novelty (near, far) are than each rival, paired."""
    weights = bootstrap_weights(scored_queries, RESAMPLES, classes)
    draws = {name: weighted(scored_queries, name, weights) for name in summary}
    result: dict[str, Any] = {}
    for measure in MEASURES:
        own = TRUST if measure in ("R", "O") else NOVELTY
        if measure not in summary[own]:
            continue
        result[measure] = {}
        for name in (name for name in draws if name not in OWN):
            apart = (draws[own][measure] - draws[name][measure]).numpy()
            low, high = np.quantile(apart, [0.025, 0.975])
            value = summary[own][measure] - summary[name][measure]
            result[measure][name] = {"value": value, "low": low, "high": high, "se": float(apart.std())}
    return result


def by_number(arrays: Arrays) -> dict[str, Any]:
    """Return R, O and the calibration error with 60 to 1,000 validation queries, ten draws each, beside the rival."""
    num = len(arrays["validation:right"])
    result: dict[str, Any] = {}
    for size in (size for size in SIZES if size <= num):
        draws = []
        for number in range(DRAWS if size < num else 1):
            rows = np.random.default_rng(number).permutation(num)[:size]
            if len(np.unique(arrays["validation:right"][rows])) < 2:
                continue
            scores = scored(arrays, rows)
            draw_of: dict[str, Any] = {"flagged": scores.flagged}
            for name in (TRUST, RIVAL, LEARNED[8]):
                values = measures(scores, name)
                draw_of[name] = {key: values[key] for key in ("R", "O") if key in values}
                draw_of[name]["ECE"] = scores.calibration_error(name)
            if scores.announced is not None:
                error = draw_of[TRUST]["ECE"]
                draw_of["inside"] = float(scores.announced.low <= error <= scores.announced.high)
            draws.append(draw_of)
        result[str(size)] = draws
    return result


def promised(scored_queries: Scored) -> dict[str, Any]:
    """Return, for Trust and the rival, in how many splits the guarantee is broken, and the mean share answered.

    One half of the test queries chooses a threshold that promises half of the error of answering all, with confidence
    .9; the other half is answered.
    """
    error = round(0.5 * float((~scored_queries.right).mean()), 3)
    result: dict[str, Any] = {"error": error, "splits": SPLITS}
    for name in (TRUST, RIVAL):
        broken, answered = 0, []
        for split in range(SPLITS):
            order = np.random.default_rng(split).permutation(len(scored_queries.right))
            chosen, later = np.array_split(order, 2)
            p, right = scored_queries.probability[name], scored_queries.right
            try:
                answers = Guarantee.fit(p[chosen], right[chosen], error=error).answers(p[later])
            except NoGuaranteeError:
                answered.append(0.0)
                continue
            answered.append(float(answers.mean()))
            broken += bool(answers.any()) and float((~right[later][answers]).mean()) > error
        result[name] = {"broken": broken / SPLITS, "answered": float(np.mean(answered))}
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
        "test": len(scored_queries.right),
        "wrong": int((~scored_queries.right).sum()),
        "validation": int(min(QUERIES, len(arrays["validation:right"]))),
        "ECE": {score: scored_queries.calibration_error(score) for score in scored_queries.probability},
        "announced": None if announced is None else [announced.value, announced.low, announced.high],
        "flagged": scored_queries.flagged,
        "weights": dict(zip(*weights_of(arrays), strict=True)),
        "scores": summary,
        "differences": compared(scored_queries, arrays.get("test:classes"), summary),
        "by number of queries": by_number(arrays),
        "guarantee": promised(scored_queries),
    }


def weights_of(arrays: Arrays) -> tuple[tuple[str, ...], list[float]]:
    """Return the names and the weights of the match inputs."""
    match = calibration_of(arrays, slice(0, QUERIES)).match
    return match.names, match.weights.tolist()


def main() -> None:
    """Run the command line."""
    parser = folders(__doc__)
    parser.add_argument("--only", nargs="*", default=NAMES, choices=NAMES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=UserWarning)
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
    write_tables(results, options.out / "tables")
    drawn = scored(inputs_of(options.data, options.cache, DRAWN, 0), slice(0, QUERIES))
    draw(drawn, DRAWN_TITLE, options.out / "plots" / "trust.png")


if __name__ == "__main__":
    main()
