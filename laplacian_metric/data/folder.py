"""Any folder of images: a folder for every class, with or without folders for the splits above them."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from laplacian_metric.data.images import EXTENSIONS, ImageFiles, UnreadableImageError
from experiments.sets.lookup import MissingDataError
from laplacian_metric.data.source import Content, DataSetInfo, Request
from laplacian_metric.data.splits import STANDARD, Split, part_of_classes

LOGGER = logging.getLogger(__name__)

INFO = DataSetInfo(
    name="folder",
    title="a folder of images",
    layout="PATH/CLASS/image.jpg or PATH/{train,val,test}/CLASS/image.jpg",
    page="your own",
    obtain="",
    licence="that of your images",
    citation="that of your images",
    splits=(*STANDARD, Split.ALL),
    preprocessing="imagenet",
    image_size=224,
)

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


def read(
    request: Request,
    path: str | os.PathLike[str],
    divide: str = "images",
    validation_share: float = 0.2,
    labels: bool = True,
) -> Content:
    """Read a split of a folder.

    With folders for splits, classes are all those that occur in any of them. Images may lie deeper inside a class
    folder. Hidden files are passed over; any other file that is no image is an error, unless what does not decode is
    skipped.

    Args:
        path: the folder; where it does not exist, it is looked for below the data folders.
        divide: how images are divided. "images": as the folders for splits say; without these every class is in every
            split, and of ten images in the order of their names the fifth is for validation and the tenth for testing.
            "classes": the first half of the classes is for training, the second for testing; folders for splits are
            taken together.
        validation_share: with "classes", how many of the training classes are for validation, at even steps.
        labels: whether the folders are classes. If not, all images below PATH or below its folders for splits are read
            without labels.
    """
    if divide not in ("images", "classes"):
        raise ValueError(f"divide is {divide!r}; it must be 'images' or 'classes'")
    root = _find(request, Path(path).expanduser())
    places = _split_folders(root)
    skipped: list[str] = []
    if not labels and divide == "classes":
        raise ValueError("labels is False, but divide is 'classes': without labels take divide 'images'")
    scan = _scan if labels else _scan_unlabelled
    if divide == "classes" or not places:
        together = list(places.values()) or [root]
        names, codes, classes = scan(root, together, request.skip_unreadable, skipped)
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
        names, codes, classes = scan(root, chosen, request.skip_unreadable, skipped, class_names)
        part = np.arange(len(names), dtype=np.int64)
    if not part.size:
        raise ValueError(
            f"{root} has too few images for the split {request.split.value!r}: {len(names)} in all"
        )
    images = ImageFiles(root, tuple(names[row] for row in part.tolist()))
    return Content(images, codes[part] if labels else None, classes, part, skipped=tuple(skipped))


def _find(request: Request, path: Path) -> Path:
    candidates = [path] if path.is_absolute() else [path, *(folder / path for folder in request.folders)]
    place = next((candidate for candidate in candidates if candidate.is_dir()), None)
    if place is None:
        raise MissingDataError(
            f"there is no folder {' nor '.join(map(str, candidates))}; check the option path"
        )
    return place


def _folders(place: Path) -> list[Path]:
    return sorted(entry for entry in place.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _split_folders(root: Path) -> dict[Split, Path]:
    """The folders for splits, if that is what the folders are; a class called "test" among others is a class."""
    folders = {entry.name.lower(): entry for entry in _folders(root)}
    by_split = {
        split: folders[name] for split, names in _SPLIT_FOLDERS.items() for name in names if name in folders
    }
    return by_split if len(by_split) == len(folders) else {}


def _scan(
    root: Path, places: list[Path], skip: bool, skipped: list[str], class_names: tuple[str, ...] | None = None
) -> tuple[list[str], npt.NDArray[np.int64], tuple[str, ...]]:
    """Names, labels and classes of the images in the class folders of some places."""
    folders = [(entry.name, entry) for place in places for entry in _folders(place)]
    if not folders:
        raise ValueError(
            f"{places[0]} has no class folders; images must lie in a folder named after their class, or be loaded with "
            "labels=False, for a method that learns without labels"
        )
    classes = class_names or tuple(sorted({name for name, _ in folders}))
    names: list[str] = []
    labels: list[int] = []
    for class_name, folder in folders:
        files = _images_in(folder, root, skip, skipped)
        if not files:
            raise ValueError(f"the class folder {folder} has no images; remove it or fill it")
        names += files
        labels += [classes.index(class_name)] * len(files)
    return names, np.array(labels, dtype=np.int64), classes


def _scan_unlabelled(
    root: Path, places: list[Path], skip: bool, skipped: list[str], _: tuple[str, ...] | None = None
) -> tuple[list[str], npt.NDArray[np.int64], tuple[str, ...]]:
    """Names of all images below some places, as of one class without a name."""
    names = [name for place in places for name in _images_in(place, root, skip, skipped)]
    return names, np.zeros(len(names), dtype=np.int64), ()


def _images_in(folder: Path, root: Path, skip: bool, skipped: list[str]) -> list[str]:
    files = []
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder).parts
        if file.is_dir() or any(part.startswith(".") for part in inside) or file.name.lower() in _IGNORED:
            continue
        name = file.relative_to(root).as_posix()
        irregular = file.exists() and not file.is_file()  # a pipe would be waited for, a device never ends
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
    return files


def _divided(
    labels: npt.NDArray[np.int64], num_classes: int, split: Split, divide: str, validation_share: float
) -> npt.NDArray[np.int64]:
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
