"""The most that anything can get right on N-digit MNIST where digits are covered, beside what the HIB paper printed.

    python -m experiments.covered_digits --data DATA --out figures

A square that is wide enough hides all ink of a digit: the tile is black, and says of the digit only what the chance to
be hidden says, which is higher for a small one. Whoever reads every digit that has any ink left without error, and
knows that chance and the numbers that occur, has the greatest accuracy, and the greatest average precision of pairs,
that can be had from the test images. Networks have less: most digits of which little is left cannot be read.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import save, show
from experiments.arguments import HERE
from experiments.harness.tables.descriptions import PublishedTable, read_published
from experiments.harness.verification import pair_average_precision
from experiments.sets.n_digit_mnist import class_numbers
from laplacian_metric.data import load
from laplacian_metric.training.pair_streams import balanced_pairs

SIDE = 28
PAIRS = 10_000
# What is covered, by the option of the data set; and whether images without any covered digit are left out.
SETS = {
    "every digit": ("corrupt", False),
    "each with probability 0.2, at least one": ("mixed", True),
    "each with probability 0.2": ("mixed", False),
}


def chance_to_be_hidden(digits: Tensor) -> Tensor:
    """For images (M, 28, 28) of single digits the probability that a random square covers all of their ink, (M,).

    Its side is uniform from 0 to 28 and its place uniform among those inside the tile, see `n_digit_mnist`.
    """
    ink = digits > 0
    inside = torch.ones(len(digits), SIDE + 1, dtype=torch.float64)
    sides = torch.arange(SIDE + 1)
    for axis in (1, 2):
        line = ink.any(3 - axis)  # (M, 28), the rows or columns that have ink
        first = line.int().argmax(1)[:, None]
        last = SIDE - 1 - line.flip(1).int().argmax(1)[:, None]
        # From `last - side + 1` to `first`, of the places from 0 to `28 - side`.
        lowest, highest = (last - sides + 1).clamp(min=0), torch.minimum(first, SIDE - sides)
        inside *= (highest - lowest + 1).clamp(min=0).double() / (SIDE - sides + 1)
    # What has no ink is hidden by any square.
    return torch.where(ink.flatten(1).any(1), inside.mean(1), 1.0)


def beliefs(black: Tensor, labels: Tensor, numbers: Tensor, hidden: Tensor) -> Tensor:
    """The probability of every number (N, C) for images whose digits are read but for the black ones.

    Args:
        black: which tiles show nothing, (N, digits).
        labels: the numbers that the images are of, (N,).
        numbers: those that occur, equally often, (C,).
        hidden: for each digit from 0 to 9 the probability that it is hidden, (10,), or any multiple of it.
    """
    places = 10 ** torch.arange(black.shape[1] - 1, -1, -1)
    shown, possible = (x[:, None] // places % 10 for x in (labels, numbers))  # (N, digits), (C, digits)
    likelihood = torch.ones(len(labels), len(numbers), dtype=torch.float64)
    for place in range(black.shape[1]):
        read = (shown[:, place, None] == possible[None, :, place]).double()
        likelihood *= torch.where(black[:, place, None], hidden[possible[:, place]][None], read)
    return likelihood / likelihood.sum(1, keepdim=True)


def greatest_precision(belief: Tensor, labels: Tensor, pairs: Tensor) -> float:
    """The average precision at telling the pairs (P, 2) that match, ranked by the probability that they do."""
    scores = torch.cat([(belief[rows[:, 0]] * belief[rows[:, 1]]).sum(1) for rows in pairs.split(2048)])
    return pair_average_precision(scores, labels[pairs[:, 0]] == labels[pairs[:, 1]])


def black_tiles(images: Tensor) -> Tensor:
    """Which tiles (N, digits) of images (N, 1, 28, 28 digits) have no ink."""
    number, _, height, width = images.shape
    return (images.view(number, height, width // SIDE, SIDE) == 0).all(3).all(1)


def printed(tables: Mapping[str, PublishedTable], digits: int, metric: str) -> float:
    """The greatest number of HIB's tables for so many digits, in any dimension."""
    names = [name for name in tables if name.startswith("hib_") and f"n{digits}_" in name]
    return max(row[metric].mean for name in names for row in tables[name].rows.values())


def row(
    digits: int, covered: str, data_dir: Path | None, published: Mapping[str, PublishedTable]
) -> dict[str, Any]:
    """What can be got right on one test set."""
    single = load("mnist", "test", data_dir=data_dir)
    chances, classes = chance_to_be_hidden(single.images[:, 0]), single.labels
    hidden = torch.stack([chances[classes == digit].mean() for digit in range(10)])
    occlusion, only_covered = SETS[covered]
    images = load("n-digit-mnist", "test", data_dir=data_dir, digits=digits, occlusion=occlusion)
    kept = (
        (images.extras["covered"] > 0).any(1) if only_covered else torch.ones(len(images), dtype=torch.bool)
    )
    black, labels = black_tiles(images.images[kept]), images.labels[kept]
    numbers = torch.from_numpy(class_numbers(digits, "seen"))
    belief = beliefs(black, labels, numbers, hidden)
    return {
        "digits": digits,
        "covered": covered,
        "images": len(labels),
        "black tiles": float(black.double().mean()),
        "images with one": float(black.any(1).double().mean()),
        "accuracy, at most": float(belief.max(1).values.mean()),
        "paper's 5-NN, corrupt, up to": printed(published, digits, "5-NN, corrupt"),
        "AP of pairs, at most": greatest_precision(belief, labels, balanced_pairs(labels, PAIRS, (0,))),
        "paper's AP, corrupt, up to": printed(published, digits, "AP of pairs, corrupt"),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure how much covered digits leave to be read.")
    parser.add_argument("--data", type=Path, default=None, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args(arguments)
    published = read_published(HERE / "published_numbers.yaml")
    rows = [row(digits, covered, options.data, published) for digits in (2, 3) for covered in SETS]
    title = "What covered digits leave to be read"
    show(title, rows)
    note = (
        "N-digit MNIST, test images of numbers seen in training. A tile is black where the square on it covers "
        "all ink of its digit. At most: by the probability of every number, for whoever reads all other digits without "
        "error. The paper's are the greatest of its Tables 1 and 4, whose corrupt images have, by its appendix A, a "
        "square on every digit."
    )
    save(options.out, "covered_digits", title, rows, note)


if __name__ == "__main__":
    main()
