"""Result files that were never measured: small, whole, and different for every cell and seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

OUT = ("mnist", "svhn")


def result(cell: str, seed: int, level: float = 0.8, noise: float = 0.01) -> dict[str, Any]:
    """A result whose metrics are around `level`; `noise` is how far seeds are apart."""
    draw = random.Random(f"{cell} {seed}")

    def near(value: float) -> float:
        return min(1.0, max(0.0, value + noise * draw.uniform(-1, 1)))

    def score(value: float) -> dict[str, Any]:
        names = (
            "r_auroc",
            "ausc",
            "ausc_oracle",
            "ausc_random",
            "ece_at_1",
            "ece_at_5",
            "ece_at_10",
            "validation_r_auroc",
            "corrupted_auroc",
        )
        plain: dict[str, Any] = {name: near(value) for name in names}
        out = {name: {"auroc": near(value), "average_precision": near(value)} for name in OUT}
        return {**plain, "crop_test": near(value), "rank_correlation": None, "out": out}

    retrieval = {
        f"{kind}@{k}": near(level - 0.02 * i) for i, k in enumerate((1, 5, 10)) for kind in ("recall", "map")
    }
    retrieval["map@r"] = near(level - 0.1)
    rates = [i / 50 for i in range(51)]
    power = (1 - level) / level
    shares = [i / 100 for i in range(100)]
    return {
        "cell": cell,
        "seed": seed,
        "status": "done",
        "error": None,
        "config": {"method": {"name": cell.split("/")[-1]}, "data": {"train": "sample-fashion-mnist"}},
        "commit": "abc1234",
        "command": f"lam run --cell {cell}",
        "environment": {"threads": 1},
        "seconds": {"training": 10.0 + seed, "fit": 1.0, "evaluation": 2.0},
        "training": {
            "history": [
                {
                    "epoch": e,
                    "loss": 1 / (e + draw.random()),
                    "map@1": near(level * (1 - 0.5**e)),
                    "map@5": 0.5,
                    "seconds": 1.0,
                }
                for e in range(1, 9)
            ],
            "best_epoch": 7,
        },
        "retrieval": {"test": retrieval, "validation": retrieval, "own_similarity": None},
        "scores": {
            "own": score(level),
            "feature norm": score(0.7),
            "embedding norm": score(0.5),
            "nearest distance": score(0.75),
        },
        "calibration": {"ece": near(0.1), "samples": 100, "table": bins(level, draw)},
        "curves": {
            "roc": {
                name: {
                    "false_positive_rate": rates,
                    "true_positive_rate": [near(r**power) if 0 < r < 1 else r for r in rates],
                }
                for name in OUT
            },
            "sparsification": {
                "own": [min(1.0, level + 0.15 * s) for s in shares],
                "oracle": [min(1.0, level / (1 - s)) for s in shares],
                "random": [level] * 100,
            },
        },
        "verification": {
            name: verification(seed, near)
            for name in ("test", "mixed", "corrupt", "unseen", "unseen corrupt")
        },
        "counts": {"test": 1000},
        "settings": {},
    }


def verification(seed: int, near: Callable[[float], float]) -> dict[str, Any]:
    """One test set with mixtures of two Gaussians in the plane."""
    draw = random.Random(seed)

    def rows(low: float, high: float) -> list[list[list[float]]]:
        return [[[draw.uniform(low, high) for _ in range(2)] for _ in range(2)] for _ in range(30)]

    names = ("average_precision", "knn")
    uncertainties = ("own", "feature norm", "embedding norm", "nearest distance")
    return {
        **{name: near(0.9) for name in (*names, "knn_of_means", "knn_in_gallery")},
        "correlations": {
            score: {key: near(0.6) for name in names for key in (name, f"{name}_deviation")}
            for score in uncertainties
        },
        "bins": {
            score: {name: [near(0.9 - 0.02 * at) for at in range(20)] for name in names}
            for score in uncertainties
        },
        "images": 30,
        "space": {
            "means": rows(-2, 2),
            "variances": rows(0.001, 0.1),
            "labels": [draw.randrange(100) for _ in range(30)],
            "indices": list(range(30)),
            "centres": {"labels": [3, 42, 99], "points": [[-1.0, 0.0], [0.5, 1.0], [1.0, -1.0]]},
        },
    }


def bins(level: float, draw: random.Random) -> list[dict[str, Any]]:
    """Ten bins, the first of which is empty."""
    rows: list[dict[str, Any]] = [{"low": 0.0, "high": 0.1, "count": 0, "confidence": None, "accuracy": None}]
    for b in range(1, 10):
        confidence = (b + 0.5) / 10
        accuracy = min(1.0, confidence * level + 0.2 * draw.random())
        rows.append(
            {
                "low": b / 10,
                "high": (b + 1) / 10,
                "count": 10 * b,
                "confidence": confidence,
                "accuracy": accuracy,
            }
        )
    return rows


def failure(cell: str, seed: int, error: str = "the loss is not finite") -> dict[str, Any]:
    """A cell that failed."""
    return {
        "cell": cell,
        "seed": seed,
        "status": "failed",
        "error": error,
        "config": {},
        "commit": "abc1234",
        "command": f"lam run --cell {cell}",
        "environment": {},
        "seconds": {},
    }


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Write a result file where it belongs."""
    path = folder / content["cell"] / f"seed{content['seed']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
