"""What an embedding with a posterior over deeper layers costs, beside the backward passes that it is made of.

    python -m benchmarks.network_posterior --out figures

The floor is one plain backward pass of the batch for each dimension, with the gradients of the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from torch import Tensor

from benchmarks.common import mebibytes, median_seconds, peak_extra_memory, report
from benchmarks.network import VisionTransformer
from hessians import ContrastiveLoss
from laplacian_metric import Encoder, NetworkLAM
from laplacian_metric.core.modes import evaluating
from laplacian_metric.laplace.network.layers import Layers

LOSS = ContrastiveLoss(margin=0.7)
LARGE, SMALL = 256 << 20, 64 << 20  # the default of memory_budget, and one that makes do with less
TITLE = "Linearised embeddings with a posterior over deeper layers"
NOTE = (
    "'passes' is the forward pass and one plain backward pass of the batch for each of the Z dimensions, with the "
    "gradients of the parameters that are random. 'linearised' is `NetworkLAM.embed` with the whole covariance of "
    "each image, with a memory_budget of 256 and of 64 MiB; its ratios are to the passes. Medians of interleaved runs "
    "in one process; memory is the peak beyond what was there before, in MiB. Weights and images are random: what it "
    "costs does not depend on what they are."
)


def fashion(dim: int) -> tuple[Encoder, Tensor]:
    """The network for FashionMNIST, 64 images."""
    return Encoder.from_name("fashion-mnist", dim=dim, seed=0), torch.rand(64, 1, 28, 28)


def transformer() -> tuple[Encoder, Tensor]:
    """A vision transformer of two blocks of width 64, 64 images."""
    return Encoder.from_module(VisionTransformer(width=64, dim=16), "head.1"), torch.rand(64, 1, 28, 28)


def resnet() -> tuple[Encoder, Tensor]:
    """torchvision's ResNet-18 with a head of 32 dimensions, 8 images of 64 pixels."""
    from torchvision.models import resnet18

    return Encoder.from_module(resnet18(num_classes=32), "fc"), torch.rand(8, 3, 64, 64)


CASES: dict[str, Callable[[], tuple[Encoder, Tensor]]] = {
    "fashion-mnist, Z = 3": lambda: fashion(3),
    "fashion-mnist, Z = 16": lambda: fashion(16),
    "vision transformer, Z = 16": transformer,
    "ResNet-18, Z = 32": resnet,
}


def plain_passes(lam: NetworkLAM, images: Tensor) -> Callable[[], None]:
    """One backward pass of the batch for each dimension, with the gradients of the random parameters."""
    parameters = dict(lam.network.named_parameters())
    leaves = [parameters[name] for names in lam.layers.values() for name in names]

    def run() -> None:
        with evaluating(lam.encoder), torch.enable_grad():
            u = lam.network(images)
            for column in range(u.shape[1]):
                torch.autograd.grad(u[:, column].sum(), leaves, retain_graph=True)

    return run


def linearised(lam: NetworkLAM, images: Tensor, memory_budget: int) -> Callable[[], None]:
    """Mean directions, concentrations and covariances."""

    def run() -> None:
        lam.memory_budget = memory_budget
        lam.embed(images)

    return run


def measure(name: str, layers: Layers, repeats: int, budget: float) -> dict[str, Any]:
    """One network, with the passes and both budgets in turns."""
    torch.manual_seed(0)
    encoder, images = CASES[name]()
    lam = NetworkLAM(encoder, LOSS, layers=layers)
    lam.fit([(images, torch.arange(len(images)) % 4)], check_mode=False, progress=False)
    runs = {
        "passes": plain_passes(lam, images),
        "large": linearised(lam, images, LARGE),
        "small": linearised(lam, images, SMALL),
    }
    seconds = median_seconds(runs, repeats=repeats, budget=budget)
    memory = {which: mebibytes(peak_extra_memory(run)) for which, run in runs.items()}
    return {
        "network": name,
        "images": len(images),
        "random": f"last {layers} layers" if isinstance(layers, int) else f"{layers} layers",
        "passes ms": 1e3 * seconds["passes"],
        "linearised ms": 1e3 * seconds["large"],
        "ratio, 256 MiB": seconds["large"] / seconds["passes"],
        "ratio, 64 MiB": seconds["small"] / seconds["passes"],
        "memory, passes": memory["passes"],
        "memory, 256 MiB": memory["large"],
        "memory, 64 MiB": memory["small"],
    }


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds that medians are taken of.")] = 5,
    budget: Annotated[
        float, typer.Option(help="Seconds after which no further round of a case begins.")
    ] = 15.0,
) -> None:
    """Measure every network with all layers and with the last two."""
    cases: list[tuple[str, Layers]] = [(name, layers) for name in CASES for layers in ("all", 2)]
    rows = [measure(*case, repeats, budget) for case in track(cases, description="networks")]
    report(TITLE, rows, out, "benchmark_network_posterior", NOTE)


if __name__ == "__main__":
    typer.run(main)
