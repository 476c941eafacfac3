"""The likelihood of a triplet: its moments against draws, and its Gaussian tail against the exact probability.

    python -m experiments.triplet_tail --out figures

Over random means and variances. For isotropic Gaussians tau is c_1 X_1 + c_2 X_2 with independent noncentral chi-square
variables of D degrees of freedom, whose distribution function Imhof's integral gives; for von Mises-Fisher
distributions the probability is that of the draws. Some of the draws' deviations are given in standard errors, of which
the largest of a few is about 2.
"""

from __future__ import annotations

import argparse
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.common import save, show
from laplacian_metric import vmf
from laplacian_metric.methods.pairs.triplet_likelihood import (
    Distances,
    Moments,
    Spreads,
    gaussian_moments,
    log_probability,
    vmf_moments,
)

DIMS = (2, 8, 32, 128, 512)
DRAWS = 1_000_000
SETS, EXACT_SETS = 3, 200
ENTRIES_AT_ONCE = 1 << 21
MARGIN = 0.1
FAMILIES = ("gaussian", "vmf")


def parameters(dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Means (3, D) of length 1 and variances (3,): a positive at some angle, a negative at another.

    Variances are up to ten times the prior's 1/D and down to a hundredth of it, as in training.
    """
    near = 2 * torch.rand(3, 1, generator=generator, dtype=torch.float64)
    centre, apart = (torch.randn(n, dim, generator=generator, dtype=torch.float64) for n in (1, 3))
    means = F.normalize(F.normalize(centre, dim=1) + near * F.normalize(apart, dim=1), dim=1)
    variances = 10 ** (3 * torch.rand(3, generator=generator, dtype=torch.float64) - 2) / dim
    return means, variances


def moments_of(family: str, means: Tensor, variances: Tensor) -> Moments:
    """What the library says; kappa is 1/sigma^2."""
    distances, dim = Distances.of(*means), means.shape[1]
    if family == "gaussian":
        return gaussian_moments(distances, Spreads(*variances), dim)
    return vmf_moments(distances, Spreads(*variances.reciprocal()), dim)


def draws_of(family: str, means: Tensor, variances: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """So many values of tau."""
    dim = means.shape[1]
    blocks, left = [], draws
    while left:
        count = min(left, max(1, ENTRIES_AT_ONCE // dim))
        left -= count
        if family == "gaussian":
            noise = torch.randn(3, count, dim, generator=generator, dtype=torch.float64)
            a, p, n = means[:, None] + variances.sqrt()[:, None, None] * noise
        else:
            a, p, n = vmf.sample(means, variances.reciprocal(), count, generator=generator).unbind(1)
        blocks.append((a - p).square().sum(1) - (a - n).square().sum(1))
    return torch.cat(blocks)


def exact_probability(means: Tensor, variances: Tensor, margin: float) -> float:
    """P(tau < -margin) of Gaussians, by Imhof's integral (1961)."""
    from scipy.integrate import quad

    dim = means.shape[1]
    form = np.array([[0.0, -1.0, 1.0], [-1.0, 1.0, 0.0], [1.0, 0.0, -1.0]])
    root = np.diag(variances.sqrt().numpy())
    weights, axes = np.linalg.eigh(root @ form @ root)
    # In the eigenvectors of the whitened form every dimension has two squares that count; the third weighs nothing.
    shifted = axes.T @ np.diag(1 / np.diag(root)) @ means.numpy()
    kept = np.abs(weights) > 1e-9 * np.abs(weights).max()
    c, shift = weights[kept], np.square(shifted[kept]).sum(1)
    # In units of the standard deviation, so that the integrand has always the same width.
    unit = math.sqrt(float((2 * dim * c**2 + 4 * shift * c**2).sum()))
    c, x = c / unit, -margin / unit

    def damping(u: float) -> float:
        square = (c * u) ** 2
        return float(np.exp(-(dim * np.log1p(square) / 4 + shift * square / (1 + square) / 2).sum()))

    def integrand(u: float) -> float:
        cu = c * u
        angle = (dim * np.arctan(cu) + shift * cu / (1 + cu**2)).sum() / 2 - x * u / 2
        return math.sin(angle) / u * damping(u)

    value = 0.0
    for low, high in pairwise((0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4)):
        if damping(low) < 1e-14:
            break
        value += quad(integrand, low, high, limit=2000, epsabs=1e-11, epsrel=0)[0]
    return 0.5 - value / math.pi


def of_draws(family: str, dim: int, sets: int, draws: int, generator: torch.Generator) -> dict[str, float]:
    """How far moments and probability are from those of draws, the largest of some sets."""
    mean, variance, probability = 0.0, 0.0, 0.0
    for _ in range(sets):
        means, variances = parameters(dim, generator)
        moments = moments_of(family, means, variances)
        tau = draws_of(family, means, variances, draws, generator)
        squares = (tau - moments.mean).square()
        root = math.sqrt(draws)
        mean = max(mean, abs(float((tau.mean() - moments.mean) / tau.std())) * root)
        variance = max(variance, abs(float((squares.mean() - moments.variance) / squares.std())) * root)
        approximate = float(log_probability(moments, MARGIN).exp())
        probability = max(probability, abs(float((tau < -MARGIN).double().mean()) - approximate))
    return {"mean": mean, "variance": variance, "probability": probability}


def of_the_integral(dim: int, sets: int, generator: torch.Generator) -> dict[str, float | None]:
    """How far the Gaussian tail is from the exact probability."""
    wrong, rare = [], []
    for _ in range(sets):
        means, variances = parameters(dim, generator)
        exact = exact_probability(means, variances, MARGIN)
        log = float(log_probability(moments_of("gaussian", means, variances), MARGIN))
        wrong.append(abs(math.exp(log) - exact))
        if 1e-6 < exact < 1e-2:
            rare.append(abs(log - math.log(exact)))
    return {
        "median": float(np.median(wrong)),
        "largest": max(wrong),
        "rare": float(np.median(rare)) if rare else None,
        "count": len(rare),
    }


def row(family: str, dim: int, sets: int, exact_sets: int, draws: int, seed: int) -> dict[str, Any]:
    """What is told about one family in one dimension."""
    drawn = of_draws(family, dim, sets, draws, torch.Generator().manual_seed(seed))
    columns: dict[str, Any] = {
        "family": family,
        "D": dim,
        "E tau, standard errors": drawn["mean"],
        "Var tau, standard errors": drawn["variance"],
        "P, largest difference from draws": drawn["probability"],
    }
    exact: dict[str, Any] = {"median": None, "largest": None, "rare": None, "count": None}
    if family == "gaussian":
        exact = of_the_integral(dim, exact_sets, torch.Generator().manual_seed(seed + 1))
    return {
        **columns,
        "P, median error": exact["median"],
        "P, largest error": exact["largest"],
        "log P, median error where P is 1e-6 to 1e-2": exact["rare"],
        "of so many": exact["count"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the likelihood of triplets with draws.")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--sets", type=int, default=SETS, help="random triplets that draws are made of")
    parser.add_argument("--exact-sets", type=int, default=EXACT_SETS, help="those that are integrated")
    options = parser.parse_args()
    rows = [
        row(family, dim, options.sets, options.exact_sets, options.draws, seed=dim)
        for family in FAMILIES
        for dim in DIMS
    ]
    title = "The likelihood of a triplet: moments and tail"
    show(title, rows)
    note = (
        f"Means of length 1, variances from 0.01/D to 10/D, margin {MARGIN}. Standard errors are those of "
        f"{options.draws:,} draws, the largest of {options.sets} random triplets; errors are against the exact "
        f"probability, by Imhof's integral, of {options.exact_sets} random triplets."
    )
    save(options.out, "triplet_tail", title, rows, note)


if __name__ == "__main__":
    main()
