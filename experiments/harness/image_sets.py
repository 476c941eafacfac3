"""The inputs of a cell by name: images to train on, choose by and test, OOD and corrupted ones, and their features.

Where a backbone is frozen its features are computed once, into a folder, and mapped from there.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from experiments.corruptions import corrupt, corrupt_some
from experiments.harness.place_matching import by_place
from experiments.harness.sections import DataSection
from experiments.sets.lookup import MissingDataError
from experiments.sets.n_digit_mnist import OCCLUDED_SHARE
from laplacian_metric import data
from laplacian_metric.core import artifact
from laplacian_metric.core.artifact import ArtifactError, MissingArtifactError
from laplacian_metric.core.batch import Loader
from laplacian_metric.core.dataset import Dataset, at_even_steps
from laplacian_metric.core.parallel import own_folder
from laplacian_metric.core.splits import parse_split
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.features import FeaturesManifest, collect_features, load_features

TRAIN, VALIDATION, TEST, CORRUPTED, CROPPED = "train", "validation", "test", "corrupted", "cropped"
TRAINING = "training"  # "train" as it is trained on, with augmentation where there is one
OUT = "out/"  # before the label of a set of OOD images
TESTS = "test/"  # before the name of another test set

CORRUPTIONS = ("crop", "blur", "occlusion", "noise")
STRENGTH = 1.0
EVERY = 5  # of the validation images, so many are corrupted at the most
MOST = 1000  # of one kind of corruption
CROP = 2 / 3  # the strength of the crop test: a window of half the side
COVERED_SHARE = OCCLUDED_SHARE["mixed"]  # of the digits that are covered anew


class Sets(Mapping[str, Dataset]):
    """Data sets by name, each made when it is first read.

    Args:
        names: of all sets.
        make: returns the set of a name, as an embedder takes it.
        images: the same sets as they were loaded, before they were made ready for a network; by default these.
        encoder: whose features the sets hold; None where they hold images.

    Example:
        >>> sets = Sets(["test"], lambda name: data.load("sample-mnist", name))
        >>> len(sets["test"]), list(sets)
        (1000, ['test'])
    """

    def __init__(
        self,
        names: Iterable[str],
        make: Callable[[str], Dataset],
        images: Sets | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        self._names = tuple(names)
        self._make = make
        self._made: dict[str, Dataset] = {}
        self.images = self if images is None else images
        self.encoder = encoder

    def __getitem__(self, name: str) -> Dataset:
        if name not in self._made:
            if name not in self._names:
                raise KeyError(f"there is no set {name!r}, there are: {', '.join(self._names)}")
            self._made[name] = self._make(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def image_sets(section: DataSection, data_dir: Path | None, batch_size: int = 500) -> Sets:
    """Return the images of a data section: "train", "training", "validation", "test", "corrupted" (validation images),
    "cropped" (test images), "out/" with a label and "test/" with the name of another test set.

    Args:
        section: which images.
        data_dir: the folder of the data sets.
        batch_size: of the batches that are embedded.
    """
    outs, tests = (OUT + out.label for out in section.out), (TESTS + name for name in section.tests)
    loaded = Sets(
        (TRAIN, VALIDATION, TEST, *outs, *tests),
        lambda name: _loaded(section, data_dir, name, loaded),
    )
    names = (*loaded, TRAINING, CORRUPTED, CROPPED)
    sets = Sets(names, lambda name: _ready(section, batch_size, name, sets), loaded)
    return sets


def split_of(section: DataSection, name: str) -> str:
    """Return which split of its data set the images of a set are from."""
    if name.startswith(OUT):
        return next(out.split for out in section.out if out.label == name.removeprefix(OUT))
    source = TEST if name.startswith(TESTS) else {CORRUPTED: VALIDATION, CROPPED: TEST}.get(name, name)
    split: str = getattr(section.splits, source)
    return split


def more_options(section: DataSection, name: str) -> dict[str, Any]:
    """Return the options of a set beside those of all."""
    base = TEST if name.startswith(TESTS) else name
    more: dict[str, Any] = section.split_options.get(base, {})  # type: ignore[call-overload]
    return {**more, **section.tests[name.removeprefix(TESTS)]} if name.startswith(TESTS) else more


def size(sets: Sets, name: str) -> int:
    """Return how many images a set has; they are loaded, and not made ready."""
    if name == CORRUPTED:
        return len(_corrupted_rows(sets.images[VALIDATION])) * len(CORRUPTIONS)
    return len(sets.images[TEST if name == CROPPED else name])


# --- how they are loaded and made ready ---


def _loaded(section: DataSection, data_dir: Path | None, name: str, loaded: Sets) -> Dataset:
    """Return the images of a set that a data set has, limited as the section says."""

    def load(*names: str, **options: Any) -> Dataset:
        try:
            return data.load(*names, data_dir=data_dir, **options)
        except FileNotFoundError as error:  # of a folder, too
            raise MissingDataError(str(error)) from error

    if not name.startswith(OUT):
        images = load(
            section.train,
            split_of(section, name),
            image_size=section.image_size,
            channels=section.channels,
            preprocessing=section.preprocessing,
            **{**section.options, **more_options(section, name)},
        )
        return by_place(spread(images, section.limit))
    # OOD images, with as many rows, columns and channels as the images that the network knows.
    out = next(out for out in section.out if out.label == name.removeprefix(OUT))
    test_images = loaded[TEST]
    channels, height, width = test_images[0][0].shape
    preprocessing = "unit" if test_images.preparation is None else test_images.preparation.preprocessing
    images = load(
        out.name, out.split, image_size=None, channels=channels, preprocessing=preprocessing, **out.options
    )
    if images[0][0].shape != (channels, height, width) or not isinstance(images.images, Tensor):
        if height != width:
            raise ValueError(
                f"the images of {test_images.name} are {height}x{width}: give data an image_size, so that those of "
                f"{out.name} can have the same"
            )
        images = images.prepared(image_size=height)
    return spread(images, out.limit)


def _ready(section: DataSection, batch_size: int, name: str, sets: Sets) -> Dataset:
    """Return the images of a set as a network takes them."""
    if name == TRAINING:
        if section.augment is None:
            return sets[TRAIN]
        augmented = sets.images[TRAIN].prepared(augment=AUGMENTATIONS[section.augment])
        return replace(augmented, batch_size=batch_size, workers=section.workers)
    if name == CORRUPTED:
        validation = sets.images[VALIDATION]
        chosen = validation.select(_corrupted_rows(validation))
        clean, indices = _unscaled(chosen), torch.arange(len(chosen))
        floats = torch.cat([corrupt(clean, kind, STRENGTH, indices=indices) for kind in CORRUPTIONS])
        labels = chosen.labels.repeat(len(CORRUPTIONS))
    elif name == CROPPED:
        whole = sets.images[TEST]
        floats, labels = corrupt(_unscaled(whole), "crop", CROP, indices=whole.indices), whole.labels
    elif name == TRAIN and section.corrupted_share:
        train = sets.images[TRAIN]
        floats = corrupt_some(_unscaled(train), section.corrupted_share, indices=train.indices)
        labels = train.labels
    elif section.in_memory:
        return sets.images[name].in_memory(batch_size=batch_size)
    else:
        return replace(sets.images[name], batch_size=batch_size, workers=section.workers)
    preparation = sets.images[VALIDATION].preparation
    scaled = floats if preparation is None else preparation.scaled(floats)
    return Dataset(scaled, labels, batch_size=batch_size, split=parse_split(split_of(section, name)))


def _corrupted_rows(validation: Dataset) -> Tensor:
    """Which validation images are corrupted, at even steps."""
    number = len(validation)
    return torch.arange(0, number, min(max(EVERY, -(-number // MOST)), number))


def _unscaled(images: Dataset) -> Tensor:
    """As a network takes them, but with values in [0, 1]."""
    return images.prepared(preprocessing="unit").floats()


def spread(images: Dataset, limit: int | None) -> Dataset:
    """So many of the images at even steps, or all of them where there are no more.

    Example:
        >>> spread(data.load("sample-mnist", split="test"), 4).indices.tolist()
        [0, 250, 500, 750]
    """
    if limit is None or limit >= len(images):
        return images
    return images.select(at_even_steps(len(images), limit))


def crop_flip(image: Tensor) -> Tensor:
    """A random window of the image, which is padded by an eighth of its side, and every other one mirrored.

    The image is (C, H, W), uint8, and so is the window; torch's global generator decides.

    Example:
        >>> crop_flip(torch.zeros(3, 32, 24, dtype=torch.uint8)).shape
        torch.Size([3, 32, 24])
    """
    height, width = image.shape[-2:]
    down, across = height // 8, width // 8
    padded = F.pad(image, (across, across, down, down))
    top = int(torch.randint(2 * down + 1, ()))
    left = int(torch.randint(2 * across + 1, ()))
    window = padded[..., top : top + height, left : left + width]
    return window.flip(-1) if bool(torch.rand(()) < 0.5) else window


def cover_digits(image: Tensor) -> Tensor:
    """The image with a black square on every fifth of its digits on average, as N-digit MNIST draws them once.

    The image is (C, 28, 28 digits), uint8. A square's side is uniform from 0 to 28 and its place uniform inside the
    digit; torch's global generator decides.

    Example:
        >>> cover_digits(torch.zeros(1, 28, 56, dtype=torch.uint8)).shape
        torch.Size([1, 28, 56])
    """
    side = image.shape[-2]
    if image.shape[-1] % side:
        raise ValueError(
            f"an image of shape {tuple(image.shape)} is no row of square digits: leave out augment 'cover-digits', "
            "which is for N-digit MNIST"
        )
    draws = torch.rand(image.shape[-1] // side, 4).tolist()
    image = image.clone()
    for digit, (covered, wide, down, across) in enumerate(draws):
        if covered < COVERED_SHARE:
            length = int(wide * (side + 1))
            top, left = (int(place * (side - length + 1)) for place in (down, across))
            left += digit * side
            image[..., top : top + length, left : left + length] = 0
    return image


AUGMENTATIONS: dict[str, Callable[[Tensor], Tensor]] = {"crop-flip": crop_flip, "cover-digits": cover_digits}


LOGGER = logging.getLogger(__name__)


def feature_sets(
    images: Sets,
    section: DataSection,
    encoder: Encoder,
    folder: Path,
    *,
    batch_size: int = 500,
    lock: Callable[[], AbstractContextManager[object]] = nullcontext,
    progress: bool | None = None,
) -> Sets:
    """Return what goes into the head for every set of images; it is computed when it is first read.

    Args:
        images: see `image_sets`; what is trained on is not augmented.
        section: which images they are.
        encoder: whose backbone is frozen.
        folder: where the features are kept; each set has a folder of its own in it.
        batch_size: of the batches that are embedded.
        lock: keeps other processes out of the folder while it is written.
        progress: whether to show bars; None asks the terminal.
    """
    fingerprint = encoder.fingerprint()

    def make(name: str) -> Dataset:
        if name == TRAINING:
            return sets[TRAIN]
        place = folder / name.replace("/", "-")
        # What the features of a set depend on.
        of = {
            "fingerprint": fingerprint,
            "data": section.model_dump(
                mode="json", exclude={"out", "in_memory", "workers", "augment", "tests"}
            ),
            **({"more": more_options(section, name)} if name.startswith(TESTS) else {}),
            "out": [out.model_dump(mode="json") for out in section.out if name == OUT + out.label],
        }
        with lock():
            features = kept_features(encoder, images[name], place, of, progress=progress)
        split = parse_split(split_of(section, name))
        return Dataset(features.features, features.labels, batch_size=batch_size, split=split)

    sets = Sets(images, make, images.images, encoder)
    return sets


def kept_features(
    encoder: Encoder,
    images: Loader,
    folder: Path,
    of: Mapping[str, Any],
    *,
    dtype: torch.dtype | None = None,
    progress: bool | None = None,
) -> Dataset:
    """Return the features that an earlier run left in a folder, or compute them and keep them there.

    Args:
        encoder: whose backbone is frozen.
        images: a loader, which is read only where the folder does not have all features yet.
        folder: of this set of images alone; an interrupted pass is resumed.
        of: what the features depend on; those of something else are removed.
        dtype: in which they are kept; by default that of the backbone's output.
        progress: whether to show a bar; None asks the terminal.
    """
    stored = _stored(folder, of)
    if stored is not None:
        return stored
    return collect_features(encoder, images, folder=folder, progress=progress, of=of, dtype=dtype)


def _stored(place: Path, of: Mapping[str, Any]) -> Dataset | None:
    """Return what an earlier run left, if it is whole and of the same network and images; an interrupted one stays."""
    own = place / own_folder()
    try:
        manifest = artifact.read_manifest(own, FeaturesManifest)
        if manifest.of == of:
            return load_features(own)
        if not manifest.of:
            return None
    except MissingArtifactError:
        return None
    except ArtifactError as error:
        LOGGER.warning("%s: the features are computed again", error)
    shutil.rmtree(own)
    return None
