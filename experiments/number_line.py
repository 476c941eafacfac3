"""Two-digit numbers on a line, as in appendix D of the HIB paper: do numbers that share a digit lie next to each other?

    python -m experiments.number_line run --data DATA --cache WORK --out figures
    python -m experiments.number_line table --out figures

Embeds 2-digit MNIST in one dimension, with points and with one Gaussian, and puts the 100 numbers in the order of their
mean embeddings. Networks and training are those of `n_digit/N2_D2_point_drawn` and
`n_digit/N2_D2_gaussian_drawn`, but for the dimension and the number of epochs. An interrupted run resumes; WORK
keeps the networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from benchmarks.common import origin, save
from experiments.arguments import kept, kept_results, run_or_table
from experiments.harness.image_sets import cover_digits
from experiments.harness.tables.seeds import spread
from hessians import ContrastiveLoss
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.files import atomic_write
from laplacian_metric.core.method import FitData, Learner, Method, Setup
from laplacian_metric.data import load
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.precision import Precision
from laplacian_metric.methods.gaussian.hib import HIB, HIBEmbedder, VarianceHead
from laplacian_metric.methods.gaussian.soft_contrastive import SoftContrastive, SoftContrastiveEmbedder
from laplacian_metric.report.plots import COLOURS, as_png
from laplacian_metric.training import TrainingOptions, load_best, pair_choice, train
from laplacian_metric.training.options import Optimizer, Schedule

DIGITS = 2
CHANNELS, HIDDEN = (16, 32), 1024
SEEDS = (0, 1)
METHODS: dict[str, Method] = {
    "One Gaussian": HIB(normalize=False, head=VarianceHead.LINEAR, samples=8, kl_weight=1e-4),
    "Point": SoftContrastive(normalize=False),
}
UNTRAINED = "Point, untrained"
OPTIONS = TrainingOptions(
    epochs=10,
    batch_size=128,
    optimizer=Optimizer.ADAM,
    learning_rate=3e-3,
    schedule=Schedule.COSINE,
    final_share=0.01,
    checkpoint_every=200,
    precision=Precision.BFLOAT16,
)
# The paper's appendix D: four trials of each, and the mean length of a run.
PRINTED = {"One Gaussian": ("76 to 80", 4.6), "Point": ("42 to 74", 3.0)}
NAME = "number_line"
TITLE = "The numbers from 00 to 99 on a line"
NOTE = """\
The 100 two-digit numbers in the order of the means of their test images, after {epochs} epochs of 782 steps (the paper
has 500,000 steps). 70 of the numbers were seen in training. *Neighbours that share a digit*: of the 99 pairs of numbers
that are next to each other; in a random order it is 18. *Numbers in a run*: how many numbers follow each other on
average, each of which shares a digit with the next. Mean ± standard deviation over the seeds, and the paper's
range of four trials. Point, untrained is the network as it begins. The difference is paired by seed, with its 95 % t
interval."""


def shares_a_digit(order: Tensor) -> Tensor:
    """Whether each number shares its tens or its ones with the next one, (C - 1,), of numbers (C,) below 100.

    Example:
        >>> shares_a_digit(torch.tensor([12, 17, 71, 41])).tolist()
        [True, False, True]
    """
    tens, ones = order // 10, order % 10
    return (tens[1:] == tens[:-1]) | (ones[1:] == ones[:-1])


def mean_run(shared: Tensor) -> float:
    """The mean number of consecutive numbers, of which each shares a digit with the next; 1 where none does.

    Example:
        >>> mean_run(torch.tensor([True, False, True, True]))
        2.5
    """
    starts = shared & ~torch.cat([shared.new_zeros(1), shared[:-1]])
    runs = int(starts.sum())
    return 1.0 if runs == 0 else int(shared.sum()) / runs + 1


def centres(encode: Callable[[Dataset], Tensor], sets: list[Dataset]) -> dict[int, float]:
    """The mean place of every number, of embeddings (N, 1) of data sets whose classes do not overlap."""
    centre_of: dict[int, float] = {}
    for images in sets:
        places = encode(images)[:, 0].double()
        labels = images.labels
        centre_of.update({int(label): float(places[labels == label].mean()) for label in labels.unique()})
    return centre_of


def place(method: str, seed: int, data_dir: Path, folder: Path) -> dict[str, Any]:
    """Train one network, unless that was done, and place the numbers, before and after."""
    covered: dict[str, dict[str, Any]] = {
        "train": {"occlusion": "clean", "augment": cover_digits},
        "validation": {},
    }
    sets = {
        split: load("n-digit-mnist", split, data_dir=data_dir, digits=DIGITS, **more)
        for split, more in covered.items()
    }
    tests = [
        load("n-digit-mnist", "test", data_dir=data_dir, digits=DIGITS, classes=classes)
        for classes in ("seen", "unseen")
    ]
    backbone = Encoder.from_name(
        "n-digit", seed=seed, digits=DIGITS, channels=CHANNELS, hidden=HIDDEN
    ).backbone
    features = backbone(torch.zeros(1, 1, 28, 28 * DIGITS)).shape[1]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = Encoder(backbone, nn.Linear(features, 1), normalize=False)
    setup = Setup(ContrastiveLoss(), num_images=len(sets["train"]), seed=seed, pairs=pair_choice(OPTIONS))
    learner = METHODS[method].learner([encoder], setup)
    before = centres(lambda images: _means(learner, sets, images), tests)
    trained = train(
        learner,
        sets["train"],
        sets["validation"],
        OPTIONS,
        folder,
        seed=seed,
        identity={"method": METHODS[method].name, "dim": 1, "channels": list(CHANNELS), "hidden": HIDDEN},
    )
    load_best(learner, folder)
    after = centres(lambda images: _means(learner, sets, images), tests)
    return {
        "method": method,
        "seed": seed,
        "best_epoch": trained.best_epoch,
        "seconds": round(trained.seconds, 1),
        **origin(),
        "untrained": before,
        "centres": after,
    }


def _means(learner: Learner, sets: dict[str, Dataset], images: Dataset) -> Tensor:
    embedder = learner.embedder(FitData(sets["train"], sets["validation"]))
    assert isinstance(embedder, HIBEmbedder | SoftContrastiveEmbedder)
    return embedder.mixtures(images)[0].mean(1)


def run(data: Path, cache: Path, out: Path) -> Iterator[str]:
    """Train and place what has no result yet, and name what is finished."""
    for seed in SEEDS:
        for method in METHODS:
            name = f"{METHODS[method].name}_seed{seed}"
            path = out / "results" / NAME / f"{name}.json"
            if kept(path, partial(place, method, seed, data, cache / NAME / name)):
                yield name


def ordered(places: dict[str, float]) -> Tensor:
    """The numbers from left to right, (C,)."""
    return torch.tensor(sorted(map(int, places), key=lambda number: places[str(number)]))


def table(out: Path) -> list[Path]:
    """Write the table and the picture from the results."""
    results = kept_results(out / "results" / NAME)
    lines = {
        method: {one["seed"]: one["centres"] for one in results if one["method"] == method}
        for method in METHODS
    }
    lines[UNTRAINED] = {one["seed"]: one["untrained"] for one in results if one["method"] == "Point"}
    counts = {
        method: {seed: int(shares_a_digit(ordered(line)).sum()) for seed, line in by_seed.items()}
        for method, by_seed in lines.items()
    }
    rows = [_row(method, lines[method], counts[method]) for method in lines if lines[method]]
    rows.append(_difference(counts))
    written = save(out, NAME, TITLE, rows, NOTE.format(epochs=OPTIONS.epochs))
    path = out / "plots" / f"{NAME}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_bytes(picture({method: lines[method] for method in METHODS if lines[method]}))
    return [*written, path]


def _row(method: str, by_seed: dict[int, dict[str, float]], counts: dict[int, int]) -> dict[str, Any]:
    runs = [mean_run(shares_a_digit(ordered(line))) for line in by_seed.values()]
    printed, printed_run = PRINTED.get(method, ("-", None))
    return {
        "": method,
        "neighbours that share a digit": spread(list(counts.values())).text(1),
        "paper": printed,
        "numbers in a run": spread(runs).text(2),
        "paper's run": printed_run,
        "seeds": len(by_seed),
    }


def _difference(counts: dict[str, dict[int, int]]) -> dict[str, Any]:
    first, second = METHODS
    both = sorted(set(counts[first]) & set(counts[second]))
    gained = spread(counts[first][seed] - counts[second][seed] for seed in both)
    interval = gained.interval()
    reach = "" if interval is None else f" ({interval[0]:+.1f} to {interval[1]:+.1f})"
    return {
        "": f"{first} less {second.lower()}",
        "neighbours that share a digit": f"{gained.mean:+.1f}{reach}" if both else "-",
        "paper": "-",
        "numbers in a run": "-",
        "paper's run": None,
        "seeds": len(both),
    }


def picture(lines: dict[str, dict[int, dict[str, float]]]) -> bytes:
    """The numbers of the first seed in their order, in two lines, with a bar between neighbours that share a digit."""
    figure = Figure(figsize=(13, 1.4 * len(lines)), layout="constrained")
    every = figure.subplots(len(lines), 1, squeeze=False)[:, 0]
    for axes, (method, by_seed) in zip(every, lines.items(), strict=True):
        order = ordered(by_seed[min(by_seed)])
        shared = shares_a_digit(order)
        half = (len(order) + 1) // 2
        for at, number in enumerate(order.tolist()):
            axes.text(
                at % half, -(at // half), f"{number:02d}", fontsize=9, color="white", ha="center", va="center",
                bbox={"boxstyle": "round,pad=0.2", "color": COLOURS[number % 10]},
            )  # fmt: skip
        for at in shared.nonzero()[:, 0].tolist():
            # Behind the numbers; from the last one of a line it points to the next line.
            left, level = at % half, -(at // half)
            axes.plot([left, left + 1], [level, level], color="#222222", linewidth=3, zorder=0)
        axes.set_xlim(-1, half)
        axes.set_ylim(-1.6, 0.6)
        axes.axis("off")
        title = f"{method}: {int(shared.sum())} of {len(shared)} neighbours share a digit (bars between them)"
        axes.set_title(title, fontsize=10, loc="left")
    return as_png(figure)


if __name__ == "__main__":
    run_or_table(__doc__, run, table)
