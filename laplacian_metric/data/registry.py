"""Data sets by name, or of one's own arrays."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laplacian_metric.core.arguments import check_known
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.images import Preparation
from laplacian_metric.core.registry import check_options
from laplacian_metric.core.splits import STANDARD, Split, parse_split
from laplacian_metric.data import folders, sample

PUBLISHED = (
    "; published data sets are registered by `import experiments.sets` in a clone of the repository, or by "
    "`lam --import experiments.sets COMMAND`"
)


@dataclass(frozen=True)
class DataSetInfo:
    """What is known about a data set before any file of it is read.

    Attributes:
        name: what `load` calls it.
        title: what its authors call it.
        layout: the files that are looked for.
        page: where it is published.
        obtain: how to get it, where `download=True` cannot.
        licence, citation: of the images.
        splits: the splits that can be loaded.
        preprocessing: "unit" or "imagenet", unless `load` is told otherwise.
        image_size: what images are scaled to, unless `load` is told otherwise; None leaves their size alone.
    """

    name: str
    title: str
    layout: str
    page: str
    obtain: str
    licence: str
    citation: str
    splits: tuple[Split, ...] = STANDARD
    preprocessing: str = "unit"
    image_size: int | None = None


@dataclass(frozen=True)
class Request:
    """What `load` is asked for: the data set, the split, the folder to look in, whether to download, what to skip."""

    info: DataSetInfo
    split: Split
    data_dir: Path | None = None
    download: bool = False
    skip_unreadable: bool = False


@dataclass(frozen=True)
class Source:
    """A data set that can be loaded: what is known about it, and the function that reads a split of it.

    ``read(request, **options)`` returns a `Dataset` of inputs, labels and the like; name, split, preparation and
    licence are added by `load`. What it takes beyond the request are the data set's own options.
    """

    info: DataSetInfo
    read: Callable[..., Dataset]


_SOURCES: dict[str, Source] = {}


def register(info: DataSetInfo, read: Callable[..., Dataset]) -> None:
    """Make a data set known to `load` by its name, in this process; see `Source`."""
    source = Source(info, read)
    if _SOURCES.setdefault(info.name, source) != source:
        raise ValueError(f"there is another data set called {info.name!r}: choose another name")


def names() -> tuple[str, ...]:
    """Return the names of all data sets.

    Example:
        >>> "sample-mnist" in names()
        True
    """
    return tuple(_SOURCES)


def info(name: str) -> DataSetInfo:
    """Return what is known about a data set without reading it.

    Example:
        >>> info("sample-fashion-mnist").licence
        'MIT, copyright 2017 Zalando SE'
    """
    return _source(name).info


def _source(name: str) -> Source:
    check_known("data set", name, sorted(_SOURCES), PUBLISHED)
    return _SOURCES[name]


def load(
    name: str,
    split: str | Split = Split.TRAIN,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    image_size: int | Literal["default"] | None = "default",
    channels: int | None = None,
    preprocessing: str | None = None,
    augment: Callable[[Tensor], Tensor] | None = None,
    skip_unreadable: bool = False,
    **options: object,
) -> Dataset:
    """Return one split of a data set.

    "train" is the published training set without what is held out of it as "validation"; "train+validation" is all
    of it. Test data, which are "test" and, where there is such a split, "all", are refused by `require_selectable`.

    Args:
        name: one of `names()`.
        split: "train", "validation", "train+validation" or "test".
        data_dir: the only folder to look in. By default it is that of the environment variable
            LAPLACIAN_METRIC_DATA and then that in the platform's cache.
        download: fetch missing files, where the publisher allows that.
        image_size: the side of the square that images are scaled and cut to; None leaves them as they are. The
            default is the data set's own.
        channels: 1 or 3, to turn grey into colour or the other way round.
        preprocessing: "unit" for values in [0, 1] or "imagenet" for ImageNet's mean and deviation.
        augment: applied to every item's uint8 image (C, H, W) before it is scaled; returns such an image.
        skip_unreadable: leave out image files that do not decode, instead of an error when one is used. Reads all
            files once; `skipped` names those left out.
        options: those of the data set; the function that reads it describes them.

    Raises:
        ValueError: no data set, split or option is called that, or a file is damaged.
        FileNotFoundError: the files are missing; the message says where to get them.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> train = load("sample-fashion-mnist", split="train")
        >>> images, labels = next(iter(DataLoader(train, batch_size=64)))
        >>> images.shape, labels.shape
        (torch.Size([64, 1, 28, 28]), torch.Size([64]))
    """
    source = _source(name)
    about = source.info
    wanted = parse_split(split, about.splits, name)
    _check_options(source, options)
    preparation = Preparation(
        image_size=about.image_size if image_size == "default" else image_size,
        channels=channels,
        preprocessing=about.preprocessing if preprocessing is None else preprocessing,
        augment=augment,
    )
    place = None if data_dir is None else Path(data_dir).expanduser()
    content = source.read(Request(about, wanted, place, download, skip_unreadable), **options)
    if not len(content):
        raise ValueError(f"the split {wanted.value!r} of {name} has no images")
    loaded = replace(
        content,
        name=name,
        split=wanted,
        preparation=preparation,
        licence=about.licence,
        citation=about.citation,
        page=about.page,
    )
    if skip_unreadable:
        loaded = loaded.without_unreadable()
    if loaded.labels is not None and len(loaded.classes) == 1 and loaded.positive_distance is None:
        warnings.warn(
            f"all {len(loaded)} images of {name}, {wanted.value} are of the class {str(loaded.label_names[0])!r}, so "
            "that no image has a negative",
            stacklevel=2,
        )
    return loaded


def _check_options(source: Source, options: dict[str, object]) -> None:
    parameters = dict(inspect.signature(source.read).parameters)
    del parameters["request"]
    check_options(source.info.name, options, list(parameters))
    for option, parameter in parameters.items():
        if parameter.default is parameter.empty and option not in options:
            raise ValueError(f"{source.info.name} needs the option {option!r}")


def from_arrays(
    images: Tensor | NDArray[np.uint8],
    labels: Tensor | NDArray[Any] | Sequence[Hashable] | None = None,
    *,
    split: str | Split,
    name: str = "arrays",
    class_names: Sequence[str] | None = None,
    extras: Mapping[str, Tensor] | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    preprocessing: str = "unit",
    augment: Callable[[Tensor], Tensor] | None = None,
) -> Dataset:
    """Return your own images as a data set, with the split named, so that test data cannot select a model.

    Args:
        images: (N, H, W) or (N, C, H, W), uint8.
        labels: (N,), integers from 0, or text; None where nobody knows.
        split: "train", "validation", "test" ...
        name: what the data set is called in messages and reports.
        class_names: the name of every label; by default the label itself. Text that several data sets have in common
            needs the same names for all, so that a label means the same class in each.
        extras: more about each image, tensors with N rows each, by name.
        image_size: to which images are resized when they are made ready for a network; None leaves them.
        channels: 1 or 3, to which images are converted; None leaves them.
        preprocessing: how pixels become floats, "unit" for 0 to 1 or "imagenet".
        augment: changes an image (C, H, W) at random, in training only; it draws from torch's generator.

    Example:
        >>> import torch
        >>> pictures = torch.zeros(4, 8, 8, dtype=torch.uint8)
        >>> from_arrays(pictures, ["ant", "ant", "bee", "bee"], split="validation")
        Dataset('arrays', 'validation': 4 images of 2 classes)
    """
    pixels = torch.as_tensor(images)
    if pixels.ndim == 3:
        pixels = pixels.unsqueeze(1)
    elif pixels.ndim == 4 and pixels.shape[3] in (1, 3, 4) and pixels.shape[1] not in (1, 3, 4):
        raise ValueError(
            f"images has shape {tuple(pixels.shape)}, which looks like (N, H, W, C): (N, C, H, W) is needed, "
            "so move the last axis with torch.as_tensor(images).permute(0, 3, 1, 2)"
        )
    data = Dataset(
        pixels,
        labels,
        name=name,
        split=parse_split(split),
        class_names=tuple(class_names or ()),
        extras=dict(extras or {}),
        preparation=Preparation(image_size, channels, preprocessing, augment),
    )
    if data.labels is None or data.class_names:
        return data
    names = tuple(str(label) for label in range(int(data.labels.max()) + 1 if len(data) else 0))
    return replace(data, class_names=names)


register(
    DataSetInfo(
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
    ),
    folders.read,
)
for _name, _sample in sample.SAMPLES.items():
    register(
        DataSetInfo(
            name=_name,
            title=_sample.title,
            layout="no files: it is installed with the package",
            page=_sample.page,
            obtain="",
            licence=_sample.licence,
            citation=_sample.citation,
            splits=_sample.splits,
        ),
        partial(sample.read, _name),
    )
