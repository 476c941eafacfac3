"""Kappa without samples, on the whole FashionMNIST test set: against a finer integral, and against samples.

    python -m experiments.check_kappa --data DATA --work WORK --out figures

WORK is that of `experiments.run`; the network is the first one of fashion_mnist/deterministic. For every test image
the mean resultant length R of u/|u| is computed by the closed form (48 nodes), by the same integral with 200 nodes, and
from independent draws of u. Of the draws it is known how far their mean may be off: the difference is given in standard
errors, whose mean square is 1 if all differences are Monte Carlo error.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.common import save, show
from experiments import harness as runs
from experiments.arguments import CELLS
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.vmf import projected

DRAWS = 10_000
AT_ONCE = 100
FINE = 200
# Wide posteriors, whose kappa is the hardest to compute.
POSTERIORS = {"diagonal": "posterior/diag_marginal", "low rank": "fashion_mnist/laplace_lowrank"}


def finer(gaussians: Gaussians) -> tuple[Tensor, Tensor]:
    """Kappa (N,) and mean direction (N, Z) by the integral with many nodes."""
    steps = projected.STEPS
    try:
        projected.STEPS = projected.steps(FINE)
        fine = gaussians.direction()
    finally:
        projected.STEPS = steps
    return fine.kappa, fine.mean


def standard_errors(gaussians: Gaussians, generator: torch.Generator) -> Tensor:
    """(R of the closed form - that of the draws) in standard errors of the draws, (N,).

    The component of the draws along the mean direction has the mean R and a spread that they show themselves.
    """
    closed_form = gaussians.direction()
    total, squares = torch.zeros_like(closed_form.length), torch.zeros_like(closed_form.length)
    for _ in range(DRAWS // AT_ONCE):
        z = torch.nn.functional.normalize(gaussians.sample(AT_ONCE, generator=generator), dim=2)
        along = (z * closed_form.mean).sum(2)
        # From 1 downwards, so that the squares of nearly equal numbers keep their digits.
        total += (1 - along).sum(0)
        squares += (1 - along).square().sum(0)
    mean = total / DRAWS
    deviation = (squares / DRAWS - mean.square()).clamp(min=0).sqrt()
    # 1 - R = V/(1 + R), with all of V's digits.
    return (mean - closed_form.variance / (1 + closed_form.length)) / (deviation / math.sqrt(DRAWS))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare kappa with a finer integral and with samples.")
    parser.add_argument("--data", type=Path, required=True, help="folder with FashionMNIST/raw and MNIST/raw")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder with the networks of experiments.run"
    )
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    rows = []
    for structure, cell in POSTERIORS.items():
        fitted_cell = runs.fitted(cell, 0, cells_dir=CELLS, work=options.work, data_dir=options.data)
        gaussians = fitted_cell.embedder.embed(fitted_cell.sets["test"]).gaussians
        assert gaussians is not None
        gaussians = gaussians.to(dtype=torch.float64)
        kappa = gaussians.direction().kappa
        fine = finer(gaussians)[0]
        errors = standard_errors(gaussians, torch.Generator().manual_seed(0))
        rows.append(
            {
                "structure": structure,
                "images": len(gaussians),
                "kappa, 5 %": float(kappa.quantile(0.05)),
                "kappa, median": float(kappa.median()),
                "kappa, 95 %": float(kappa.quantile(0.95)),
                f"largest relative difference from {FINE} nodes": float(((kappa - fine) / fine).abs().max()),
                "root mean square of the standard errors": float(errors.square().mean().sqrt()),
                "largest standard error": float(errors.abs().max()),
            }
        )
    title = "Kappa without samples on the FashionMNIST test set"
    show(title, rows)
    note = (
        f"Standard errors are of R, against {DRAWS:,} independent draws for every image: a root mean square of 1 is "
        "Monte Carlo error and nothing else; the largest of 10,000 is about 4 then."
    )
    save(options.out, "kappa_check", title, rows, note)


if __name__ == "__main__":
    main()
