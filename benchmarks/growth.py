"""How the cost of a posterior, an index, a query and a trusted answer grows, from 10,000 to 1,000,000 images.

    python -m benchmarks.growth --data-dir DATA --cache features --out figures

DATA holds FashionMNIST/raw, MNIST/raw and quickdraw. The rows are 174,500 images of 365 classes, each in six views that
are shifted by up to two pixels to either side, in random order: the first n rows are mostly different images. Their
features are 512 random projections of the pixels, rectified; the head is trained on the first 20,000 rows. With --cache
the features are kept. Each size is measured in a process of its own.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.common import mebibytes, peak_extra_memory, save, show, write_text
from hessians import ContrastiveLoss
from hessians.checks import CurvatureWarning
from laplacian_metric import LAM, Encoder, Trust
from laplacian_metric.core.progress import track
from laplacian_metric.data import load
from laplacian_metric.data.lookup import VARIABLE
from laplacian_metric.encoder import train_head
from laplacian_metric.laplace.accumulate import Settings
from laplacian_metric.laplace.encoder_guard import Watch
from laplacian_metric.laplace.fit import fit_layer, layer_data
from laplacian_metric.laplace.pair_search import SearchOptions
from laplacian_metric.retrieval import Index, Items

SOURCES = ("fashion-mnist", "mnist", "quickdraw")
VIEWS, SHIFT, WIDTH, DIM = 6, 2, 512, 64
HEAD_ROWS, QUERIES = 20_000, 1000
SIZES = "10000,20000,40000,80000,160000,320000,640000,1000000"
BEFORE = 80_000  # images up to which the search over rows, as it was before, is measured too
LOSS = ContrastiveLoss(margin=0.7, negatives="active")
TITLE = "Growth from 10,000 to 1,000,000 images"


def images_and_labels(data_dir: Path | None) -> tuple[Tensor, Tensor]:
    """All images (n, 28, 28) as bytes, and labels (n,) that differ between the data sets."""
    images, labels, first = [], [], 0
    for name in SOURCES:
        top = first
        for split in ("train", "validation", "test"):
            part = load(name, split, data_dir=data_dir)
            images.append((part.floats()[:, 0] * 255).round().byte())
            labels.append(part.known_labels() + first)
            top = max(top, int(labels[-1].max()) + 1)
        first = top
    return torch.cat(images), torch.cat(labels)


def rows_of(data_dir: Path | None, folder: Path, count: int) -> tuple[Tensor, Tensor]:
    """Features (count, 512), mapped from a file, and labels; computed where the folder does not have them."""
    path, labels_path = folder / f"features-{count}.bin", folder / f"labels-{count}.pt"
    shape = (count, WIDTH)
    if not labels_path.is_file():
        images, labels = images_and_labels(data_dir)
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(len(images) * VIEWS, generator=generator)[:count]
        weight = torch.randn(WIDTH, 28 * 28, generator=generator) / 28
        moves = torch.randint(2 * SHIFT + 1, (len(images) * VIEWS, 2), generator=generator)
        path.unlink(missing_ok=True)
        mapped = torch.from_file(str(path), shared=True, size=math.prod(shape)).view(shape)
        for start in track(range(0, count, 5000), "features"):
            chosen = order[start : start + 5000]
            padded = F.pad(images[chosen // VIEWS].float() / 255, (SHIFT,) * 4)
            view = torch.stack(
                [
                    one[y : y + 28, x : x + 28]
                    for one, (y, x) in zip(padded, moves[chosen].tolist(), strict=True)
                ]
            )
            mapped[start : start + 5000] = F.relu((view.flatten(1) - 0.3) @ weight.T)
        torch.save(labels[order // VIEWS], labels_path)
    labels = torch.load(labels_path, weights_only=True)
    return torch.from_file(str(path), size=math.prod(shape)).view(shape), labels


def head_of(features: Tensor, labels: Tensor, folder: Path) -> nn.Linear:
    """The head, trained once."""
    path, head = folder / "head.pt", nn.Linear(WIDTH, DIM)
    if not path.is_file():
        rows = min(HEAD_ROWS, len(features))
        generator = torch.Generator().manual_seed(0)
        trained = train_head(features[:rows].clone(), labels[:rows], LOSS, DIM, generator=generator)
        torch.save(trained.state_dict(), path)
    head.load_state_dict(torch.load(path, weights_only=True))
    return head


def timed(run: Any) -> tuple[Any, float, float, int | None]:
    """What a call returns, its seconds, its processor seconds, and the bytes by which memory rose."""
    results: list[Any] = []

    def call() -> None:
        wall, processor = time.perf_counter(), time.process_time()
        result = run()
        results.extend((result, time.perf_counter() - wall, time.process_time() - processor))

    memory = peak_extra_memory(call)
    if not results:  # memory cannot be measured here
        call()
    return results[0], results[1], results[2], memory


def fit_before(encoder: Encoder, features: Tensor, labels: Tensor) -> None:
    """A fit that goes over all pairs row by row."""
    settings = Settings(LAM(encoder, LOSS).structure, LAM(encoder, LOSS).approximation)
    data = layer_data(encoder.head, LOSS, features, labels, settings.approximation)
    fit_layer(data, settings, None, Watch(encoder))


def measured(features: Tensor, labels: Tensor, head: nn.Linear, pairs: str) -> dict[str, Any]:
    """One row of the table."""
    encoder = Encoder(nn.Identity(), head)
    lam = LAM(encoder, LOSS, pairs=pairs)
    row: dict[str, Any] = {"images": len(features)}
    _, row["fit s"], row["fit processor s"], memory = timed(
        lambda: lam.fit_features(features, labels, progress=False)
    )
    row["fit MiB"] = mebibytes(memory)
    row["precision error %"] = 100 * lam.diagnostics().precision_error
    row["before s"] = None
    if len(features) <= BEFORE:
        row["before s"] = timed(lambda: fit_before(encoder, features, labels))[2]
    lam.optimize_prior_precision()

    def items() -> Items:
        parts = [Items.of(lam.embed_features(rows)) for rows in features.split(20_000)]
        return Items.cat(parts) if len(parts) > 1 else parts[0]

    gallery, _, row["embed processor s"], memory = timed(items)
    index, _, row["index processor s"], memory = timed(lambda: Index(gallery, labels=labels.numpy()))
    row["index MiB"] = mebibytes(memory)
    return row


def main(
    data_dir: Annotated[Path, typer.Option(envvar=VARIABLE, help="Folder of the data sets.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Keep the features here.")] = None,
    sizes: Annotated[str, typer.Option(help="Numbers of images.")] = SIZES,
    pairs: Annotated[str, typer.Option(help='"auto", "exact" or "estimate".')] = "auto",
    single: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure, print, and write where asked to."""


if __name__ == "__main__":
    typer.run(main)
