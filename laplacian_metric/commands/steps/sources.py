"""What commands read: data sets by name, folders of images, and files of features, opened in one way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laplacian_metric import data
from laplacian_metric.commands.steps import array_files
from laplacian_metric.data.dataset import LabelledImages
from laplacian_metric.data.images import EXTENSIONS, ImageFiles, Preparation, fit_square
from laplacian_metric.data.sources import folder as folders
from laplacian_metric.data.splits import Split, parse_split
from laplacian_metric.labelled import LabelledInputs
from laplacian_metric.model_folder import ModelFolder

HEAD = 1 << 16  # so much of a file, and its size, tell images apart
PERIOD, VALIDATION = 10, 4  # of ten rows of features of a class the fifth is for validation
EVERY = 5  # with classes apart every fifth class is


@dataclass(frozen=True)
class Opening:
    """How data are opened.

    Attributes:
        preparation: how images become inputs; None where inputs are features.
        data_dir: the folder of the data sets; None looks where `data.load` does.
        divide: how a folder without folders for splits is divided, by "images" or by "classes".
        skip_broken: leave out images that do not decode.
        batch_size: how many images are embedded at a time.
        workers: processes that read image files.
        labels: a file with the labels of features; otherwise they are in the file itself.
    """

    preparation: Preparation | None
    data_dir: Path | None = None
    divide: str = "images"
    skip_broken: bool = False
    batch_size: int = 100
    workers: int = 0
    labels: Path | None = None

    @staticmethod
    def of(model: ModelFolder, **options: Any) -> Opening:
        """As a model needs it."""
        return Opening(model.preparation, **options)


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


# --- opening ---


def parse_place(text: str) -> tuple[str, str | None]:
    """A place and the split that follows a colon.

    Example:
        >>> parse_place("sample-mnist:test"), parse_place("photos")
        (('sample-mnist', 'test'), ('photos', None))
    """
    place, colon, last = text.rpartition(":")
    if not colon or not place or Path(text).exists():
        return text, None
    try:
        return place, parse_split(last).value
    except ValueError:
        if place in data.names() or Path(place).exists():
            raise ValueError(
                f"{text!r}: there is no split {last!r}; those are: {', '.join(split.value for split in Split)}"
            ) from None
        return text, None


def open_source(text: str, how: Opening, default: str = "test", *, every_image: bool = False) -> Source:
    """Open what a command was given.

    Args:
        text: the name of a data set, a folder of images or a file of features; a split may follow after a colon.
        how: see `Opening`.
        default: the split that is taken where none is named, of data sets and of folders that have folders for splits;
            of other folders all images are.
        every_image: take all images below a folder, whether there are folders for classes or not.
    """
    place, split = parse_place(text)
    if place in data.names() and place != "folder":
        return _data_set(place, split, how, default)
    path = Path(place).expanduser()
    if array_files.is_array_file(path):
        return _features(path, split, how)
    if not path.is_dir():
        what = "is a file, but none of features" if path.exists() else "is no folder or file that is there"
        raise FileNotFoundError(
            f"{place!r} {what}, and no data set is called so: give a folder of images, a file "
            f"({', '.join(array_files.SUFFIXES)}) or one of the names that `lam data list` shows"
        )
    if how.preparation is None:
        raise ValueError(
            f"{place!r} is a folder of images, but this model takes features: give a file of features "
            f"({', '.join(array_files.SUFFIXES)})"
        )
    if every_image:
        if split is not None:
            raise ValueError(f"{text!r}: every image below the folder is taken, leave the split out")
        return _all_images(path, how)
    return _folder(path, split, how, default)


def _data_set(name: str, split: str | None, how: Opening, default: str) -> Source:
    if how.preparation is None:
        raise ValueError(f"{name} has images, but this model takes features: give a file of features")
    there = [member.value for member in data.info(name).splits]
    wanted = split or (default if default in there else there[-1])
    found = data.load(
        name,
        wanted,
        data_dir=how.data_dir,
        skip_unreadable=how.skip_broken,
        **_prepared(how.preparation),
    )
    names = [found.class_names[label] for label in found.labels.tolist()]
    ids = tuple(f"{name}/{number}" for name, number in zip(names, found.indices.tolist(), strict=True))
    return _of_images(name, found.split.value, ids, found, how)


def _prepared(preparation: Preparation) -> dict[str, Any]:
    return {
        "image_size": preparation.image_size,
        "channels": preparation.channels,
        "preprocessing": preparation.preprocessing,
    }


def _of_images(
    name: str, split: str | None, ids: Sequence[str], found: LabelledImages, how: Opening
) -> Source:
    return Source(
        name, split, tuple(ids), found.labels, found.class_names, found, None, how.batch_size, how.workers
    )


def has_splits(path: Path) -> bool:
    """Whether a folder is divided into folders for splits."""
    return bool(folders._split_folders(path))


def _folder(path: Path, split: str | None, how: Opening, default: str) -> Source:
    assert how.preparation is not None
    whole = not has_splits(path) and how.divide == "images"
    wanted = split or ("all" if whole else default)
    found = data.load(
        "folder",
        wanted,
        path=path.resolve(),
        divide=how.divide,
        skip_unreadable=how.skip_broken,
        **_prepared(how.preparation),
    )
    assert isinstance(found.images, ImageFiles)
    return _of_images(path.resolve().name, wanted, found.images.names, found, how)


def _all_images(path: Path, how: Opening) -> Source:
    """Every image below a folder; hidden files, and what is no image by its name, are passed over."""
    assert how.preparation is not None
    root = path.resolve()
    names = sorted(
        file.relative_to(root).as_posix()
        for file in root.rglob("*")
        if file.suffix.lower() in EXTENSIONS
        and not any(part.startswith(".") for part in file.relative_to(root).parts)
        and file.is_file()
    )
    if not names:
        raise ValueError(f"{path} has no images: files that end with {', '.join(EXTENSIONS)} are looked for")
    found = LabelledImages(
        name=root.name,
        split=Split.ALL,
        images=ImageFiles(root, tuple(names)),
        labels=torch.zeros(len(names), dtype=torch.int64),
        class_names=("",),
        indices=torch.arange(len(names)),
        preparation=how.preparation,
    )
    if how.skip_broken:
        found = found.without_unreadable()
        if not len(found):
            raise ValueError(f"none of the {len(names)} images in {path} decodes")
    assert isinstance(found.images, ImageFiles)
    return Source(root.name, None, found.images.names, None, (), found, None, how.batch_size, how.workers)


# --- features ---


def _features(path: Path, split: str | None, how: Opening) -> Source:
    if how.preparation is not None:
        raise ValueError(
            f"{path.name} holds arrays, but this model takes images: give a folder of images, or fit one to features"
        )
    if split is not None:
        raise ValueError(f"{path.name} has no splits: leave {split!r} out")
    arrays = array_files.read_arrays(path)
    remedy = ": call the features so"
    found = array_files.as_features(array_files.pick(arrays, "features", path, remedy), path)
    labels: Tensor | None = None
    names: tuple[str, ...] = ()
    given, place = arrays.get("labels"), path
    if how.labels is not None:
        place = how.labels
        given = array_files.pick(array_files.read_arrays(place), "labels", place)
    if given is not None:
        numbers, names = array_files.as_classes(given, place, len(found))
        labels = torch.from_numpy(numbers)
    ids = _ids(arrays.get("ids"), path, len(found))
    rows = torch.from_numpy(found) if found.flags.writeable else torch.from_numpy(found.copy())
    return Source(path.stem, None, ids, labels, names, None, rows, how.batch_size)


def _ids(given: NDArray[Any] | None, path: Path, count: int) -> tuple[str, ...]:
    if given is None:
        return tuple(str(row) for row in range(count))
    if given.shape != (count,) or given.dtype.kind not in "iuU":
        raise array_files.ArrayFileError(
            f"the ids in {path} have shape {given.shape} and dtype {given.dtype}: a text or whole number for each of "
            f"the {count} rows is needed"
        )
    ids = tuple(str(one) for one in given.tolist())
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise array_files.ArrayFileError(
            f"the ids in {path} name {twice!r} twice: every row needs one of its own"
        )
    return ids


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


def last_part(path: str | os.PathLike[str]) -> str:
    """The name of a file or folder without what leads to it."""
    return Path(path).resolve().name
