"""What commands read: data sets by name, folders of images, and files of features, opened in one way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from laplacian_metric import data
from laplacian_metric.core import array_files
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.images import EXTENSIONS, ImageFiles, Preparation
from laplacian_metric.core.splits import Role, Split, parse_split
from laplacian_metric.data.folders import split_folders

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


def open_source(text: str, how: Opening, default: str = "test", *, every_image: bool = False) -> Dataset:
    """Open what a command was given.

    Args:
        text: the name of a data set, a folder of images or a file of features; a split may follow after a colon.
        how: see `Opening`.
        default: the split that is taken where none is named, of data sets and of folders that have folders for splits;
            of other folders all images are.
        every_image: take all images below a folder, whether there are folders for classes or not, or a single image.
    """
    place, split = parse_place(text)
    if place in data.names() and place != "folder":
        return _data_set(place, split, how, default)
    path = Path(place).expanduser()
    if path.suffix.lower() in array_files.SUFFIXES:
        return _features(path, split, how)
    is_image = path.is_file() and path.suffix.lower() in EXTENSIONS
    if not path.is_dir() and not (is_image and every_image):
        what = "is a file, but none of features" if path.exists() else "is no folder or file that is there"
        if is_image:
            what = "is a single image, which `lam embed` takes"
        raise FileNotFoundError(
            f"{place!r} {what}, and no data set is called so: give a folder of images, a file "
            f"({', '.join(array_files.SUFFIXES)}) or one of {', '.join(data.names())}"
        )
    if how.preparation is None:
        what = "an image" if is_image else "a folder of images"
        raise ValueError(
            f"{place!r} is {what}, but this model takes features: give a file of features "
            f"({', '.join(array_files.SUFFIXES)})"
        )
    if every_image:
        if split is not None:
            raise ValueError(f"{text!r}: every image below the folder is taken, leave the split out")
        return _all_images(path, how)
    return _folder(path, split, how, default)


def _data_set(name: str, split: str | None, how: Opening, default: str) -> Dataset:
    if how.preparation is None:
        raise ValueError(f"{name} has images, but this model takes features: give a file of features")
    split_names = [member.value for member in data.info(name).splits]
    wanted = split or (default if default in split_names else split_names[-1])
    dataset = data.load(
        name,
        wanted,
        data_dir=how.data_dir,
        skip_unreadable=how.skip_broken,
        **_prepared(how.preparation),
    )
    ids = [
        f"{label}/{number}"
        for label, number in zip(dataset.label_names, dataset.indices.tolist(), strict=True)
    ]
    return replace(dataset, item_ids=ids, batch_size=how.batch_size, workers=how.workers)


def _prepared(preparation: Preparation) -> dict[str, Any]:
    return {
        "image_size": preparation.image_size,
        "channels": preparation.channels,
        "preprocessing": preparation.preprocessing,
    }


def has_splits(path: Path) -> bool:
    """Whether a folder is divided into folders for splits."""
    return bool(split_folders(path))


def _folder(path: Path, split: str | None, how: Opening, default: str) -> Dataset:
    assert how.preparation is not None
    whole = not has_splits(path) and how.divide == "images"
    dataset = data.folder(
        path,
        split=split or ("all" if whole else default),
        divide=how.divide,
        skip_unreadable=how.skip_broken,
        **_prepared(how.preparation),
    )
    return replace(dataset, batch_size=how.batch_size, workers=how.workers)


def _all_images(path: Path, how: Opening) -> Dataset:
    """A single image, or every one below a folder; hidden files and what is no image by its name are passed over."""
    assert how.preparation is not None
    root = path.resolve() if path.is_dir() else path.absolute().parent
    names = sorted(
        file.relative_to(root).as_posix()
        for file in (root.rglob("*") if path.is_dir() else [path.absolute()])
        if file.suffix.lower() in EXTENSIONS
        and not any(part.startswith(".") for part in file.relative_to(root).parts)
        and file.is_file()
    )
    if not names:
        raise ValueError(f"{path} has no images: files that end with {', '.join(EXTENSIONS)} are looked for")
    dataset = Dataset(
        ImageFiles(root, tuple(names)),
        name=root.name,
        preparation=how.preparation,
        batch_size=how.batch_size,
        workers=how.workers,
    )
    if how.skip_broken:
        dataset = dataset.without_unreadable()
        if not len(dataset):
            raise ValueError(f"none of the {len(names)} images in {path} decodes")
    return dataset


def open_both(
    text: str, how: Opening, validation: str | None, needed: bool
) -> tuple[Dataset, Dataset | None]:
    """What is fitted to, and what validates.

    Args:
        text: data, see `open_source`; the training part of it is fitted to.
        how: they are opened.
        validation: other data to validate on; by default the validation part of the same.
        needed: whether there has to be something to validate on.
    """
    place, split = parse_place(text)
    # A folder's training part is fitted to, not all of it.
    path = Path(place).expanduser()
    is_folder = path.is_dir() and how.preparation is not None and place not in data.names()
    train = open_source(f"{place}:{split or 'train'}" if is_folder else text, how, "train")
    if train.role is Role.EVALUATION:
        raise ValueError(f"{train.title} are test images: fit to others, and keep these to evaluate with")
    train.require_classes("a fit")
    if validation is not None:
        validation_data = open_source(validation, replace(how, labels=None), "validation")
        if validation_data.split is Split.TEST:
            raise ValueError(
                f"{validation_data.title} are test images, which must choose nothing: validate on others"
            )
        return train, validation_data
    if not needed:
        return train, None
    if train.holds_features:
        return divided(train, how.divide)
    if split == Split.TRAIN_AND_VALIDATION.value:
        raise ValueError(f"{text} leaves nothing to validate on: leave the split out, or pass --no-calibrate")
    parts = split_folders(path) if is_folder and how.divide == "images" else {}
    if parts and Split.VALIDATION not in parts:
        return divided(train, "images")
    try:
        return train, open_source(f"{place}:validation", how)
    except ValueError as error:
        if "too few images" in str(error):
            raise ValueError(
                f"{error}, which needs 5 of a class: add images, or pass --no-calibrate"
            ) from error
        raise


def divided(data: Dataset, divide: str) -> tuple[Dataset, Dataset]:
    """What is fitted to, and what validates: of features, which come without splits.

    Of ten rows of a class the fifth is for validation; divided by "classes", every fifth class is.
    """
    labels = data.known_labels()
    if divide == "classes":
        held_out = labels % EVERY == EVERY - 1
    else:
        held_out = torch.zeros(len(data), dtype=torch.bool)
        for label in torch.unique(labels):
            rows = (labels == label).nonzero()[:, 0]
            held_out[rows[torch.arange(len(rows)) % PERIOD == VALIDATION]] = True
    if not bool(held_out.any()):
        least = f"{EVERY} classes" if divide == "classes" else f"{VALIDATION + 1} rows of a class"
        raise ValueError(
            f"{data.title} has too few rows to hold some out for validation, at least {least} are needed: give more, "
            "or pass --no-calibrate"
        )
    return data.select((~held_out).nonzero()[:, 0]), data.select(held_out.nonzero()[:, 0])


# --- features ---


def _features(path: Path, split: str | None, how: Opening) -> Dataset:
    if how.preparation is not None:
        raise ValueError(
            f"{path.name} holds arrays, but this model takes images: give a folder of images, or fit one to features"
        )
    if split is not None:
        raise ValueError(f"{path.name} has no splits: leave {split!r} out")
    arrays = array_files.read_arrays(path)
    remedy = ": call the features so"
    features = array_files.as_features(array_files.pick(arrays, "features", path, remedy), path)
    stored_labels, place = arrays.get("labels"), path
    if how.labels is not None:
        place = how.labels
        stored_labels = array_files.pick(array_files.read_arrays(place), "labels", place)
    numbers, names = (
        (None, ()) if stored_labels is None else array_files.as_classes(stored_labels, place, len(features))
    )
    return Dataset(
        features if features.flags.writeable else features.copy(),
        numbers,
        name=path.stem,
        class_names=names,
        item_ids=_ids(arrays.get("ids"), path, len(features)),
        batch_size=how.batch_size,
    )


def _ids(stored_ids: NDArray[Any] | None, path: Path, count: int) -> tuple[str, ...]:
    if stored_ids is None:
        return tuple(str(row) for row in range(count))
    if stored_ids.shape != (count,) or stored_ids.dtype.kind not in "iuU":
        raise array_files.ArrayFileError(
            f"the ids in {path} have shape {stored_ids.shape} and dtype {stored_ids.dtype}: a text or whole number "
            f"for each of the {count} rows is needed"
        )
    ids = tuple(str(one) for one in stored_ids.tolist())
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise array_files.ArrayFileError(
            f"the ids in {path} name {twice!r} twice: every row needs one of its own"
        )
    return ids
