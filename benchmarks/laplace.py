"""What a posterior costs on top of what has to be done anyway.

- Embedding with a concentration, beside the encoder's own deterministic pass over the same images.
- A step of online training, beside a deterministic step of the same network, loss and optimizer.

    python -m benchmarks.laplace --out figures
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from torch import Tensor

from benchmarks.common import mebibytes, median_seconds, peak_extra_memory, report
from hessians import ContrastiveLoss, Pairs
from laplacian_metric import LAM, Encoder, OnlineLAM
from laplacian_metric.core.modes import evaluating
from laplacian_metric.data import load

LOSS = ContrastiveLoss(margin=0.7, distance="arccos")
REPEATS = 15
EMBEDDING_NOTE = (
    "Medians of interleaved runs in one process. 'with kappa' is `LAM.embed`: the encoder's pass, the variances of u, "
    "and mean direction and concentration by the closed form. 'limit' is what the ratio is meant to stay below."
)
APPROXIMATIONS = ("fixed", "positive", "full", "clipped")
LIMITS = {"fixed": 1.05}
TRAINING_NOTE = (
    "The FashionMNIST network with Z = 3, batches of 256, Arccos distance, all pairs. Medians of interleaved steps in "
    "one process, on copies of one network that see the same batches. An online step draws the head's weights, and "
    "adds the batch's curvature over all of its pairs, in the named approximation, to the running one. 'limit' is what "
    "the ratio is meant to stay below."
)


def embedding_rows(repeats: int) -> list[dict[str, Any]]:
    """Each encoder's pass with and without mean and kappa."""
    generator = torch.Generator().manual_seed(0)
    fashion = load("sample-fashion-mnist", "train+validation").floats()
    cases: list[tuple[str, Encoder, Tensor, str]] = [
        (
            f"FashionMNIST net, Z = 3, {structure}",
            Encoder.from_name("fashion-mnist", dim=3, seed=0),
            fashion[:1000],
            structure,
        )
        for structure in ("diag", "lowrank")
    ]
    photographs = torch.rand(16, 3, 128, 128, generator=generator)
    cases.append(
        ("ResNet-50 + GeM, Z = 2048, diag", Encoder.from_name("resnet50-gem", seed=0), photographs, "diag")
    )
    rows = []
    for name, encoder, images, structure in track(cases, description="embedding"):
        lam = fitted(encoder, structure)
        runs = {"deterministic": deterministic(encoder, images), "with kappa": lambda: lam.embed(images)}  # noqa: B023
        seconds = median_seconds(runs, repeats=repeats, warm_up=2)
        rows.append(
            {
                "encoder and structure": name,
                "images": len(images),
                "deterministic ms": 1e3 * seconds["deterministic"],
                "with kappa ms": 1e3 * seconds["with kappa"],
                "ratio": seconds["with kappa"] / seconds["deterministic"],
                "limit": 1.10 if structure == "diag" else None,
                "extra MiB": mebibytes(peak_extra_memory(runs["with kappa"])),
            }
        )
    return rows


def fitted(encoder: Encoder, structure: str) -> LAM:
    """A posterior whose features are random: what it costs does not depend on what they are."""
    generator = torch.Generator().manual_seed(1)
    features = torch.rand(200, encoder.num_features, generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LAM(encoder, LOSS, structure=structure).fit_features(
            features, torch.arange(200) % 10, generator=generator
        )


def deterministic(encoder: Encoder, images: Tensor) -> Callable[[], Tensor]:
    """The encoder's embeddings alone."""

    def run() -> Tensor:
        with evaluating(encoder):
            return encoder(images)

    return run


def training_rows(repeats: int) -> list[dict[str, Any]]:
    """Steps in turns on copies of the network, which see the same batches: one without and four with a posterior."""
    sample = load("sample-fashion-mnist", "train+validation")
    images, labels = sample.floats(), sample.labels
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(2))
    batches = [(images[rows], labels[rows]) for rows in order.split(256) if len(rows) == 256]
    runs = {"deterministic": deterministic_steps(batches)} | {
        approximation: online_steps(batches, approximation, len(images)) for approximation in APPROXIMATIONS
    }
    seconds = median_seconds(runs, repeats=repeats, warm_up=3, budget=120)
    return [
        {
            "approximation": approximation,
            "deterministic ms a step": 1e3 * seconds["deterministic"],
            "online ms a step": 1e3 * seconds[approximation],
            "ratio": seconds[approximation] / seconds["deterministic"],
            "limit": LIMITS.get(approximation),
        }
        for approximation in APPROXIMATIONS
    ]


def network() -> tuple[Encoder, torch.optim.Optimizer]:
    """The same network each time, and an optimizer of its own."""
    encoder = Encoder.from_name("fashion-mnist", dim=3, seed=0)
    return encoder, torch.optim.RMSprop(encoder.parameters(), lr=1e-4, weight_decay=1e-5)


def deterministic_steps(batches: list[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """A plain step on the next batch."""
    encoder, optimizer = network()
    coming = itertools.cycle(batches)

    def run() -> None:
        x, y = next(coming)
        optimizer.zero_grad()
        LOSS(encoder.raw(x), Pairs.from_labels(y)).backward()
        optimizer.step()

    return run


def online_steps(
    batches: list[tuple[Tensor, Tensor]], approximation: str, num_images: int
) -> Callable[[], None]:
    """A step of `OnlineLAM` on the next batch."""
    # A warm-up would draw nothing; the prior keeps the first draws close.
    online = OnlineLAM(
        *network(),
        LOSS,
        num_images=num_images,
        approximation=approximation,
        warmup=0,
        prior_precision=1000.0,
    )
    coming = itertools.cycle(batches)

    def run() -> None:
        online.step(*next(coming))

    return run


def main(
    out: Annotated[Path, typer.Option(help="Folder for the result files.")] = Path("figures"),
    repeats: Annotated[int, typer.Option(help="Rounds that medians are taken of.")] = REPEATS,
) -> None:
    """Measure both and write them."""
    embedding = embedding_rows(repeats)
    title = "Embedding with a concentration beside the deterministic pass"
    report(title, embedding, out, "benchmark_embedding", EMBEDDING_NOTE)
    training = training_rows(4 * repeats)
    title = "A step of online training beside a deterministic step"
    report(title, training, out, "benchmark_online", TRAINING_NOTE)


if __name__ == "__main__":
    typer.run(main)
