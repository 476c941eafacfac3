"""Data sets by name, or of one's own arrays."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laplacian_metric.core.registry import Registry, check_options
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.data.images import Preparation
from experiments.sets.lookup import MissingDataError, data_folders
from laplacian_metric.data.source import Content, DataSetInfo, Request
from laplacian_metric.data.splits import Split, parse_split

_PLACES = {
    "cars-196": "experiments.sets.cars",
    "cifar-10": "experiments.sets.cifar10",
    "cub-200-2011": "experiments.sets.cub",
    "fashion-mnist": "experiments.sets.fashion_mnist",
    "folder": "laplacian_metric.data.folder",
    "lfw": "experiments.sets.lfw",
    "mnist": "experiments.sets.mnist",
    "msls": "experiments.sets.msls",
    "n-digit-mnist": "experiments.sets.n_digit_mnist",
    "quickdraw": "experiments.sets.quickdraw",
    "sample-fashion-mnist": "laplacian_metric.data.embedded:SampleFashionMNIST",
    "sample-mnist": "laplacian_metric.data.embedded:SampleMNIST",
    "stanford-online-products": "experiments.sets.products",
    "svhn": "experiments.sets.svhn",
}


class Source(Protocol):
    """A module or a class for one data set. What `read` takes beyond the request are the data set's own options."""

    INFO: DataSetInfo

    def read(self, request: Request, **options: object) -> Content: ...


_SOURCES: Registry[Source] = Registry(
    "data set", _PLACES
)


def names() -> tuple[str, ...]:
    """The names of all data sets.

    Example:
        >>> "cub-200-2011" in names()
        True
    """
    return _SOURCES.names()


def info(name: str) -> DataSetInfo:
    """What is known about a data set without reading it.

    Example:
        >>> info("fashion-mnist").licence
        'MIT, copyright 2017 Zalando SE'
    """
    return cast(Source, _SOURCES.find(name)).INFO


def load(
    name: str,
    split: str | Split = Split.TRAIN,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool | Literal["unverified"] = False,
    image_size: int | Literal["default"] | None = "default",
    channels: int | None = None,
    preprocessing: str | None = None,
    augment: Callable[[torch.Tensor], torch.Tensor] | None = None,
    skip_unreadable: bool = False,
    **options: object,
) -> Dataset:
    """Load one split of a data set.

    "train" is the published training set without what is held out of it as "validation"; "train+validation" is all
    of it. Test data, which are "test" and, where there is such a split, "all", are refused by `require_selectable`.

    Args:
        name: one of `names()`.
        split: "train", "validation", "train+validation" or "test".
        data_dir: the only folder to look in. By default it is that of the environment variable
            LAPLACIAN_METRIC_DATA and then that in the platform's cache.
        download: fetch what is missing, where its publisher allows that; "unverified" also where it comes without
            encryption or without a checksum.
        image_size: the side of the square that images are scaled and cut to; None leaves them as they are. The
            default is the data set's own.
        channels: 1 or 3, to turn grey into colour or the other way round.
        preprocessing: "unit" for values in [0, 1] or "imagenet" for ImageNet's mean and deviation.
        augment: applied to every item's uint8 image (C, H, W) before it is scaled; returns such an image.
        skip_unreadable: leave out image files that do not decode, instead of an error when one is used. Reads all
            files once; `skipped` names those left out.
        options: those of the data set; its module's `read` describes them.

    Raises:
        ValueError: no data set, split or option is called that, or a file is damaged.
        MissingDataError: the files are not there; the message says where to get them.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> train = load("sample-fashion-mnist", split="train")
        >>> images, labels = next(iter(DataLoader(train, batch_size=64)))
        >>> images.shape, labels.shape
        (torch.Size([64, 1, 28, 28]), torch.Size([64]))
    """
    source = cast(Source, _SOURCES.find(name))
    about = source.INFO
    wanted = parse_split(split, about.splits, about.name)
    _check_options(source, options)
    preparation = Preparation(
        image_size=about.image_size if image_size == "default" else image_size,
        channels=channels,
        preprocessing=about.preprocessing if preprocessing is None else preprocessing,
        augment=augment,
    )
    request = Request(about, wanted, data_folders(data_dir), download, skip_unreadable)
    loaded = _read(source, request, options, preparation)
    if skip_unreadable:
        loaded = loaded.without_unreadable()
    if loaded.labels is not None and len(loaded.classes) == 1 and loaded.positive_distance is None:
        warnings.warn(
            f"all {len(loaded)} images of {name}, {wanted.value} are of the class "
            f"{loaded.class_names[loaded.classes[0]]!r}, so that no image has a negative",
            stacklevel=2,
        )
    return loaded


def _read(source: Source, request: Request, options: dict[str, object], preparation: Preparation) -> Dataset:
    """Return the images of a split with what is known about their data set."""
    about, content = request.info, source.read(request, **options)
    if not len(content.images):
        raise ValueError(f"the split {request.split.value!r} of {about.name} has no images")
    return Dataset(
        content.images,
        None if content.labels is None else torch.from_numpy(content.labels),
        name=about.name,
        split=request.split,
        class_names=content.class_names,
        indices=torch.from_numpy(content.indices),
        extras=content.extras,
        preparation=preparation,
        positive_distance=content.positive_distance,
        skipped=content.skipped,
        licence=about.licence,
        citation=about.citation,
        page=about.page,
    )


def _check_options(source: Source, options: dict[str, object]) -> None:
    parameters = dict(inspect.signature(source.read).parameters)
    del parameters["request"]
    check_options(source.INFO.name, options, list(parameters))
    for option, parameter in parameters.items():
        if parameter.default is parameter.empty and option not in options:
            raise ValueError(f"{source.INFO.name} needs the option {option!r}")


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
    """Your own images as a data set, with the split said out loud, so that test data cannot select a model.

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
        preprocessing: how pixels become floats, "unit" for 0 to 1 or the name of a network's own.
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


# --- which data sets are there ---

INSTALLED = "installed with the package"


class _FoundError(Exception):
    """Where a data set is; what ends the reading before it begins."""

    def __init__(self, place: Path) -> None:
        super().__init__(str(place))
        self.place = place


class _Probe(Request):
    """A request that stops once the files were found."""

    def find(self, *arguments: Any, **options: Any) -> Path:
        raise _FoundError(super().find(*arguments, **options))


@dataclass(frozen=True)
class State:
    """Whether a data set is there: where, or what to do."""

    name: str
    found: bool
    place: str
    problem: str = ""


def state(name: str, data_dir: Path | None = None) -> State:
    """Whether the files of a data set are in the data folders."""
    described = info(name)
    if name == "folder":
        return State(name, True, "any folder of images")
    probe = _Probe(described, described.splits[0], data_folders(data_dir))
    try:
        cast(Source, _SOURCES.find(name)).read(probe)
    except _FoundError as stopped:
        return State(name, True, str(stopped.place))
    except MissingDataError as error:
        return State(name, False, "", str(error))
    except (ValueError, OSError) as error:
        return State(name, False, "", f"it is there, but damaged: {error}")
    return State(name, True, INSTALLED)
