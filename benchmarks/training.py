"""What the training loop costs on top of the steps themselves, what bfloat16 saves, and what each method's step costs.

    python -m benchmarks.training --out figures

- An epoch of `train`, validation and checkpoints set aside, beside a loop of a few lines over the same batches.
- An epoch with bfloat16 in the backbone beside one in float32.
- A step of every method that trains, beside a step of the deterministic network.
"""

from __future__ import annotations

import copy
import itertools
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.common import median_seconds, report
from hessians import ContrastiveLoss, Pairs
from laplacian_metric import Encoder, methods
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import Learner, Setup, Start
from laplacian_metric.data import load
from laplacian_metric.training import TrainingOptions, train
from laplacian_metric.training.pair_streams import epoch_batches

LOSS = ContrastiveLoss(margin=0.7, distance="arccos")
BATCH = 256
LIMIT = 1.02
TITLE = "Training: the loop beside a minimal one, bfloat16 beside float32, methods beside the deterministic network"
NOTE = (
    f"The FashionMNIST network with Z = 3, batches of {BATCH}, all pairs, RMSprop; medians of interleaved runs in one "
    "process. 'loop' is an epoch of `train` on the sample's training images, with two validation images and without "
    "what it takes to write the checkpoints once, beside an epoch of the same batches with nothing but loss, gradient "
    "and step; 'bfloat16' the same epoch with the backbone in bfloat16 beside float32; every other row is a step of a "
    "method beside one of the deterministic network on the same batches. 'limit' is what the ratio is meant to stay "
    "below."
)


def network() -> Encoder:
    """The same one each time."""
    return Encoder.from_name("fashion-mnist", dim=3, seed=0)


def learner_of(name: str, num_images: int) -> Learner:
    """A new learner of a method, begun from the same network."""
    method = methods.make(name)
    setup = Setup(LOSS, num_images, weight_decay=1e-5)
    return method.learner([network()], setup)


# --- epochs ---


def in_a_loop(images: Dataset, options: TrainingOptions) -> Callable[[], None]:
    """The next epoch of a loop as one writes it for one purpose."""
    encoder = network()
    optimizer = torch.optim.RMSprop(encoder.parameters(), lr=options.learning_rate)
    epochs = itertools.count()
    inputs, labels = images.inputs, images.labels
    assert isinstance(inputs, Tensor)

    def run() -> None:
        encoder.train()
        for rows in epoch_batches(labels, options, 0, next(epochs)):
            loss = LOSS(encoder.raw(inputs[rows]), Pairs.from_labels(labels[rows]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def in_the_loop(images: Dataset, options: TrainingOptions) -> Callable[[], None]:
    """An epoch of `train` in a folder of its own, for as many epochs as the options have."""
    few = images.select(torch.arange(len(images))[images.labels == images.labels[0]][:2])

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train(
                learner_of("deterministic", len(images)), images, few, options, Path(folder), progress=False
            )

    return run


def epoch_rows(images: Dataset, repeats: int) -> list[dict[str, Any]]:
    """The loop beside a minimal one, and bfloat16 beside float32.

    What a call costs once, for the network and its folder, is what a call without any epoch costs.
    """
    none, one = (TrainingOptions(epochs=epochs, batch_size=BATCH) for epochs in (0, 1))
    low_none, low_one = (
        TrainingOptions(epochs=epochs, batch_size=BATCH, precision="bfloat16")  # type: ignore[arg-type]
        for epochs in (0, 1)
    )
    seconds = median_seconds(
        {
            "minimal": in_a_loop(images, one),
            "none": in_the_loop(images, none),
            "one": in_the_loop(images, one),
            "low none": in_the_loop(images, low_none),
            "low one": in_the_loop(images, low_one),
            "checkpoints": checkpoints(images),
        },
        repeats=repeats,
        budget=300,
    )
    epoch = seconds["one"] - seconds["none"]
    low = seconds["low one"] - seconds["low none"]
    return [
        row("loop", seconds["minimal"], epoch - seconds["checkpoints"], LIMIT),
        row("loop with checkpoints and validation", seconds["minimal"], epoch, None),
        row("bfloat16", epoch, low, None),
    ]


def checkpoints(images: Dataset) -> Callable[[], None]:
    """What an epoch writes, in one go: the best epoch, the log and the last one."""
    from laplacian_metric.training import checkpoint

    learner = learner_of("deterministic", len(images))
    optimizer = torch.optim.RMSprop(learner.parameters())
    begun(learner, optimizer)
    x, y = next(iter(images))
    step(learner, optimizer, x[:8], y[:8])
    progress = checkpoint.Progress()

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.save(
                Path(folder) / checkpoint.BEST, checkpoint.embedding_tensors(learner), {}, progress
            )
            checkpoint.save_log(Path(folder) / checkpoint.LOG, {})
            tensors = {
                **checkpoint.embedding_tensors(learner),
                **checkpoint.optimizer_tensors(learner, optimizer),
            }
            checkpoint.save(Path(folder) / checkpoint.LAST, tensors, {}, progress)

    return run


# --- steps ---


def begun(learner: Learner, optimizer: torch.optim.Optimizer) -> None:
    learner.begin(optimizer, torch.Generator().manual_seed(0))
    learner.train_mode()


def step(learner: Learner, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    """As the loop takes it."""
    learner.train_mode()
    optimizer.zero_grad()
    learner.loss(x, y).backward()
    learner.step()


def steps_of(name: str, batches: list[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """The next step of a method."""
    learner = learner_of(name, sum(len(y) for _, y in batches))
    optimizer = torch.optim.RMSprop(learner.parameters(), lr=1e-4, weight_decay=1e-5)
    begun(learner, optimizer)
    coming = itertools.cycle(batches)

    def run() -> None:
        step(learner, optimizer, *next(coming))

    return run


def trained_methods() -> Iterator[str]:
    """Those that take steps from one encoder, the deterministic one first."""
    for name in methods.names():
        try:
            method = methods.find(name)
        except ImportError:
            logging.getLogger(__name__).warning("%s is left out: it cannot be imported", name)
            continue
        if method.trains and method.start is not Start.NETWORKS:
            yield name


def step_rows(images: Dataset, repeats: int) -> list[dict[str, Any]]:
    """Steps in turns on copies of one network, which see the same batches."""
    inputs = images.inputs
    assert isinstance(inputs, Tensor)
    rows = epoch_batches(images.labels, TrainingOptions(batch_size=BATCH), 0, 0)
    batches = [(inputs[chosen], images.labels[chosen]) for chosen in rows if len(chosen) == BATCH]
    runs = {name: steps_of(name, copy.copy(batches)) for name in trained_methods()}
    seconds = median_seconds(runs, repeats=repeats, warm_up=12, budget=300)
    base = seconds.pop("deterministic")
    return [row(f"step of {name}", base, taken, None) for name, taken in seconds.items()]


def row(what: str, beside: float, taken: float, limit: float | None) -> dict[str, Any]:
    return {
        "what": what,
        "ms": 1e3 * taken,
        "beside ms": 1e3 * beside,
        "ratio": round(taken / beside, 3),
        "limit": limit,
    }


def main(
    out: Annotated[Path, typer.Option(help="Folder for the result files.")] = Path("figures"),
    repeats: Annotated[int, typer.Option(help="Rounds that medians are taken of.")] = 11,
) -> None:
    """Measure and write."""
    warnings.simplefilter("ignore")
    sample = load("sample-fashion-mnist", "train+validation")
    images = Dataset(sample.floats(), sample.labels)
    rows = epoch_rows(images, repeats) + step_rows(images, 4 * repeats)
    report(TITLE, rows, out, "benchmark_training", NOTE)


if __name__ == "__main__":
    typer.run(main)
