"""The images of a cell: those that are trained on and chosen by, those that are tested, OOD images, corrupted ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import data
from laplacian_metric.data.corruptions import corrupt, corrupt_some
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.data.splits import parse_split
from laplacian_metric.runs.place_matching import Matching, by_place, matching
from laplacian_metric.runs.sections import DataSection

TRAIN, VALIDATION, TEST, CORRUPTED, CROPPED = "train", "validation", "test", "corrupted", "cropped"
OUT = "out/"  # before the label of a set of OOD images
TESTS = "test/"  # before the name of another test set

CORRUPTIONS = ("crop", "blur", "occlusion", "noise")
STRENGTH = 1.0
EVERY = 5  # of the validation images, so many are corrupted at the most
MOST = 1000  # of one kind of corruption
CROP = 2 / 3  # the strength of the crop test: a window of half the side


class ImageSets:
    """The sets of images of one data section by name: "train", "validation", "test", "corrupted" (validation images),
    "cropped" (test images), "out/" with a label and "test/" with the name of another test set. Each is made once.

    Args:
        section: which images.
        data_dir: the folder of the data sets.
        batch_size: of the batches that are embedded.
    """

    def __init__(self, section: DataSection, data_dir: Path | None, batch_size: int = 500) -> None:
        self.section = section
        self.data_dir = data_dir
        self.batch_size = batch_size
        self._loaded: dict[str, Dataset] = {}
        self._made: dict[str, Dataset] = {}

    def __getitem__(self, name: str) -> Dataset:
        """The images as they are embedded, without augmentation."""
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def loaded(self, name: str) -> Dataset:
        """The images of a set that a data set has, limited as the section says."""
        if name not in self._loaded:
            if name.startswith(OUT):
                images = self._load_out(name.removeprefix(OUT))
            else:
                split = self.split(name)
                options = {**self.section.options, **self.more_options(name)}
                images = self._load(self.section.train, split, options, self._preparation())
                images = by_place(spread(images, self.section.limit))
            self._loaded[name] = images
        return self._loaded[name]

    def more_options(self, name: str) -> dict[str, Any]:
        """The options of a set beside those of all."""
        base = TEST if name.startswith(TESTS) else name
        more: dict[str, Any] = self.section.split_options.get(base, {})  # type: ignore[call-overload]
        return {**more, **self.section.tests[name.removeprefix(TESTS)]} if name.startswith(TESTS) else more

    def training(self) -> Dataset:
        """The images that are trained on, with augmentation where there is one."""
        train = self.loaded(TRAIN)
        if self.section.augment is None:
            return self[TRAIN]
        augmented = train.prepared(augment=AUGMENTATIONS[self.section.augment])
        return replace(augmented, batch_size=self.batch_size, workers=self.section.workers)

    def matching(self, name: str) -> Matching:
        """What of the images of a set are queries, and which answers to them are right."""
        return matching(self.loaded(name))

    def tests(self) -> list[str]:
        """The names of the test sets beside "test"."""
        return list(self.section.tests)

    def split(self, name: str) -> str:
        """Which split of its data set the images of a set are from."""
        if name.startswith(OUT):
            return next(out.split for out in self.section.out if out.label == name.removeprefix(OUT))
        source = TEST if name.startswith(TESTS) else {CORRUPTED: VALIDATION, CROPPED: TEST}.get(name, name)
        split: str = getattr(self.section.splits, source)
        return split

    def size(self, name: str) -> int:
        """How many images a set has."""
        if name == CORRUPTED:
            return len(self._chosen()) * len(CORRUPTIONS)
        return len(self.loaded(TEST if name == CROPPED else name))

    # --- how they are made ---

    def _make(self, name: str) -> Dataset:
        if name == CORRUPTED:
            chosen = self.loaded(VALIDATION).select(self._chosen())
            clean, indices = self._unscaled(chosen), torch.arange(len(chosen))
            corrupted = torch.cat([corrupt(clean, kind, STRENGTH, indices=indices) for kind in CORRUPTIONS])
            labels = chosen.labels.repeat(len(CORRUPTIONS))
            return self._inputs(name, corrupted, labels)
        if name == CROPPED:
            whole = self.loaded(TEST)
            cropped = corrupt(self._unscaled(whole), "crop", CROP, indices=whole.indices)
            return self._inputs(name, cropped, whole.labels)
        images = self.loaded(name)
        share = self.section.corrupted_share
        if name == TRAIN and share:
            floats = corrupt_some(self._unscaled(images), share, indices=images.indices)
            return self._inputs(name, floats, images.labels)
        if self.section.in_memory:
            return images.in_memory(batch_size=self.batch_size)
        return replace(images, batch_size=self.batch_size, workers=self.section.workers)

    def _inputs(self, name: str, floats: Tensor, labels: Tensor) -> Dataset:
        return Dataset(
            self._scaled(floats), labels, batch_size=self.batch_size, split=parse_split(self.split(name))
        )

    def _chosen(self) -> Tensor:
        """Which validation images are corrupted, at even steps."""
        number = len(self.loaded(VALIDATION))
        return torch.arange(0, number, min(max(EVERY, -(-number // MOST)), number))

    def _preparation(self) -> dict[str, Any]:
        section = self.section
        return {
            "image_size": section.image_size,
            "channels": section.channels,
            "preprocessing": section.preprocessing,
        }

    def _load(self, name: str, split: str, options: dict[str, Any], preparation: dict[str, Any]) -> Dataset:
        return data.load(name, split, data_dir=self.data_dir, **preparation, **options)

    def _load_out(self, label: str) -> Dataset:
        """OOD images, with as many rows, columns and channels as the images that the network knows."""
        out = next(out for out in self.section.out if out.label == label)
        known = self.loaded(TEST)
        channels, height, width = known[0][0].shape
        preparation = {
            "image_size": None,
            "channels": channels,
            "preprocessing": _preprocessing(known),
        }
        images = self._load(out.name, out.split, out.options, preparation)
        if images[0][0].shape != (channels, height, width) or not isinstance(images.images, Tensor):
            if height != width:
                raise ValueError(
                    f"the images of {known.name} are {height}x{width}: give data an image_size, so that those of "
                    f"{out.name} can have the same"
                )
            images = images.prepared(image_size=height)
        return spread(images, out.limit)

    def _unscaled(self, images: Dataset) -> Tensor:
        """As a network takes them, but with values in [0, 1]."""
        return images.prepared(preprocessing="unit").floats()

    def _scaled(self, floats: Tensor) -> Tensor:
        preparation = self.loaded(VALIDATION).preparation
        return floats if preparation is None else preparation.scaled(floats)


def _preprocessing(images: Dataset) -> str:
    return "unit" if images.preparation is None else images.preparation.preprocessing


def spread(images: Dataset, limit: int | None) -> Dataset:
    """So many of the images at even steps, or all of them where there are no more.

    Example:
        >>> spread(data.load("sample-mnist", split="test"), 4).indices.tolist()
        [0, 250, 500, 750]
    """
    if limit is None or limit >= len(images):
        return images
    return images.select(torch.arange(limit) * len(images) // limit)


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


AUGMENTATIONS: dict[str, Callable[[Tensor], Tensor]] = {"crop-flip": crop_flip}
