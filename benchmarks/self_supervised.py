"""Time of views, of a step of UMM beside one of NT-Xent, and of InfoNCE's curvature beside the products that it needs.

python -m benchmarks.self_supervised --out figures
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import experiments.networks  # noqa: F401 (makes narrow-resnet18 known)
from benchmarks.common import median_seconds, report
from hessians import ContrastiveLoss, InfoNCELoss, Pairs, last_layer_ggn_diagonal
from laplacian_metric import methods
from laplacian_metric.core.method import Setup
from laplacian_metric.data.views import ImageViews
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.precision import Precision, computing_in

TITLE = "Learning without labels: views, steps and InfoNCE's curvature"
NOTE = (
    "One thread; medians of the processor's time in ms, of interleaved runs in one process. Views: one view of each of "
    "128 images of 3 x 32 x 32. Steps: two views of 128 images, forward, backward and SGD, bfloat16 in the backbone "
    "where the processor has it; UMM with k samples and all three losses. Curvature: the last layer's diagonal of "
    "InfoNCE for 256 views, D = 128, H = 512; beside it the matrix products alone that its formula consists of. "
    "'ratio' is against the row that 'beside' names."
)
NUM, DIM, WIDTH = 256, 128, 512


def view_runs() -> dict[str, Callable[[], object]]:
    """Return views of a batch, with and without blur."""
    images = torch.rand(128, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    plain, blurred = ImageViews(), ImageViews(blur=0.5)
    return {"views": lambda: plain(images, generator), "views with blur": lambda: blurred(images, generator)}


def step_runs(network: str) -> dict[str, Callable[[], object]]:
    """Return whole steps of both methods on a network."""
    images = torch.rand(128, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    runs: dict[str, Callable[[], object]] = {}
    options: dict[str, dict[str, Any]] = {"nt-xent": {}}
    options |= {f"umm k={k}": {"samples": ((0, k),)} for k in (5, 1)}
    for name, own in options.items():
        method = methods.make(name.split()[0], **own)
        learner = method.learner([Encoder.from_name(network, dim=DIM, seed=0)], Setup(ContrastiveLoss(), 128))
        optimizer = torch.optim.SGD(learner.parameters(), lr=1e-3, momentum=0.9)
        learner.begin(optimizer, torch.Generator().manual_seed(0))

        def step(learner: Any = learner, optimizer: Any = optimizer) -> None:
            with computing_in(Precision.BFLOAT16, learner.module):
                learner.train_mode()
                optimizer.zero_grad()
                learner.loss(images, torch.arange(128)).backward()
                optimizer.step()

        runs[f"{network}, {name}"] = step
    return runs


def curvature_runs() -> dict[str, Callable[[], object]]:
    """Return InfoNCE's diagonal, and its products, for constant keys and for both sides."""
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(NUM, WIDTH, generator=generator)
    layer = nn.Linear(WIDTH, DIM)
    pairs, loss = Pairs.from_labels(torch.arange(NUM // 2).repeat(2)), InfoNCELoss(0.1)
    z = nn.functional.normalize(torch.randn(NUM, DIM, generator=generator)).double()
    p = torch.rand(NUM, NUM, generator=generator, dtype=torch.float64).softmax(1)
    weight = torch.rand(DIM, WIDTH, generator=generator)
    coupling = p.float()

    def fixed_products() -> Tensor:
        embedded = h @ weight.T
        _ = z @ z.T, p @ z, p @ z, p @ z.square()
        return embedded.T @ h

    def both_products() -> Tensor:
        total = h @ weight.T @ weight
        for _ in range(DIM):
            total = coupling.T @ coupling @ h
        return total

    def diagonal(approximation: str) -> Callable[[], object]:
        return lambda: last_layer_ggn_diagonal(h, layer.weight, layer.bias, pairs, loss, approximation)

    return {
        "products, constant keys": fixed_products,
        "curvature, constant keys": diagonal("fixed"),
        "products, both sides": both_products,
        "curvature, both sides": diagonal("full"),
    }


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds of interleaved runs.")] = 9,
) -> None:
    """Measure all of them."""
    torch.set_num_threads(1)
    beside = {
        "curvature, constant keys": "products, constant keys",
        "curvature, both sides": "products, both sides",
    }
    rows: list[dict[str, Any]] = []
    for runs in (view_runs(), step_runs("small-cnn"), step_runs("narrow-resnet18"), curvature_runs()):
        seconds = median_seconds(runs, repeats=repeats, clock=time.process_time)
        for name, taken in seconds.items():
            other = beside.get(name, f"{name.split(', ')[0]}, nt-xent" if ", umm" in name else "")
            ratio = f"{taken / seconds[other]:.2f}" if other else ""
            rows.append({"what": name, "ms": taken * 1e3, "beside": other, "ratio": ratio})
    report(TITLE, rows, out, "benchmark_self_supervised", NOTE)


if __name__ == "__main__":
    typer.run(main)
