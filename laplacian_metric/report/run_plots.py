"""The plots of a report, by the functions that draw those of the tables' cells."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.data.dataset import at_even_steps
from laplacian_metric.metrics import Calibration, Evaluation
from laplacian_metric.report.blocks.texts import ACCENT, plain
from laplacian_metric.report.curves import calibration_curves, draw_sparsification, roc_curves
from laplacian_metric.report.evaluated import Evaluated, Measured
from laplacian_metric.report.latent import latent_maps
from laplacian_metric.report.plots import as_png, concentration_histograms
from laplacian_metric.report.seeds import Cell
from laplacian_metric.report.styles import Style, panels, shared_legend
from laplacian_metric.runs.results import Cloud, Latent, Result

OUTLINED = 300  # points on the maps of two or three dimensions
THIS = "this run"
LOOKS = {THIS: Style(ACCENT, "o", "-")}
NAMED = 30  # classes that a legend of such a map can name


def drawable(text: str) -> str:
    """A name as matplotlib draws it: no formula, and not left out of the legend for its first letter.

    Example:
        >>> drawable("_a $x$")
        ' _a \\\\$x\\\\$'
    """
    line = plain(text).replace("$", r"\$")
    return f" {line}" if line.startswith("_") else line


def _cell(evaluation: Evaluation) -> dict[str, Cell]:
    return {THIS: Cell(THIS, (Result.model_construct(cell=THIS, seed=0, **dict(evaluation)),))}


def calibration_plot(calibration: Calibration, label: str, axis: str) -> bytes:
    """Draw accuracy over what was predicted, which the axis names."""
    return calibration_curves({label: _cell(Evaluation(calibration=calibration))}, LOOKS, axis)


def sparsification_plot(evaluation: Evaluation) -> bytes:
    """Draw recall@1 of what is left, by uncertainty, by an oracle and in random order."""
    figure, (axes,) = panels(1, 5.2, 3.4)
    draw_sparsification(axes, _cell(evaluation), THIS, LOOKS)
    axes.set_title("")
    axes.set_xlabel("share left out")
    axes.set_ylabel("recall@1")
    lowest = min(np.asarray(line.get_ydata()).min() for line in axes.lines)
    axes.set_ylim(max(0.0, lowest - 0.03), 1.01)
    shared_legend(figure, [axes], columns=3)
    return as_png(figure)


def roc_plots(measured: Measured) -> list[tuple[list[str], bytes]]:
    """Draw how OOD images are detected at each share of false alarms, three sets to a picture, with their names."""
    names = list(measured.ood)
    cell = _cell(measured.evaluation)
    parts = [names[start : start + 3] for start in range(0, len(names), 3)]
    return [(part, roc_curves({drawable(name): (cell, name) for name in part}, LOOKS)) for part in parts]


def kappa_values(measured: Measured) -> dict[str, Tensor]:
    """kappa of the known images and of every set of OOD images."""
    ood = {f"OOD images: {name}": images.embedding.kappa for name, images in measured.ood.items()}
    return {"known images": measured.embedding.kappa, **ood}


def kappa_plot(values: Mapping[str, Tensor]) -> bytes | None:
    """Histograms of those that are finite; None if no value is finite and above 0."""
    finite = {drawable(name): kappa[kappa.isfinite()] for name, kappa in values.items()}
    finite = {name: kappa for name, kappa in finite.items() if len(kappa)}
    if not any(bool((kappa > 0).any()) for kappa in finite.values()):
        return None
    return concentration_histograms(finite)


def sphere_plot(
    evaluated: Evaluated, measured: Measured, rows: Tensor, ood_rows: Mapping[str, Tensor]
) -> bytes | None:
    """Draw the space itself, where it has two or three dimensions."""
    if measured.embedding.dim not in (2, 3):
        return None
    some = rows[at_even_steps(len(rows), OUTLINED)]
    labels = measured.labels[some]
    classes = sorted(set(measured.labels.tolist()))  # as in the legend of the map
    named = len(classes) <= NAMED
    numbers = torch.tensor([classes.index(label) if named else 0 for label in labels.tolist()])
    names = [drawable(evaluated.class_name(label)) for label in classes] if named else ["known images"]
    ood = {
        drawable(name): _cloud(measured.ood[name].embedding[shown[at_even_steps(len(shown), OUTLINED)]], None)
        for name, shown in ood_rows.items()
    }
    latent = Latent(test=_cloud(measured.embedding[some], numbers), ood=ood)
    return latent_maps({"embedding": latent}, names, columns=1)


def _cloud(e: StochasticEmbedding, labels: Tensor | None) -> Cloud:
    covariances = None if e.gaussians is None else e.gaussians.covariance.detach().double().numpy()
    return Cloud(
        e.point.detach().double().numpy(),
        covariances,
        e.kappa.detach().double().numpy(),
        None if labels is None else labels.numpy(),
    )
