"""Time of the neighbours by match probability, beside the probabilities of all pairs, and what of these is computed.

    python -m benchmarks.closest_matches --result figures/results/n_digit/N2_D2_gaussian_beta0/seed0.json --out figures

The result says how some test images lie in the plane; every image here is one of these, and has samples of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.common import mebibytes, median_seconds, peak_extra_memory, report
from laplacian_metric.methods.gaussian.match_probability import MatchProbability, mismatch_probability
from experiments.harness.closest_matches import closest_matches

SEARCHES = (("test", "test"), ("corrupt", "test"), ("corrupt", "corrupt"))
IMAGES, QUERIES, SAMPLES, NEIGHBOURS = 10_000, 256, 8, 6
TITLE = "Neighbours by match probability"
NOTE = (
    f"{QUERIES} images among {IMAGES:,}, {SAMPLES} samples each, the {NEIGHBOURS} that match most probably. 'all' has "
    "the probabilities of all pairs; 'closest' those that balls around the samples do not rule out, which are 'left', "
    "in per cent. Both take the greatest. Times are medians in ms of interleaved runs in one process, memory is the "
    "peak beyond what was there before, in MiB."
)


def images(space: dict[str, Any], generator: torch.Generator) -> Tensor:
    """Samples (K, N, Z) of images drawn from those of a result with one Gaussian each."""
    means, variances = (torch.tensor(space[name])[:, 0] for name in ("means", "variances"))
    which = torch.randint(len(means), (IMAGES,), generator=generator)
    noise = torch.randn(SAMPLES, IMAGES, means.shape[1], generator=generator)
    return means[which] + variances[which].sqrt() * noise


def measure(
    queries: str, gallery: str, verification: dict[str, Any], match: MatchProbability, repeats: int
) -> dict[str, Any]:
    """One search, both ways interleaved."""
    generator = torch.Generator().manual_seed(0)
    first, second = (images(verification[name]["space"], generator) for name in (queries, gallery))
    rows = torch.arange(QUERIES)
    score = closest_matches(first, second, match, NEIGHBOURS)
    runs = {
        "all": lambda: mismatch_probability(first[:, rows], second, match).topk(NEIGHBOURS, largest=False),
        "closest": lambda: score(rows).topk(NEIGHBOURS),
    }
    seconds = median_seconds(runs, repeats=repeats)
    memory = {name: mebibytes(peak_extra_memory(run)) for name, run in runs.items()}
    return {
        "queries": queries,
        "gallery": gallery,
        "all": seconds["all"] * 1e3,
        "closest": seconds["closest"] * 1e3,
        "all / closest": seconds["all"] / seconds["closest"],
        "left": float(score(rows).isfinite().double().mean()) * 100,
        "memory, all": memory["all"],
        "memory, closest": memory["closest"],
    }


def main(
    result: Annotated[Path, typer.Option(help="A result of experiments.run with one Gaussian an image.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds of interleaved runs.")] = 5,
) -> None:
    """Measure all searches."""
    read = json.loads(result.read_text(encoding="utf-8"))
    settings = read["settings"]
    if not {"scale", "offset"} <= settings.keys():
        raise typer.BadParameter(
            f"{result} says nothing of a and b: it is of another method, or of an older version"
        )
    match = MatchProbability(settings["scale"], settings["offset"])
    with torch.no_grad():
        rows = [measure(*search, read["verification"], match, repeats) for search in SEARCHES]
    note = f"{NOTE} The images are those of {read['cell']}, seed {read['seed']}."
    report(TITLE, rows, out, "benchmark_closest_matches", note)


if __name__ == "__main__":
    typer.run(main)
