"""The picture of the documentation's explanation of uncertainty, from the embedded sample.

    python -m experiments.explain [--out docs/pictures]

It is computed, not sketched: a small network is trained and its posterior fitted. It takes a minute on one core.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from torch import Tensor

from experiments.arguments import parser
from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal
from laplacian_metric import LAM, Encoder
from laplacian_metric.data import load
from laplacian_metric.vmf import log_density

FITTED = 2500  # of the training images
BLUE, RED, GREY, GREEN = "#1f6f8b", "#c1440e", "#8a8a8a", "#4a7c2c"
STYLE: dict[Any, Any] = {
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


def trained(images: Images, dim: int, epochs: int) -> LAM:
    """Return the posterior of a small network."""
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
    lam = LAM(Encoder.from_module(model), loss, "fixed", "lowrank")
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
    shown = [
        (in_distribution[rows[0] : rows[0] + 1], BLUE, clothes),
        (unknown[rows[1] : rows[1] + 1], RED, "a digit"),
    ]
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


def main() -> None:
    """Draw the picture."""
    command = parser(__doc__)
    command.add_argument("--out", type=Path, default=Path("docs/pictures"))
    out = command.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    images = read()
    curvature_to_kappa(images, out / "curvature_to_kappa.png")


if __name__ == "__main__":
    main()
