"""The pictures of the documentation's explanations, from the embedded sample.

    python -m experiments.explain [--out docs/pictures]

Each picture is computed, not sketched: a small network is trained, its posterior fitted, and an index calibrated. It
takes a minute on one core.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from torch import Tensor

from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal
from laplacian_metric import LAM, Encoder
from laplacian_metric.data import load
from laplacian_metric.retrieval import Index, Items, NoThresholdError, calibrate, choose_threshold
from laplacian_metric.vmf import log_density

ALPHA, CALIBRATED, SPLITS = (
    0.15,
    300,
    300,
)  # error rate, queries, calibration sets that a threshold is tried on
FITTED = 2500  # of the 3,000 training images
BLUE, RED, GREY, GREEN = "#1f6f8b", "#c1440e", "#8a8a8a", "#4a7c2c"
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "savefig.dpi": 130,
    "savefig.bbox": "tight",
    "legend.frameon": False,
    "legend.fontsize": 8,
}


class Images(NamedTuple):
    """Training and test images of clothes with their labels, and digits as OOD images."""

    train: Tensor
    labels: Tensor
    test: Tensor
    test_labels: Tensor
    ood: Tensor


def read() -> Images:
    """The embedded sample."""
    train, test = (load("sample-fashion-mnist", split) for split in ("train+validation", "test"))
    ood = load("sample-mnist", "test").floats()
    return Images(train.floats(), train.labels, test.floats(), test.labels, ood)


def trained(
    images: Images, dim: int, epochs: int, approximation: str = "fixed", structure: str = "lowrank"
) -> LAM:
    """A small network and its posterior."""
    torch.manual_seed(0)
    layers = [torch.nn.Flatten(), torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, dim)]
    model = torch.nn.Sequential(*layers)
    loss = ContrastiveLoss(margin=0.7, negatives="active")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(FITTED).split(250):
            optimizer.zero_grad()
            loss(model(images.train[batch]), Pairs.from_labels(images.labels[batch])).backward()
            optimizer.step()
    lam = LAM(Encoder.from_module(model), loss, approximation, structure)
    features = lam.features([(images.train[:FITTED], images.labels[:FITTED])])
    lam.fit_features(features, check_mode=False)
    lam.optimize_prior_precision()
    return lam


def curvature_to_kappa(images: Images, path: Path) -> None:
    """Three steps: the curvature along weights, the spread of two embeddings, their densities on the circle."""
    lam = trained(images, dim=2, epochs=8)
    in_distribution, unknown = lam.embed(images.test), lam.embed(images.ood)
    rows = _typical(in_distribution.kappa), _typical(unknown.kappa)
    clothes = load("sample-fashion-mnist", "test").class_names[int(images.test_labels[rows[0]])].lower()
    shown = [(in_distribution[[rows[0]]], BLUE, clothes), (unknown[[rows[1]]], RED, "a digit")]
    figure, axes = _figure(3, width=9.6)
    _slices(axes[0], lam, images)
    generator = torch.Generator().manual_seed(0)
    _clouds(axes[1], shown, generator)
    _densities(axes[2], shown, generator)
    figure.savefig(path)


def _typical(values: Tensor) -> int:
    """The row of the median."""
    return int(values.argsort()[len(values) // 2])


def _figure(columns: int, width: float) -> tuple[Any, Any]:
    matplotlib.use("Agg")
    matplotlib.rcParams.update(STYLE)
    import matplotlib.pyplot as plt

    return plt.subplots(1, columns, figsize=(width, width / columns), layout="constrained")


def _slices(axis: Any, lam: LAM, images: Images) -> None:
    """The loss along two weights of the head, and the parabolas that its curvature says."""
    features = lam.encoder.features(images.train[:FITTED]).detach().double()
    labels, head = images.labels[:FITTED], lam.encoder.head
    loss, pairs = ContrastiveLoss(margin=0.7), Pairs.from_labels(labels)
    weight, bias = head.weight.detach().double(), head.bias.detach().double()
    curvature, _ = last_layer_ggn_diagonal(features, weight, bias, pairs, loss, "full")
    order = curvature.flatten().argsort()
    offsets = torch.linspace(-0.15, 0.15, 41, dtype=torch.float64)
    for place, colour, name in ((-1, BLUE, "firm weight"), (-60, RED, "loose weight")):
        entry = int(order[place])
        slices = []
        for offset in offsets:
            moved = weight.clone()
            moved.view(-1)[entry] += offset
            slices.append(loss(features @ moved.T + bias, pairs))
        values = FITTED * (torch.stack(slices) - slices[len(slices) // 2])
        axis.plot(offsets, values, color=colour, label=f"loss along a {name}")
        parabola = 0.5 * FITTED * curvature.view(-1)[entry] * offsets.square()
        axis.plot(offsets, parabola, color=colour, linestyle=":", label="its curvature")
    axis.set(
        xlabel="change of the weight", ylabel="images x loss, minus its value at 0", title="1. curvature"
    )
    axis.legend(fontsize=7)


def _clouds(axis: Any, shown: list[Any], generator: torch.Generator) -> None:
    """Embeddings before the norm under draws of the weights, and the circle that they are sent to."""
    turn = np.linspace(0, 2 * math.pi, 200)
    axis.plot(np.cos(turn), np.sin(turn), color=GREY, linewidth=0.8)
    for e, colour, name in shown:
        u = e.gaussians.sample(300, generator=generator)[:, 0]
        z = torch.nn.functional.normalize(u, dim=1)
        axis.scatter(u[:, 0], u[:, 1], s=3, color=colour, alpha=0.35, linewidths=0)
        axis.scatter([], [], s=20, color=colour, label=name)
        axis.scatter(z[:, 0], z[:, 1], s=6, color=colour, alpha=0.15, linewidths=0)
    axis.set(title="2. weights", aspect="equal", xlabel="300 draws, before and after the norm")
    axis.set(xticks=[0], yticks=[0])
    axis.legend()


def _densities(axis: Any, shown: list[Any], generator: torch.Generator) -> None:
    """Angles of the drawn directions, and the von Mises-Fisher densities of the closed form."""
    for e, colour, name in shown:
        z = torch.nn.functional.normalize(e.gaussians.sample(4000, generator=generator)[:, 0], dim=1)
        centre = math.atan2(float(e.mean[0, 1]), float(e.mean[0, 0]))
        angle = torch.atan2(z[:, 1], z[:, 0]) - centre
        angle = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        axis.hist(
            angle.numpy(), bins=np.linspace(-math.pi, math.pi, 121), density=True, color=colour, alpha=0.3
        )
        grid = torch.linspace(-math.pi, math.pi, 721)
        points = torch.stack([torch.cos(grid + centre), torch.sin(grid + centre)], dim=1)
        density = log_density(points, e.mean.expand_as(points), e.kappa.expand(len(points))).exp()
        axis.plot(grid, density, color=colour, label=f"{name}: kappa {float(e.kappa[0]):.0f}")
    axis.set(title="3. kappa", xlabel="angle to the mean direction", ylabel="density", xlim=(-2, 2))
    axis.margins(y=0.25)  # room for the legend above the peak
    axis.legend(loc="upper left", fontsize=7)


def caps(images: Images, path: Path) -> None:
    """Two queries with their caps, and how caps are stretched until they hold what is promised."""
    lam = trained(images, dim=3, epochs=8)
    items, queries = Items.of(lam.embed(images.train[:FITTED])), Items.of(lam.embed(images.test))
    labels, own = images.labels[:FITTED].numpy(), images.test_labels.numpy()
    half = len(queries) // 2
    index = calibrate(Index(items), queries[:half], own[:half], labels, alpha=None, level=0.9)
    calibration = index.calibrations.need("credible")
    figure, axes = _figure(3, width=9.6)
    order = half + np.argsort(queries.kappa[half:])
    for axis, row, what in zip(axes, (order[-5], order[4]), ("certain", "doubtful"), strict=False):
        _around(axis, items, labels, queries[row : row + 1], int(own[row]), calibration, what)
    kappa, angle = queries.kappa[:half], index.angle_to_right(queries[:half], own[:half], labels)
    inside = calibration.contains(angle, kappa)
    for mask, colour, name in ((inside, BLUE, "inside"), (~inside, RED, "outside")):
        degrees = np.maximum(np.degrees(angle[mask]), 0.01)
        axes[2].scatter(kappa[mask], degrees, s=4, color=colour, linewidths=0)
        axes[2].scatter([], [], s=20, color=colour, label=f"{name}: {int(mask.sum())} of {half}")
    grid = np.geomspace(kappa.min(), kappa.max(), 100)
    nominal = np.degrees(calibration.radius(grid) / calibration.stretch)
    axes[2].plot(grid, nominal, color=GREY, linestyle=":", label="cap with 90 % of the density")
    axes[2].plot(
        grid, np.degrees(calibration.radius(grid)), color=GREEN, label=f"times {calibration.stretch:.2f}"
    )
    axes[2].set(xscale="log", yscale="log", xlabel="kappa of the query", title="calibration")
    axes[2].set_ylabel("degrees to the nearest item of its class")
    axes[2].legend(fontsize=7, loc="lower left")
    figure.savefig(path)


def _around(
    axis: Any, items: Items, labels: Any, query: Items, own: int, calibration: Any, what: str
) -> None:
    """The items around a query, seen from above, and its cap."""
    centre = query.mean[0].astype(float)
    side = np.linalg.svd(centre[None])[2][1:]  # two directions across
    cosine = np.clip(items.mean @ centre, -1, 1)
    flat = items.mean @ side.T
    length = np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
    place = np.degrees(np.arccos(cosine))[:, None] * flat / length  # distances from the centre are angles
    radius = math.degrees(float(calibration.radius(query.kappa)[0]))
    right = labels == own
    reach = 20
    for mask, colour, name in ((~right, GREY, "another class"), (right, BLUE, "its class")):
        axis.scatter(place[mask, 0], place[mask, 1], s=5, color=colour, linewidths=0, alpha=0.7)
        axis.scatter([], [], s=20, color=colour, label=name)
    turn = np.linspace(0, 2 * math.pi, 200)
    axis.plot(radius * np.cos(turn), radius * np.sin(turn), color=GREEN)
    axis.plot(0, 0, "+", color=RED)
    inside = int((np.degrees(np.arccos(cosine)) <= radius).sum())
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="degrees")
    axis.set_title(f"{what}: kappa {query.kappa[0]:.0f}, {inside} items")
    axis.legend(loc="upper right")


def threshold(images: Images, path: Path) -> None:
    """Where a threshold is drawn, and what becomes of two kinds of thresholds on later queries."""
    lam = trained(images, dim=8, epochs=6)
    items, queries = Items.of(lam.embed(images.train[:FITTED])), Items.of(lam.embed(images.test))
    nearest = Index(items).query(queries, 1).rows[:, 0]
    wrong = images.labels[nearest].numpy() != images.test_labels.numpy()
    doubt = queries.uncertainty
    generator = np.random.default_rng(0)
    chosen: dict[str, list[float]] = {"largest that went well": [], "tested": []}
    for _ in range(SPLITS):
        order = generator.permutation(len(doubt))
        first, later = order[:CALIBRATED], order[CALIBRATED:]
        thresholds = _largest(doubt[first], wrong[first]), _tested(doubt[first], wrong[first], generator)
        for name, value in zip(chosen, thresholds, strict=True):
            answered = doubt[later] <= value
            chosen[name].append(float(wrong[later][answered].mean()) if answered.any() else 0.0)
    figure, axes = _figure(2, width=8)
    ood = lam.embed(images.ood).uncertainty.numpy()
    kinds = {"right": (doubt[~wrong], BLUE), "wrong": (doubt[wrong], RED), "digits": (ood, GREY)}
    for name, (values, colour) in kinds.items():
        axes[0].hist(values, bins=np.linspace(0, 1, 31), histtype="step", color=colour, label=name)
    axes[0].axvline(thresholds[1], color=GREEN, linestyle=":", label="a threshold")
    axes[0].set(xlabel="uncertainty", ylabel="queries")
    axes[0].legend()
    for (name, errors), colour in zip(chosen.items(), (RED, BLUE), strict=True):
        broken = np.mean(np.asarray(errors) > ALPHA)
        label = f"{name}: broken by {broken:.0%}"
        axes[1].hist(errors, bins=np.linspace(0.0001, 0.3, 61), histtype="step", color=colour, label=label)
    axes[1].axvline(ALPHA, color=GREEN, linestyle=":", label=f"promised: {ALPHA:g}")
    axes[1].set(xlabel="share of later answers that are wrong", ylabel="calibration sets")
    axes[1].set_ylim(0, 1.5 * axes[1].get_ylim()[1])
    axes[1].legend()
    figure.savefig(path)


def _largest(doubt: Any, wrong: Any) -> float:
    """The largest threshold that would have kept the error rate on these queries: chosen by looking."""
    order = np.argsort(doubt)
    rate = np.cumsum(wrong[order]) / np.arange(1, len(order) + 1)
    return float(doubt[order][np.flatnonzero(rate <= ALPHA)[-1]])


def _tested(doubt: Any, wrong: Any, generator: np.random.Generator) -> float:
    """The threshold with a promise; where none can be made nothing is answered."""
    try:
        return choose_threshold(doubt, wrong, alpha=ALPHA, delta=0.1, generator=generator).value
    except NoThresholdError:
        return -math.inf


PICTURES = {"curvature_to_kappa": curvature_to_kappa, "credible_caps": caps, "threshold": threshold}


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    images = read()
    for name, draw in PICTURES.items():
        draw(images, out / f"{name}.png")


if __name__ == "__main__":
    main()
