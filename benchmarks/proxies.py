"""Time of a training step with non-isotropic proxies, beside one with cosine proxies.

python -m benchmarks.proxies --out figures
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from benchmarks.common import median_seconds, report
from hessians import ContrastiveLoss
from laplacian_metric.core.method import Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.spherical.proxies import Proxies

CLASSES = 138
DIM = 64
BATCHES = (128, 256)
METRICS = ("cosine", "l2", "nivmf", "el-vmf")
TITLE = "A training step with class proxies"
NOTE = (
    f"Forward, backward and Adam on a batch of 28 x 28 images, {CLASSES} classes, {DIM} dimensions, three convolutions "
    "with 32 and 64 channels. Medians in ms of interleaved runs in one process."
)


def network() -> nn.Sequential:
    """Return three convolutions and two poolings: images (N, 1, 28, 28) -> (N, 1024)."""
    layers = (nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU())
    return nn.Sequential(*layers, nn.Conv2d(64, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())


def step_of(metric: Any, batch: int) -> Callable[[], None]:
    """Return one step of a new network on one batch."""
    torch.manual_seed(0)
    encoder = Encoder(network(), nn.Linear(1024, DIM))
    learner = Proxies(metric=metric).learner([encoder], Setup(ContrastiveLoss(), batch, num_classes=CLASSES))
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-4)
    images, labels = torch.rand(batch, 1, 28, 28), torch.randint(CLASSES, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        learner.loss(images, labels).backward()
        optimizer.step()

    return step


def measure(batch: int, repeats: int) -> dict[str, Any]:
    """Return the times of one batch size."""
    seconds = median_seconds({metric: step_of(metric, batch) for metric in METRICS}, repeats=repeats)
    row: dict[str, Any] = {"batch": batch} | {metric: s * 1e3 for metric, s in seconds.items()}
    return row | {"nivmf / cosine": seconds["nivmf"] / seconds["cosine"]}


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds of interleaved runs.")] = 15,
) -> None:
    """Measure all batch sizes."""
    rows = [measure(batch, repeats) for batch in BATCHES]
    report(TITLE, rows, out, "benchmark_proxies", NOTE)


if __name__ == "__main__":
    typer.run(main)
