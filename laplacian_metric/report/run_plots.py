"""The plots of a report, by the functions that draw those of the tables' cells."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.metrics import Consensus, Sparsification
from laplacian_metric.report.blocks.palette import ACCENT
from laplacian_metric.report.blocks.texts import plain
from laplacian_metric.report.curves import calibration_curves, draw_sparsification, roc_curves
from laplacian_metric.report.evaluated import Evaluated
from laplacian_metric.report.latent import latent_maps
from laplacian_metric.report.measured import OWN, Measured
from laplacian_metric.report.plots import as_png, concentration_histograms
from laplacian_metric.report.results import Bin, Calibration, Cell, Cloud, Latent, Result, Roc, Score
from laplacian_metric.report.styles import Style, panels, shared_legend
from laplacian_metric.runs.scores import roc

OUTLINED = 300  # points on the maps of two or three dimensions
LOOKS = {OWN: Style(ACCENT, "o", "-")}
NAMED = 30  # classes that a legend of such a map can name


def drawable(text: str) -> str:
    """A name as matplotlib draws it: no formula, and not left out of the legend for its first letter.

    Example:
        >>> drawable("_a $x$")
        ' _a \\\\$x\\\\$'
    """
    line = plain(text).replace("$", r"\$")
    return f" {line}" if line.startswith("_") else line


def _cell(**found: object) -> dict[str, Cell]:
    return {OWN: Cell(OWN, (Result(OWN, 0, **found),))}  # type: ignore[arg-type]


def bins(agreed: Consensus) -> tuple[Bin, ...]:
    """The ten bins of a consensus."""
    rows = agreed.table()
    return tuple(
        Bin(
            number / len(rows),
            (number + 1) / len(rows),
            int(row["count"] or 0),
            *(float("nan") if row[name] is None else float(row[name]) for name in ("confidence", "accuracy")),  # type: ignore[arg-type]
        )
        for number, row in enumerate(rows)
    )


def calibration_plot(agreed: Consensus) -> bytes:
    """Accuracy over confidence."""
    return calibration_curves(
        {"retrieval": _cell(calibration=Calibration(agreed.error, bins(agreed)))}, LOOKS
    )


def sparsification_plot(found: Sparsification) -> bytes:
    """Recall@1 of what is left, by uncertainty, by an oracle and in random order."""
    curves = {
        "own": found.curve.numpy(),
        "oracle": found.oracle_curve.numpy(),
        "random": np.full(len(found.curve), found.random),
    }
    figure, (axes,) = panels(1, 5.2, 3.4)
    draw_sparsification(axes, _cell(sparsification=curves), OWN, LOOKS)
    axes.set_title("")
    axes.set_xlabel("share left out")
    axes.set_ylabel("recall@1")
    axes.set_ylim(max(0.0, min(float(curve.min()) for curve in curves.values()) - 0.03), 1.01)
    shared_legend(figure, [axes], columns=3)
    return as_png(figure)


def roc_plots(found: Measured) -> list[tuple[list[str], bytes]]:
    """How strangers are told at each share of false alarms, three sets to a picture; with the names of the sets."""
    names = list(found.strangers)
    pictures = []
    for start in range(0, len(names), 3):
        part = names[start : start + 3]
        groups = {}
        for name in part:
            one = found.strangers[name]
            rates = roc(found.uncertainty, one.uncertainty)
            curve = Roc(np.array(rates["false_positive_rate"]), np.array(rates["true_positive_rate"]))
            score = Score({}, {name: {"auroc": one.auroc.value}})
            groups[drawable(name)] = (_cell(roc={name: curve}, scores={"own": score}), name)
        pictures.append((part, roc_curves(groups, LOOKS)))
    return pictures


def kappa_values(found: Measured) -> dict[str, Tensor]:
    """kappa of the known images and of every set of strangers."""
    strangers = {f"strangers: {name}": one.embedding.kappa for name, one in found.strangers.items()}
    return {"known images": found.embedding.kappa, **strangers}


def kappa_plot(values: Mapping[str, Tensor]) -> bytes | None:
    """Histograms of those that are finite; None if no value is finite and above 0."""
    finite = {drawable(name): kappa[kappa.isfinite()] for name, kappa in values.items()}
    finite = {name: kappa for name, kappa in finite.items() if len(kappa)}
    if not any(bool((kappa > 0).any()) for kappa in finite.values()):
        return None
    return concentration_histograms(finite)


def sphere_plot(
    evaluated: Evaluated, found: Measured, rows: Tensor, strangers: Mapping[str, Tensor]
) -> bytes | None:
    """The space itself, where it has two or three dimensions."""
    if found.embedding.dim not in (2, 3):
        return None
    some = _some(rows)
    labels = found.labels[some]
    classes = sorted(set(labels.tolist()))
    named = len(classes) <= NAMED
    numbers = torch.tensor([classes.index(label) if named else 0 for label in labels.tolist()])
    names = [drawable(evaluated.class_name(label)) for label in classes] if named else ["known images"]
    out = {
        drawable(name): _cloud(found.strangers[name].embedding[_some(drawn)], None)
        for name, drawn in strangers.items()
    }
    return latent_maps({"embedding": Latent(_cloud(found.embedding[some], numbers), out)}, names)


def _some(rows: Tensor) -> Tensor:
    taken = min(len(rows), OUTLINED)
    return rows[torch.arange(taken) * len(rows) // taken]


def _cloud(e: StochasticEmbedding, labels: Tensor | None) -> Cloud:
    covariances = None if e.gaussians is None else e.gaussians.covariance.detach().double().numpy()
    return Cloud(
        e.point.detach().double().numpy(),
        covariances,
        e.kappa.detach().double().numpy(),
        None if labels is None else labels.numpy(),
    )
