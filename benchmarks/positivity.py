"""Time of the exact expected positivity, beside the expected likelihood kernel and MCInfoNCE with 16 draws.

python -m benchmarks.positivity --out figures
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.nn import functional as F

from benchmarks.common import median_seconds, report
from laplacian_metric.methods.spherical.vmf_contrast import elk_info_nce, mc_info_nce, positivity_info_nce

SIZES = ((256, 10), (256, 128))
TITLE = "Losses of von Mises-Fisher distributions, forward and backward"
NOTE = (
    "A batch of N images in D dimensions, 32 classes, concentrations from 10 to 100, float32 (series and kernel are "
    "computed in float64). MCInfoNCE takes all pairs of 16 draws of both images. Medians in ms of interleaved runs in "
    "one process."
)


def measure(num: int, dim: int, repeats: int) -> dict[str, Any]:
    """Return the times of one size."""
    generator = torch.Generator().manual_seed(0)
    mean = F.normalize(torch.randn(num, dim, generator=generator), dim=1).requires_grad_()
    kappa = (10 + 90 * torch.rand(num, generator=generator)).requires_grad_()
    labels = torch.arange(num) % 32
    losses: dict[str, Callable[[], Tensor]] = {
        "kernel": lambda: elk_info_nce(mean, kappa, labels),
        "positivity": lambda: positivity_info_nce(mean, kappa, labels, kappa_pos=20.0),
        "MCInfoNCE": lambda: mc_info_nce(
            mean, kappa, labels, kappa_pos=20.0, samples=16, generator=generator
        ),
    }
    runs: dict[str, Callable[[], object]] = {
        name: lambda loss=loss: torch.autograd.grad(loss(), [mean, kappa])  # type: ignore[misc]
        for name, loss in losses.items()
    }
    seconds = median_seconds(runs, repeats=repeats)
    return {
        "N, D": f"{num}, {dim}",
        **{name: s * 1e3 for name, s in seconds.items()},
        "positivity / kernel": seconds["positivity"] / seconds["kernel"],
        "positivity / MCInfoNCE": seconds["positivity"] / seconds["MCInfoNCE"],
    }


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds of interleaved runs.")] = 7,
) -> None:
    """Measure all sizes."""
    rows = [measure(*size, repeats) for size in SIZES]
    report(TITLE, rows, out, "benchmark_positivity", NOTE)


if __name__ == "__main__":
    typer.run(main)
