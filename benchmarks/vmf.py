"""Time of the concentration without samples, beside the matrix products of the head and beside 100 samples.

    python -m benchmarks.vmf --out figures

The closed form needs the variances of the raw embeddings, which are a second matrix product with the head's weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.common import mebibytes, median_seconds, peak_extra_memory, report
from laplacian_metric import vmf

SIZES = ((10_000, 9216, 3), (10_000, 2048, 128), (1_000, 2048, 2048))
SAMPLES = 100
RANK = 8
TITLE = "Concentrations of Gaussian embeddings, with and without samples"
NOTE = (
    "Gaussian embeddings of N images in Z dimensions by a head of H features. 'head' is the matrix product "
    "(N x H)(H x Z); 'diagonal' the closed form for a variance in each dimension; 'low rank' the same with a factor "
    f"of rank {RANK} (double precision), for a tenth of the images and scaled up; 'samples' draws {SAMPLES} embeddings "
    "for each image, normalises and fits them, '-' where they would need more than 2 GiB. Times "
    "are medians in ms of interleaved runs in one process, memory is the peak beyond what was there before, in MiB."
)


def measure(num: int, width: int, dim: int, repeats: int) -> dict[str, Any]:
    """One size, all ways interleaved."""
    generator = torch.Generator().manual_seed(0)
    features, weight = (
        torch.randn(num, width, generator=generator),
        torch.randn(width, dim, generator=generator),
    )
    mean = features @ weight / width**0.5
    variance = 0.1 * torch.rand(num, dim, generator=generator)
    few = max(1, num // 10)
    factor = 0.1 * torch.randn(few, dim, RANK, generator=generator)

    def samples() -> object:
        draws = torch.randn(SAMPLES, num, dim, generator=generator)
        draws.mul_(variance.sqrt()).add_(mean)
        return vmf.fit(torch.nn.functional.normalize(draws, dim=-1, out=draws))

    runs: dict[str, Callable[[], object]] = {
        "head": lambda: features @ weight,
        "diagonal": lambda: vmf.projected_normal(mean, variance),
        "low rank": lambda: vmf.projected_normal(mean[:few], variance[:few], factor),
    }
    if 4 * SAMPLES * num * dim < 2 << 30:
        runs["samples"] = samples
    seconds = median_seconds(runs, repeats=repeats)
    memory = {name: mebibytes(peak_extra_memory(runs[name])) for name in runs if name != "head"}
    sampled = seconds.get("samples")
    return {
        "N, H, Z": f"{num}, {width}, {dim}",
        "head": seconds["head"] * 1e3,
        "diagonal": seconds["diagonal"] * 1e3,
        "low rank": seconds["low rank"] * 1e3 * num / few,
        "samples": None if sampled is None else sampled * 1e3,
        "samples / diagonal": None if sampled is None else sampled / seconds["diagonal"],
        "ns per entry and node": seconds["diagonal"] * 1e9 / (num * dim * vmf.projected.NODES),
        "memory, diagonal": memory["diagonal"],
        "memory, samples": memory.get("samples"),
    }


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds of interleaved runs.")] = 7,
) -> None:
    """Measure all sizes."""
    with torch.no_grad():
        rows = [measure(*size, repeats) for size in SIZES]
    report(TITLE, rows, out, "benchmark_vmf", NOTE)


if __name__ == "__main__":
    typer.run(main)
