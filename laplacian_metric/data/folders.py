"""Any folder of images: a folder for every class, with or without folders for the splits above them."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from laplacian_metric.core.arguments import one_of
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.images import EXTENSIONS, ImageFiles, UnreadableImageError
from laplacian_metric.core.splits import Split, part_of_classes

if TYPE_CHECKING:
    from laplacian_metric.data.registry import Request

LOGGER = logging.getLogger(__name__)

_SPLIT_FOLDERS = {
    Split.TRAIN: ("train", "training"),
    Split.VALIDATION: ("val", "valid", "validation"),
    Split.TEST: ("test", "testing"),
}
_PARTS = {Split.TRAIN_AND_VALIDATION: (Split.TRAIN, Split.VALIDATION), Split.ALL: tuple(_SPLIT_FOLDERS)}
# What file managers leave behind.
_IGNORED = ("thumbs.db", "desktop.ini")
# Without folders for splits, of every ten images of a class one is for validation and one for testing.
_PERIOD, _VALIDATION, _TEST = 10, 4, 9


def folder(
    path: str | os.PathLike[str],
    image_size: int | None = None,
    *,
    split: str | Split | None = None,
    channels: int | None = None,
    preprocessing: str = "unit",
    **options: Any,
) -> Dataset:
    """Return the images below a folder, labelled by the names of their folders.

    The folders of the classes lie in PATH itself, or in folders for splits (train, val, test) in it.

    Args:
        path: the folder.
        image_size: the side of the square that images are scaled and cut to; None leaves them as they are.
        split: one part of the images, see `load`; None takes all and does not say what they may be used for.
        channels: 1 or 3, to turn grey into colour or the other way round.
        preprocessing: "unit" for values in [0, 1] or "imagenet" for ImageNet's mean and deviation.
        options: further ones of `load`, such as skip_unreadable, and those of `read`.

    Example:
        >>> import tempfile; from PIL import Image
        >>> place = Path(tempfile.mkdtemp())
        >>> for number, name in enumerate(["ant", "bee"]):
        ...     (place / name).mkdir(); Image.new("RGB", (9, 8)).save(place / name / "1.png")
        >>> data = folder(place, image_size=4)
        >>> data.class_names, data.labels.tolist(), data.floats().shape
        (('ant', 'bee'), [0, 1], torch.Size([2, 3, 4, 4]))
    """
    from laplacian_metric.data.registry import load

    loaded = load(
        "folder",
        Split.ALL if split is None else split,
        path=path,
        image_size=image_size,
        channels=channels,
        preprocessing=preprocessing,
        **options,
    )
    return replace(loaded, name=Path(path).resolve().name, split=loaded.split if split is not None else None)


def read(
    request: Request,
    path: str | os.PathLike[str],
    divide: str = "images",
    validation_share: float = 0.2,
    labels: bool = True,
) -> Dataset:
    """Return a split of a folder.

    With folders for splits, classes are all those that occur in any of them. Images may lie deeper inside a class
    folder. Hidden files are passed over; any other file that is no image is an error, unless what does not decode is
    skipped.

    Args:
        path: the folder; a relative one may lie below ``data_dir``.
        divide: how images are divided. "images": as the folders for splits say; without these every class is in every
            split, and of ten images in the order of their names the fifth is for validation and the tenth for testing.
            "classes": the first half of the classes is for training, the second for testing; folders for splits are
            taken together.
        validation_share: with "classes", how many of the training classes are for validation, at even steps.
        labels: whether the folders are classes. If not, all images below PATH or below its folders for splits are read
            without labels.
    """
    one_of(("images", "classes"), divide=divide)
    if not labels and divide == "classes":
        raise ValueError("labels is False, but divide is 'classes': without labels take divide 'images'")
    root = _find(request, Path(path).expanduser())
    places = split_folders(root)
    scan = _scan if labels else _scan_unlabelled
    if divide == "classes" or not places:
        names, codes, classes, skipped = scan(root, list(places.values()) or [root], request.skip_unreadable)
        part = _divided(codes, max(1, len(classes)), request.split, divide, validation_share)
    else:
        wanted = _PARTS.get(request.split, (request.split,))
        chosen = [places[split] for split in wanted if split in places]
        if not chosen:
            folder_names = ", ".join(place.name for place in places.values())
            raise ValueError(
                f"{root} has no folder for the split {request.split.value!r}; it has: {folder_names}"
            )
        class_names = tuple(sorted({entry.name for place in places.values() for entry in _folders(place)}))
        names, codes, classes, skipped = scan(root, chosen, request.skip_unreadable, class_names)
        part = np.arange(len(names), dtype=np.int64)
    if not part.size:
        raise ValueError(
            f"{root} has too few images for the split {request.split.value!r}: {len(names)} in all"
        )
    return Dataset(
        ImageFiles(root, tuple(names[row] for row in part.tolist())),
        codes[part] if labels else None,
        class_names=classes,
        indices=torch.from_numpy(part),
        skipped=skipped,
    )


def _find(request: Request, path: Path) -> Path:
    candidates = [path]
    if request.data_dir is not None and not path.is_absolute():
        candidates.append(request.data_dir / path)
    place = next((candidate for candidate in candidates if candidate.is_dir()), None)
    if place is None:
        raise FileNotFoundError(
            f"there is no folder {' nor '.join(map(str, candidates))}; check the option path"
        )
    return place


def _folders(place: Path) -> list[Path]:
    return sorted(entry for entry in place.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def split_folders(root: Path) -> dict[Split, Path]:
    """Return the folders for splits, if that is what the folders are; a class called "test" among others is a class."""
    folders = {entry.name.lower(): entry for entry in _folders(root)}
    by_split = {
        split: folders[name] for split, names in _SPLIT_FOLDERS.items() for name in names if name in folders
    }
    return by_split if len(by_split) == len(folders) else {}


Scanned = tuple[list[str], NDArray[np.int64], tuple[str, ...], tuple[str, ...]]


def _scan(root: Path, places: list[Path], skip: bool, class_names: tuple[str, ...] | None = None) -> Scanned:
    """Return names, labels and classes of the images in the class folders of some places, and what was skipped."""
    folders = [(entry.name, entry) for place in places for entry in _folders(place)]
    if not folders:
        raise ValueError(
            f"{places[0]} has no class folders; images must lie in a folder named after their class, or be loaded with "
            "labels=False, for a method that learns without labels"
        )
    classes = class_names or tuple(sorted({name for name, _ in folders}))
    names: list[str] = []
    labels: list[int] = []
    skipped: list[str] = []
    for class_name, place in folders:
        files, others = _images_in(place, root, skip)
        if not files:
            raise ValueError(f"the class folder {place} has no images; remove it or fill it")
        names += files
        labels += [classes.index(class_name)] * len(files)
        skipped += others
    return names, np.array(labels, dtype=np.int64), classes, tuple(skipped)


def _scan_unlabelled(root: Path, places: list[Path], skip: bool, _: tuple[str, ...] | None = None) -> Scanned:
    """Return the names of all images below some places, as of one class without a name, and what was skipped."""
    found = [_images_in(place, root, skip) for place in places]
    names = [name for files, _ in found for name in files]
    return (
        names,
        np.zeros(len(names), dtype=np.int64),
        (),
        tuple(name for _, others in found for name in others),
    )


def _images_in(place: Path, root: Path, skip: bool) -> tuple[list[str], list[str]]:
    """Return the names of the images below a folder, and those of other files, which are refused unless skipped."""
    files: list[str] = []
    skipped: list[str] = []
    for file in sorted(place.rglob("*")):
        inside = file.relative_to(place).parts
        if file.is_dir() or any(part.startswith(".") for part in inside) or file.name.lower() in _IGNORED:
            continue
        name = file.relative_to(root).as_posix()
        irregular = file.exists() and not file.is_file()  # reading a pipe waits, reading a device never ends
        if file.suffix.lower() in EXTENSIONS and not irregular:
            files.append(name)
        elif skip:
            LOGGER.warning("%s is no image and is skipped", file)
            skipped.append(name)
        else:
            what = "a pipe or a device, and no image" if irregular else "no image"
            raise UnreadableImageError(
                f"{file} is {what} (those end with {', '.join(EXTENSIONS)}); move it away, or load with "
                "skip_unreadable=True"
            )
    return files, skipped


def _divided(
    labels: NDArray[np.int64], num_classes: int, split: Split, divide: str, validation_share: float
) -> NDArray[np.int64]:
    if divide == "classes":
        half = num_classes // 2
        chosen = part_of_classes(np.arange(half), np.arange(half, num_classes), split, validation_share)
        return np.flatnonzero(np.isin(labels, chosen)).astype(np.int64)
    rank = np.zeros(labels.size, dtype=np.int64)
    for label in range(num_classes):
        members = np.flatnonzero(labels == label)
        rank[members] = np.arange(members.size) % _PERIOD
    kept = {
        Split.TRAIN: (rank != _VALIDATION) & (rank != _TEST),
        Split.VALIDATION: rank == _VALIDATION,
        Split.TRAIN_AND_VALIDATION: rank != _TEST,
        Split.TEST: rank == _TEST,
        Split.ALL: np.ones(labels.size, dtype=np.bool_),
    }[split]
    return np.flatnonzero(kept).astype(np.int64)
