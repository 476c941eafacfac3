"""Images, or rows of features, as commands take them: with ids, and with labels where these are known."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laplacian_metric.data.dataset import LabelledImages
from laplacian_metric.data.images import fit_square
from laplacian_metric.data.labelled import LabelledInputs

HEAD = 1 << 16  # so much of a file, and its size, tell images apart
PERIOD, VALIDATION = 10, 4  # of ten rows of features of a class the fifth is for validation
EVERY = 5  # with classes apart every fifth class is


@dataclass(frozen=True, eq=False)
class Source:
    """N images, or rows of features, with their ids. Iterating yields batches (inputs, labels) in order.

    Attributes:
        name: of the data set, or the last part of the folder's or file's.
        split: which part of it, where it has parts.
        ids: one for each image, unique.
        labels: (N,) int64 from 0, or None where nobody knows.
        class_names: of the labels.
        images: where these are images.
        features: (N, H), where they are features.
        batch_size, workers: of iterating.
    """

    name: str
    split: str | None
    ids: tuple[str, ...]
    labels: Tensor | None
    class_names: tuple[str, ...]
    images: LabelledImages | None
    features: Tensor | None
    batch_size: int = 100
    workers: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        labels = torch.zeros(len(self), dtype=torch.int64) if self.labels is None else self.labels
        if self.images is not None and not isinstance(self.images.images, Tensor):
            yield from LabelledInputs(self.images, batch_size=self.batch_size, workers=self.workers)
            return
        for rows in torch.arange(len(self)).split(self.batch_size):
            if self.features is not None:
                yield self.features[rows], labels[rows]
            else:
                assert self.images is not None
                assert isinstance(self.images.images, Tensor)
                yield self.images.preparation.batch(self.images.images[rows]), labels[rows]

    @property
    def num_batches(self) -> int:
        """How many batches iterating yields."""
        return -(-len(self) // self.batch_size)

    @property
    def title(self) -> str:
        """Its name with its split."""
        return self.name if self.split is None else f"{self.name}:{self.split}"

    @property
    def classes(self) -> NDArray[np.str_]:
        """The name of every image's class, (N,)."""
        names = np.array([*self.class_names, ""])
        found: NDArray[np.str_] = names[self.known_labels().numpy()]
        return found

    def known_labels(self) -> Tensor:
        """The labels; an error where there are none."""
        if self.labels is None:
            remedy = (
                "take a folder with a folder for each class"
                if self.features is None
                else "pass --labels FILE, or call them labels in the same file"
            )
            raise ValueError(f"the classes of {self.title} are not known: {remedy}")
        if self.images is not None and self.images.positive_distance is not None:
            raise ValueError(
                f"the images of {self.title} match by distance and not by class: `lam experiment run` can judge them"
            )
        return self.labels

    def require_classes(self, purpose: str) -> None:
        """Refuse images of one class where something has to be told apart."""
        found = torch.unique(self.known_labels())
        if len(found) < 2:
            raise ValueError(
                f"all {len(self)} images of {self.title} are of the class {self.class_names[int(found[0])]!r}: "
                f"{purpose} needs at least 2 classes"
            )

    def select(self, rows: Tensor) -> Source:
        """Some of them, by position."""
        return Source(
            self.name,
            self.split,
            tuple(self.ids[row] for row in rows.tolist()),
            None if self.labels is None else self.labels[rows],
            self.class_names,
            None if self.images is None else self.images.select(rows),
            None if self.features is None else self.features[rows],
            self.batch_size,
            self.workers,
        )

    def digests(self) -> Tensor:
        """A number for every image that depends on what is in it, (N,) int64: whether two sources share images."""
        return torch.tensor([_number(part) for part in self._contents()], dtype=torch.int64)

    def _contents(self) -> Iterator[bytes]:
        if self.features is not None:
            for row in self.features:
                yield row.numpy().tobytes()
            return
        assert self.images is not None
        found = self.images.images
        if isinstance(found, Tensor):
            for image in found:
                yield image.numpy().tobytes()
            return
        for name in found.names:
            path = found.root / name
            with path.open("rb") as opened:
                yield str(path.stat().st_size).encode() + opened.read(HEAD)

    def thumbnails(self, side: int = 96) -> NDArray[np.uint8] | None:
        """Small images (N, h, w) or (N, h, w, 3); None of features."""
        if self.images is None:
            return None
        found = self.images.images
        if isinstance(found, Tensor):
            small = fit_square(found, side) if min(found.shape[-2:]) > side else found
        else:
            small = torch.stack([fit_square(image, side) for image in found])
        pixels: NDArray[np.uint8] = small.permute(0, 2, 3, 1).contiguous().numpy()
        return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def _number(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def shared(one: Tensor, other: Tensor) -> int:
    """How many of the first digests (N,) are among the second."""
    return int(torch.isin(one, other).sum())


def divided(source: Source, divide: str) -> tuple[Source, Source]:
    """What is fitted to, and what validates: of features, which come without splits.

    Of ten rows of a class the fifth is for validation; divided by "classes", every fifth class is.
    """
    labels = source.known_labels()
    if divide == "classes":
        held = labels % EVERY == EVERY - 1
    else:
        held = torch.zeros(len(source), dtype=torch.bool)
        for label in torch.unique(labels):
            rows = (labels == label).nonzero()[:, 0]
            held[rows[torch.arange(len(rows)) % PERIOD == VALIDATION]] = True
    if not bool(held.any()):
        least = f"{EVERY} classes" if divide == "classes" else f"{VALIDATION + 1} rows of a class"
        raise ValueError(
            f"{source.title} has too few rows to hold some out for validation, at least {least} are needed: give more, "
            "or leave out what is calibrated with --no-confidence"
        )
    return source.select((~held).nonzero()[:, 0]), source.select(held.nonzero()[:, 0])


def same_classes(one: Source, other: Source) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The labels of both as numbers that mean the same class, by the classes' names."""
    both = np.concatenate([one.classes, other.classes])
    numbers = np.unique(both, return_inverse=True)[1].astype(np.int64)
    return numbers[: len(one)], numbers[len(one) :]
