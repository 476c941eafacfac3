"""Time of choosing the prior precision, by validation pairs and by the marginal likelihood, beside the fit.

python -m benchmarks.prior --out figures
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from benchmarks.common import report
from hessians import ContrastiveLoss
from hessians.checks import CurvatureWarning
from laplacian_metric import LAM, Encoder

SIZES = ((512, 64), (2048, 64), (9216, 3), (9216, 64))  # features, dimensions
CLASSES, VALIDATION, SAMPLES = 50, 1000, 20
TITLE = "Choosing the prior precision"
NOTE = (
    f"{{images:,}} random images of {CLASSES} clusters, a diagonal posterior of 'fixed', {VALIDATION:,} validation "
    f"images, {SAMPLES} draws. Seconds of the processor, one thread, medians of {{repeats}} interleaved runs in one "
    "process. 'validation' maximises the likelihood of validation pairs, 'marginal' the marginal likelihood. "
    f"'products' are the products of the validation images' features with {SAMPLES} drawn weights, once, which "
    "'validation' cannot do without."
)


def clusters(count: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return features (N, H) around random centres, and their classes."""
    centres = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return centres[labels] + torch.randn(count, width, generator=generator), labels


def measured(width: int, dim: int, images: int, repeats: int) -> dict[str, Any]:
    """Return one row of the table."""
    features, labels = clusters(images, width, 1)
    validation = clusters(VALIDATION, width, 2)
    torch.manual_seed(0)
    lam = LAM(Encoder(nn.Identity(), nn.Linear(width, dim)), ContrastiveLoss(margin=0.7))
    drawn = torch.randn(SAMPLES, width, dim)
    runs: dict[str, Callable[[], object]] = {
        "fit s": lambda: lam.fit_features(features, labels, check_mode=False, progress=False),
        "marginal s": lam.optimize_prior_precision,
        "validation s": lambda: lam.optimize_prior_precision(
            "validation", *validation, samples=SAMPLES, generator=torch.Generator().manual_seed(3)
        ),
        "products s": lambda: validation[0] @ drawn,
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            begun = time.process_time()
            run()
            seconds[name].append(time.process_time() - begun)
    row = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "H, Z": f"{width}, {dim}",
        **row,
        "validation / fit": row["validation s"] / row["fit s"],
        "validation / products": row["validation s"] / row["products s"],
    }


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    images: Annotated[int, typer.Option(min=100, help="Images of the fit.")] = 5000,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of interleaved runs.")] = 5,
) -> None:
    """Measure all sizes."""
    warnings.simplefilter("ignore", CurvatureWarning)  # the heads were not trained with the loss
    torch.set_num_threads(1)
    rows = [measured(width, dim, images, repeats) for width, dim in SIZES]
    report(TITLE, rows, out, "benchmark_prior", NOTE.format(images=images, repeats=repeats))


if __name__ == "__main__":
    typer.run(main)
