"""Cut the sample that is embedded in `laplacian_metric` out of the full FashionMNIST and MNIST.

    python experiments/cut_sample.py DATA [--out DIR]

DATA holds FashionMNIST/raw and MNIST/raw as torchvision lays them out. The same data give the same files: which
images are taken depends on a fixed seed, on the labels and on nothing else.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torchvision import datasets

from laplacian_metric.core.files import atomic_write

SEED = 20231210
NUM_CLASSES = 10
DEFAULT_OUT = Path(__file__).resolve().parents[1] / "laplacian_metric" / "data" / "_sample"


@dataclass(frozen=True)
class Cut:
    """One file of the sample: its name, the data set of torchvision that it is cut from, and images per class."""

    name: str
    source: str
    train: bool
    per_class: int


CUTS = (
    Cut("fashion-mnist-train", "FashionMNIST", True, 300),
    Cut("fashion-mnist-test", "FashionMNIST", False, 100),
    Cut("mnist-test", "MNIST", False, 100),
)


def choose(labels: NDArray[np.uint8], per_class: int, seed: int = SEED) -> NDArray[np.int64]:
    """Positions of `per_class` images of every class, ascending.

    Every image draws a 64-bit key; a class keeps its smallest. Raw output of the bit generator is used because
    numpy keeps it the same from release to release, which it does not promise for shuffles.
    """
    keys = np.random.PCG64(seed).random_raw(labels.size)
    chosen = []
    for label in range(NUM_CLASSES):
        members = np.flatnonzero(labels == label)
        if members.size < per_class:
            raise ValueError(f"class {label} has {members.size} images, {per_class} are needed")
        chosen.append(members[np.argsort(keys[members], kind="stable")[:per_class]])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def cut(data: Path, plan: Cut) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of one file of the sample."""
    published = getattr(datasets, plan.source)(data, train=plan.train)
    images, labels = published.data.numpy(), published.targets.numpy().astype(np.uint8)
    indices = choose(labels, plan.per_class)
    return {"images": images[indices], "labels": labels[indices], "indices": indices}


def write(path: Path, arrays: dict[str, NDArray[np.generic]]) -> None:
    """Write a compressed .npz so that `path` holds either its former content or all of the new one."""
    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Cut the embedded sample out of FashionMNIST and MNIST.")
    parser.add_argument("data", type=Path, help="folder with FashionMNIST/raw and MNIST/raw")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="where the .npz files go")
    options = parser.parse_args(arguments)
    try:
        arrays = {plan.name: cut(options.data, plan) for plan in CUTS}
    except (OSError, RuntimeError, ValueError) as error:
        print(f"cut_sample: {error}", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    for name, content in arrays.items():
        path = options.out / f"{name}.npz"
        write(path, content)
        print(f"{path.name}: {content['labels'].size} images, {path.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
