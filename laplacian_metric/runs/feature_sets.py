"""The features of a base's network for every set of images, computed once into a folder and mapped from there."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from laplacian_metric.core import checked
from laplacian_metric.core.files import atomic_write
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.data.splits import parse_split
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.heads import identity_head, principal_head, random_head, whitening_head
from laplacian_metric.laplace.features import collect_features, load_features
from laplacian_metric.runs.image_sets import OUT, TESTS, TRAIN, ImageSets
from laplacian_metric.runs.place_matching import Matching
from laplacian_metric.runs.sections import NetworkSection

LOGGER = logging.getLogger(__name__)

WHOLE = "whole.json"  # is there when all rows are


class FeatureSets:
    """As `ImageSets`, with what goes into the head in place of the images.

    Args:
        images: the images.
        encoder: whose backbone is frozen.
        folder: where the features are kept; each set has a folder of its own in it.
        lock: keeps other processes out of the folder while it is written.
        progress: whether to show bars; None asks the terminal.
    """

    def __init__(
        self,
        images: ImageSets,
        encoder: Encoder,
        folder: Path,
        lock: Callable[[], AbstractContextManager[object]] = nullcontext,
        progress: bool | None = None,
    ) -> None:
        self.images = images
        self.encoder = encoder
        self.folder = folder
        self.lock = lock
        self.progress = progress
        self._fingerprint = encoder.fingerprint()
        self._made: dict[str, Dataset] = {}

    def __getitem__(self, name: str) -> Dataset:
        if name not in self._made:
            with self.lock():
                self._made[name] = self._mapped(name) or self._collected(name)
        return self._made[name]

    def training(self) -> Dataset:
        """The features that are trained on; there is no augmentation of features."""
        return self["train"]

    def matching(self, name: str) -> Matching:
        """That of the images."""
        return self.images.matching(name)

    def tests(self) -> list[str]:
        """Those of the images."""
        return self.images.tests()

    def _place(self, name: str) -> Path:
        return self.folder / name.replace("/", "-")

    def _of(self, name: str) -> dict[str, object]:
        """What the features of a set depend on."""
        section = self.images.section
        kept = section.model_dump(mode="json", exclude={"out", "in_memory", "workers", "augment", "tests"})
        outs = [out for out in section.out if name == OUT + out.label]
        more = {"more": self.images.more_options(name)} if name.startswith(TESTS) else {}
        return {
            "fingerprint": self._fingerprint,
            "data": kept,
            **more,
            "out": [out.model_dump(mode="json") for out in outs],
        }

    def _mapped(self, name: str) -> Dataset | None:
        """What an earlier run left, if it is whole and of the same network and images."""
        place = self._place(name)
        if not (place / WHOLE).is_file():
            return None
        try:
            note = checked.read_json(place / WHOLE, "it is written again")
            if note.get("of") == self._of(name):
                stored = load_features(place / str(note.get("folder")))
                return self._inputs(name, stored.features, stored.labels)
        except ValueError as error:
            LOGGER.warning("%s: the features are computed anew", error)
        shutil.rmtree(place)
        return None

    def _collected(self, name: str) -> Dataset:
        place = self._place(name)
        features = collect_features(self.encoder, self.images[name], folder=place, progress=self.progress)
        assert features.folder is not None
        note = {
            "of": self._of(name),
            "folder": features.folder.relative_to(place).as_posix(),
        }
        with atomic_write(place / WHOLE) as temporary:
            temporary.write_text(json.dumps(note) + "\n", encoding="utf-8")
        return self._inputs(name, features.features, features.labels)

    def _inputs(self, name: str, features: Tensor, labels: Tensor) -> Dataset:
        split = parse_split(self.images.split(name))
        return Dataset(features, labels, batch_size=self.images.batch_size, split=split)


def bytes_of(rows: int, width: int) -> int:
    """What so many features take on disk.

    Example:
        >>> bytes_of(55_000, 9_216) // 2**20
        1934
    """
    return rows * (width * torch.float32.itemsize + torch.long.itemsize)


class HeadSource(Protocol):
    """Sets of features by name, and the encoder with a frozen backbone that they are of."""

    @property
    def encoder(self) -> Encoder: ...

    def __getitem__(self, name: str) -> Dataset: ...


def initial_head(
    section: NetworkSection, sets: HeadSource, seed: int, *, shape_only: bool = False
) -> nn.Linear:
    """The head that the section asks for; only a random one depends on the seed.

    With ``shape_only`` it is random in any case: what it will hold is read from a checkpoint.
    """
    width = sets.encoder.num_features
    dim = section.dim or (sets.encoder.dim if section.head == "random" else width)
    if shape_only or section.head == "random":
        return random_head(width, dim, generator=torch.Generator().manual_seed(seed))
    if section.head in ("principal", "whitening"):
        features = sets[TRAIN].inputs
        assert isinstance(features, Tensor)
        return (principal_head if section.head == "principal" else whitening_head)(features, dim)
    if dim != width:
        raise ValueError(
            f"network.head is 'identity', which keeps all {width} features, but dim is {dim}: leave dim out, or take "
            "'principal', 'whitening' or 'random'"
        )
    return identity_head(width)
