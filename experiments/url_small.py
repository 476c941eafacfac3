"""The results of the suite `url-small`: compact files, tables, and the answers to the questions of the URL papers.

    python -m experiments.url_small --benchmark url-small --data data --out figures

reads the folder that `python -m experiments.harness suite --out url-small` keeps. What was not run says so.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.harness.suites import Benchmark, load, rows
from experiments.harness.suites.judging import GALLERY_DISTANCE, IMAGE, MATCH_RISK, TRUST
from experiments.harness.suites.leaderboard import frame, shown, track_text
from experiments.harness.suites.running import V1, V2
from experiments.harness.tables.table_text import plain_table
from experiments.url_small_figures import questions, riskiest, scatter
from experiments.url_small_questions import (
    RECALL,
    across_models,
    by_strength,
    compared,
    many_shot,
    mean_of,
    safe,
)
from laplacian_metric.core.files import atomic_write
from laplacian_metric.metrics.evaluation import OWN

DIGITS = 4
PAIRS = (  # first entry and score, second entry and score
    ("risk-head", OWN, "softmax", OWN),
    ("loss-head", OWN, "softmax", OWN),
    ("risk-head", OWN, "laplace-diag", OWN),
    ("risk-head", MATCH_RISK, "risk-head", GALLERY_DISTANCE),
    ("deterministic", MATCH_RISK, "deterministic", GALLERY_DISTANCE),
    ("risk-head", MATCH_RISK, "deterministic", MATCH_RISK),
    ("risk-head", TRUST, "risk-head", MATCH_RISK),
    ("risk-head", OWN, "joint-risk-stopped", OWN),
    ("joint-risk", OWN, "joint-risk-stopped", OWN),
    ("joint-risk", RECALL, "joint-risk-stopped", RECALL),
)


def _interval(pair: Mapping[str, float]) -> str:
    return f"{pair['difference']:+.3f} ({pair['low']:+.3f} to {pair['high']:+.3f})"


def rounded(content: Any) -> Any:
    """Return plain values with numbers of four digits."""
    if isinstance(content, dict):
        return {key: rounded(value) for key, value in content.items()}
    if isinstance(content, list):
        return [rounded(value) for value in content]
    return round(content, DIGITS) if isinstance(content, float) and math.isfinite(content) else content


def text_of(run: Benchmark, track: str, results: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the tables and answers of one track in Markdown, and what else was computed for them."""
    content = results["tracks"][track]
    first = [row for row in rows(results, "V1") if row.track == track]
    pairs = {
        f"{a}: {b} less {c}: {d}": compared(run, track, content["entries"], (a, b, c, d))
        for a, b, c, d in PAIRS
    }
    ceiling = many_shot(run, track, run.suite.seeds) if run.suite.tracks[track].network.frozen else []
    parts = track_text(results, track)
    lines = [
        [name, "–" if one is None else _interval(one), "–" if one is None else str(one["seeds"])]
        for name, one in pairs.items()
    ]
    parts += [
        "## Differences over the same draws of classes: R-AUROC, or R@1 where it says so\n",
        plain_table(["first less second", "difference", "seeds"], lines),
    ]
    header = ["column", "rank correlation with R-AUROC on the main set", "p", "scores"]
    parts += ["## Does R-AUROC rank scores as other columns do?\n", plain_table(header, across_models(first))]
    levels = list(map(str, run.suite.tracks[track].strengths))
    parts += ["## Corruptions of growing strength, and unseen against seen classes\n"]
    parts += [plain_table(["method", *levels, "unseen/seen"], by_strength(content))]
    header = ["method", "score", "all", "a tenth of queries rejected", "... at random"]
    header += ["a tenth of the gallery dropped", "both", "... at random"]
    parts += ["## R@1 of safe retrieval\n", plain_table(header, safe(content))]
    if ceiling:
        parts += [
            "## Many-shot ceiling\n",
            f"A risk head that is trained on half of the unseen images detects the errors of the "
            f"other half with an R-AUROC of {shown(mean_of(ceiling))} ({', '.join(map(shown, ceiling))} by seed).\n",
        ]
    return "\n".join(parts), {"pairs": pairs, "many-shot": ceiling}


def files_of(run: Benchmark, track: str, results: Mapping[str, Any]) -> dict[str, str | bytes]:
    """Return the files of one track by their place below the folder of figures."""
    name, content = track.replace("-", "_"), results["tracks"][track]
    text, more = text_of(run, track, results)
    compact = {**results, "tracks": {track: content}, "compared": more, "digests": results["digests"][track]}
    first, second = ([row for row in rows(results, rule) if row.track == track] for rule in (V1, V2))
    listed = [row for row in first if row.seeds and row.group == IMAGE]
    files: dict[str, str | bytes] = {
        f"tables/url_small_{name}.md": text,
        f"results/url_small/{name}.json": json.dumps(rounded(compact), separators=(",", ":")) + "\n",
        f"results/url_small/{name}.csv": frame([*first, *second]).to_csv(index=False),
        f"plots/url_small_{name}.png": scatter(listed),
        f"plots/url_small_{name}_questions.png": questions(first, content),
    }
    if (drawn := riskiest(run, track, content["entries"])) is not None:
        files[f"plots/url_small_{name}_riskiest.png"] = drawn
    return files


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the compact results, the tables and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmark", type=Path, required=True, help="folder of the suite")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of figures")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    run = Benchmark(load("url-small"), options.benchmark, options.data)
    results = run.results()
    for track in results["tracks"]:
        for place, content in files_of(run, track, results).items():
            path = options.out / place
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary:
                temporary.write_bytes(content.encode() if isinstance(content, str) else content)


if __name__ == "__main__":
    main()
