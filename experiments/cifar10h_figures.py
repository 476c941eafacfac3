"""Figures of the experiment on CIFAR-10H: the curve of abstention, and what an ambiguous image returns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.cifar10h import BASE, CELLS, REFERENCE, SMALL, fold_rows, image_set, path_of, pooled
from laplacian_metric import vmf
from laplacian_metric.metrics.statistics import sparsification_curve

DRAWS = 200
SHOWN = 7
QUERIES = 3


def draw(root: Path, cache: Path, out: Path) -> list[Path]:
    """Draw both figures; return their paths."""
    folder = out / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    return [
        abstention(cache, folder / "cifar10h_abstention.png"),
        credible(root, cache, folder / "cifar10h_credible.png"),
    ]


def abstention(cache: Path, path: Path) -> Path:
    """Draw recall@1 of the images that are left when the least certain are refused."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4.5), layout="constrained")
    lines = [(cell, "1/kappa") for cell in CELLS if not cell.startswith(SMALL)]
    lines += [(BASE, "nearest distance"), (BASE, "vote"), (BASE, "Trust, probability")]
    for cell, name in lines:
        curve = mean_curve(pooled(cache, cell, f"test:{name}"), pooled(cache, cell, "right"))
        axis.plot(np.arange(len(curve)), curve, label=f"{cell}: {name}")
    axis.set(xlabel="images refused, %", ylabel="recall@1 of the others")
    axis.legend(fontsize="x-small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def mean_curve(scores: Sequence[Any], right: Sequence[Any]) -> Tensor:
    """Return the mean over folds of recall@1 by the share that is refused, (100,)."""
    curves = [
        sparsification_curve(
            torch.from_numpy(score).double(),
            torch.from_numpy(correct).double(),
            torch.ones(len(score), dtype=torch.float64),
        )
        for score, correct in zip(scores, right, strict=True)
    ]
    return torch.stack(curves).mean(0)


def returned(
    mean: Tensor, kappa: Tensor, gallery: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the items (at most ``SHOWN``) that are nearest to draws of a distribution, and their shares of draws.

    Example:
        >>> gallery, generator = torch.eye(3), torch.Generator().manual_seed(0)
        >>> returned(gallery[0], torch.tensor(1e4), gallery, generator)
        (tensor([0]), tensor([1.]))
    """
    draws = vmf.sample(mean[None], kappa[None], DRAWS, generator=generator)[:, 0]
    rows, counts = (draws @ gallery.T).argmax(1).unique(return_counts=True)
    order = counts.argsort(descending=True)[:SHOWN]
    return rows[order], counts[order] / DRAWS


def credible(root: Path, cache: Path, path: Path) -> Path:
    """Draw the least and the most certain test images of the first fold, and what draws of them return."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    images, rows = image_set(root), fold_rows(0, 10_000)
    people, names = images.extras["human_distribution"], images.class_names
    with np.load(path_of(cache, REFERENCE, 0)) as content:
        mean, kappa, gallery = (torch.from_numpy(content[key]) for key in ("mean", "kappa", "gallery"))
    generator = torch.Generator().manual_seed(0)
    order = kappa.argsort()
    queries = [*order[:QUERIES].tolist(), *order[-QUERIES:].tolist()]
    figure, axes = pyplot.subplots(
        len(queries), SHOWN + 1, figsize=(1.5 * (SHOWN + 1), 1.75 * len(queries)), layout="constrained"
    )
    for line, query in zip(axes, queries, strict=True):
        index = int(rows["test"][query])
        shares = people[index].sort(descending=True)
        said = ", ".join(
            f"{names[int(c)]} {float(p):.0%}" for p, c in zip(*shares, strict=True) if float(p) > 0.04
        )
        items, weights = returned(mean[query], kappa[query], gallery, generator)
        pictures = [(index, f"kappa {float(kappa[query]):.0f}\n{said.replace(', ', chr(10), 2)}")]
        pictures += [
            (int(rows["training"][item]), f"{float(weight):.0%}")
            for item, weight in zip(items, weights, strict=True)
        ]
        for axis in line:
            axis.set_axis_off()
        for axis, (number, title) in zip(line, pictures, strict=False):
            axis.imshow(images.images[number].permute(1, 2, 0).numpy())
            axis.set_title(title, fontsize=6)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
