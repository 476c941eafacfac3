"""The sets of a track by name: images, or the features of a frozen network, which are computed once and kept."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.corruptions import corrupt
from experiments.harness.image_sets import CROP, kept_features
from experiments.harness.suites.judging import Searched
from experiments.harness.suites.suite import SetOf, Track
from experiments.sets.lookup import MissingDataError, data_folders
from laplacian_metric import data
from laplacian_metric.core.batch import Batch
from laplacian_metric.core.dataset import Dataset, at_even_steps
from laplacian_metric.core.progress import track as progress_bar
from laplacian_metric.core.splits import Split
from laplacian_metric.encoder import Encoder

TRAIN, VALIDATION, SEEN, PEOPLE, CLEAN, CROPPED = "train", "validation", "seen", "people", "clean", "cropped"
CHOICE, UNSEEN, CORRUPTED = "choice/", "unseen/", "corrupted/"
HELD_OUT = 10  # of so many images of a class one is held out
AT_ONCE = 100
FROZEN_SEED = 0


class TrackSets:
    """The sets of one track: "train", "validation", "choice/NAME", "unseen/NAME", "seen", "people", and of the main
    unseen set "clean" images, the same "cropped", and "corrupted/KIND-STRENGTH".

    Args:
        track: whose sets.
        data_dir: the folder of the data sets.
        folder: where features are kept.
        progress: whether to show bars; None asks the terminal.
    """

    def __init__(
        self,
        track: Track,
        data_dir: Path | None,
        folder: Path,
        progress: bool | None = None,
    ) -> None:
        self.track = track
        self.data_dir = data_dir
        self.folder = folder
        self.progress = progress
        self._images: dict[str, Dataset] = {}
        self._inputs: dict[str, Dataset] = {}
        self._searched: dict[str, tuple[Tensor, Searched]] = {}
        self._encoder: Encoder | None = None

    @property
    def encoder(self) -> Encoder:
        """The network of the track as it is before any training; a frozen one has its usual head."""
        if self._encoder is None:
            self._encoder = _encoder(self.track, self.data_dir).eval()
        return self._encoder

    def names(self) -> list[str]:
        """Every set, in the order in which they are made."""
        track = self.track
        optional = {SEEN: track.seen, PEOPLE: track.people}
        return [
            TRAIN,
            VALIDATION,
            *self.choosing()[1:],
            *self.unseen(),
            *(name for name, images in optional.items() if images is not None),
            CLEAN,
            CROPPED,
            *self.corrupted(),
        ]

    def choosing(self) -> list[str]:
        """The sets by which settings are chosen; there are no test images among them."""
        return [VALIDATION, *(CHOICE + name for name in self.track.choice)]

    def unseen(self) -> list[str]:
        """The sets of unseen classes."""
        return [UNSEEN + name for name in self.track.unseen]

    def corrupted(self) -> list[str]:
        """The sets of corrupted images."""
        return [f"{CORRUPTED}{kind}-{s}" for kind in self.track.corruptions for s in self.track.strengths]

    def __getitem__(self, name: str) -> Dataset:
        """What the embedders of the track take: images as floats, or features."""
        if name not in self._inputs:
            inputs = self._features(name) if self.track.network.frozen else self._floats(name)
            self._inputs[name] = replace(self.images(name).with_inputs(inputs), name=name)
        return self._inputs[name]

    def searched(self, name: str, points: Tensor) -> Searched:
        """The neighbourhoods of a set's embeddings; the last are kept, since many entries share theirs."""
        kept = self._searched.get(name)
        if kept is None or not torch.equal(kept[0], points):
            kept = self._searched[name] = points, Searched.of(points, self[name].labels)
        return kept[1]

    def images(self, name: str) -> Dataset:
        """The images of a set, before cropping or corruption."""
        if name not in self._images:
            if name in (CLEAN, CROPPED) or name.startswith(CORRUPTED):
                whole = self.images(UNSEEN + self.track.main)
                self._images[name] = whole.select(rows_per_class(whole.labels, self.track.changed))
            else:
                self._images[name] = self._load(self._set(name))
        return self._images[name]

    def digest(self, name: str) -> str:
        """Return twelve letters that stand for the images of a set and their labels, in their order."""
        images = self.images(name)
        digest = hashlib.sha256(images.digests().numpy().tobytes())
        digest.update(images.known_labels().to(torch.int64).numpy().tobytes())
        return digest.hexdigest()[:12]

    def _set(self, name: str) -> SetOf:
        track = self.track
        if name.startswith(CHOICE):
            return track.choice[name.removeprefix(CHOICE)]
        if name.startswith(UNSEEN):
            return track.unseen[name.removeprefix(UNSEEN)]
        images: SetOf | None = getattr(track, name)
        if images is None:
            raise KeyError(
                f"the track {track.title} has no set {name!r}; there are: {', '.join(self.names())}"
            )
        return images

    def _load(self, images: SetOf) -> Dataset:
        loaded = data.load(
            images.data,
            images.split,
            data_dir=self.data_dir,
            image_size=self.track.image_size,
            channels=self.track.channels,
            preprocessing="unit",
            **images.options,
        )
        if images.classes is not None:
            loaded = loaded.of_classes(images.classes)
        if images.held_out is not None:
            loaded = loaded.select(held_out(loaded.labels) == images.held_out)
        if images.per_class is not None:
            loaded = loaded.select(rows_per_class(loaded.labels, images.per_class))
        loaded = loaded.relabelled()
        return replace(loaded, split=Split.TEST) if images.held_out else loaded

    def _blocks(self, name: str) -> list[Tensor]:
        """Return a set's rows, so many at once."""
        return list(torch.arange(len(self.images(name))).split(AT_ONCE))

    def _block(self, name: str, rows: Tensor) -> Tensor:
        """Return some images as floats in [0, 1], cropped or corrupted where the name says so."""
        images = self.images(name).select(rows)
        floats = images.floats()
        if name == CROPPED:
            floats = corrupt(floats, "crop", CROP, indices=images.indices)
        elif name.startswith(CORRUPTED):
            kind, strength = name.removeprefix(CORRUPTED).rsplit("-", 1)
            floats = corrupt(floats, kind, float(strength), indices=images.indices)
        return floats

    def _floats(self, name: str) -> Tensor:
        return torch.cat([self._block(name, rows) for rows in self._blocks(name)])

    def _features(self, name: str) -> Tensor:
        """Return the features of the frozen backbone, which are computed once and kept in float16."""
        labels = self.images(name).known_labels()
        self.encoder.backbone.to(memory_format=torch.channels_last)
        blocks = progress_bar(self._blocks(name), f"features of {name}", show=self.progress)
        batches = (
            Batch(self._block(name, rows).contiguous(memory_format=torch.channels_last), labels[rows])
            for rows in blocks
        )
        of = {
            "fingerprint": self.encoder.fingerprint(),
            "images": self.digest(name),
            "changed": self._change(name),
        }
        place = self.folder / name.replace("/", "-")
        kept = kept_features(self.encoder, batches, place, of, dtype=torch.float16, progress=False)
        return kept.features.float()

    def _change(self, name: str) -> list[Any]:
        changed = name == CROPPED or name.startswith(CORRUPTED)
        return [name if changed else "", self.track.image_size, CROP if name == CROPPED else None]


def held_out(labels: Tensor) -> Tensor:
    """Return which images (N,) are held out: the tenth of every ten of a class, in their order.

    Example:
        >>> held_out(torch.zeros(12)).nonzero().flatten().tolist()
        [9]
    """
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.unique(labels):
        mask[(labels == label).nonzero()[HELD_OUT - 1 :: HELD_OUT, 0]] = True
    return mask


def rows_per_class(labels: Tensor, number: int) -> Tensor:
    """Return the rows of at most so many images of each class, at even steps, in their order.

    Example:
        >>> rows_per_class(torch.tensor([0, 0, 0, 0, 1]), 2).tolist()
        [0, 2, 4]
    """
    parts = []
    for label in torch.unique(labels):
        rows = (labels == label).nonzero()[:, 0]
        parts.append(rows[at_even_steps(len(rows), number)])
    return torch.cat(parts).sort().values


def _encoder(track: Track, data_dir: Path | None) -> Encoder:
    section = track.network
    if not track.network.frozen or section.weights is None:
        return section.make(FROZEN_SEED, data_dir)
    path = _weights(section.weights, track.package, data_dir)
    encoder = Encoder.from_checkpoint(
        path, section.name, part="backbone", seed=FROZEN_SEED, **section.options
    )
    assert isinstance(encoder.head, nn.Linear)
    return encoder


def _weights(place: str, package: str, data_dir: Path | None) -> Path:
    """Return the file of weights below a data folder, or in an installed package."""
    folders = [folder / place for folder in data_folders(data_dir)]
    spec = find_spec(package) if package else None
    if spec is not None and spec.origin is not None:
        folders += sorted(Path(spec.origin).parent.rglob(Path(place).name))
    path = next((path for path in folders if path.is_file()), None)
    if path is None:
        remedy = f", or install the package {package.replace('_', '-')}" if package else ""
        raise MissingDataError(
            f"there is no file of weights {place} in the data folder: put it there{remedy}"
        )
    return path
