"""What each of several processes computes of one fit, beside one process that has all images.

    python -m benchmarks.processes --out figures

Random clusters of 512 features and 64 dimensions. The processes are on one machine and share its processors, so that
the time of each processor is measured and not that of the clock.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist
import typer
from torch import nn

from benchmarks.common import Row, report
from hessians import ContrastiveLoss
from hessians.checks import CurvatureWarning
from laplacian_metric import LAM, Encoder

WIDTH, DIM, CLASSES = 512, 64, 200
TITLE = "One fit by several processes"
NOTE = (
    f"{CLASSES} random clusters, {WIDTH} features, {DIM} dimensions, 'fixed', one thread for each process. Seconds of "
    "the processor during the fit, of the busiest process; 'share' is that over the time of one process, and "
    "'difference' the relative difference of the curvature's diagonal from that of one process."
)


def fit(rank: int, folder: str, processes: int, images: int) -> None:
    """Fit to this process's share of the images, and write the time and the curvature."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CurvatureWarning)
    if processes > 1:
        meeting = f"file://{folder}/meeting-{images}-{processes}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (images,), generator=generator)
    centres = torch.randn(CLASSES, WIDTH, generator=generator)
    features = 0.5 * centres[labels] + 0.5 * torch.randn(images, WIDTH, generator=generator)
    torch.manual_seed(0)
    lam = LAM(Encoder(nn.Identity(), nn.Linear(WIDTH, DIM)), ContrastiveLoss(margin=0.9))
    rows = torch.arange(images).tensor_split(processes)[rank]
    own, own_labels = features[rows], labels[rows]
    begun = time.process_time()
    lam.fit_features(own, own_labels, check_mode=False, progress=False)
    seconds = time.process_time() - begun
    assert lam.fitted is not None
    torch.save((seconds, lam.fitted.curvature.diagonal()), f"{folder}/{images}-{processes}-{rank}.pt")
    if processes > 1:
        dist.destroy_process_group()


def measured(images: int, processes: int, folder: Path) -> tuple[float, torch.Tensor]:
    """The seconds of the busiest process, and the curvature's diagonal."""
    torch.multiprocessing.spawn(fit, (os.fspath(folder), processes, images), nprocs=processes)
    results = [
        torch.load(folder / f"{images}-{processes}-{rank}.pt", weights_only=True) for rank in range(processes)
    ]
    return max(seconds for seconds, _ in results), results[0][1]


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    sizes: Annotated[str, typer.Option(help="Numbers of images.")] = "40000,160000",
    processes: Annotated[str, typer.Option(help="Numbers of processes.")] = "1,2,4",
) -> None:
    """Measure, print, and write where asked to."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place:
        for images in map(int, sizes.split(",")):
            alone, expected = measured(images, 1, Path(place))
            for count in map(int, processes.split(",")):
                seconds, diagonal = (alone, expected) if count == 1 else measured(images, count, Path(place))
                difference = float((diagonal - expected).double().norm() / expected.double().norm())
                rows.append(
                    {
                        "images": images,
                        "processes": count,
                        "seconds of one": seconds,
                        "share": seconds / alone,
                        "difference": difference,
                    }
                )
    report(TITLE, rows, out, "benchmark_processes", NOTE)


if __name__ == "__main__":
    typer.run(main)
