"""A data set: inputs with ids and, where they are known, labels; one class for images, files, features and arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from laplacian_metric.core.batch import Batch, pins_memory
from laplacian_metric.core.images import ImageFiles, Preparation, fit_square
from laplacian_metric.core.labels import numbered
from laplacian_metric.core.splits import Role, Split, parse_split

DEFAULT_BATCH = 500
_NAMED = 5  # how many of many things a message names
_HEAD = 1 << 16  # so much of a file, and its size, tell images apart


@dataclass(frozen=True, eq=False)
class Dataset(TorchDataset[Any]):
    """N inputs with their ids and, where they are known, labels: images in memory or in files, features, any arrays.

    Item i is `(input, label)`, or the input alone where there are no labels, which is what a DataLoader takes;
    `batches` yields batches.

    Attributes:
        inputs: images (N, C, H, W), uint8; image files, decoded when they are used; or, without a preparation, a
            tensor or an array (N, ...) that a network takes as it is, such as features (N, H), which may be mapped.
        labels: (N,), whole numbers, text or whatever else is hashable, or None. Whole numbers are kept; others become
            the position of their name in ``class_names``, which by default are the sorted names.
        name: what the data set is called in messages and reports.
        split: which part of it; it decides what the inputs may be used for, see `role`. None where nobody said.
        class_names: the name of every label from 0; may name classes that are not there. Empty: labels have no names.
        item_ids: one for each input; see `ids`.
        indices: (N,), int64; the position of every input in the order of the published files.
        extras: what else is known about every input, by name; the first dimension of each tensor is N.
        preparation: how an image becomes what a network takes; None where inputs are taken as they are.
        positive_distance: where images match by distance and not by class: how far apart, in the unit of
            `extras["positions"]`.
        skipped: images that were left out on request because they do not decode.
        licence: under which the images may be used.
        citation: whom to cite for them.
        page: where they come from.
        batch_size: of `batches`.
        workers: processes that read image files, beside this one.
        folder: of the files that the inputs are mapped from; None of others.

    Example:
        >>> data = Dataset(torch.randn(5, 2), ["ant", "bee", "ant", "cat", "bee"], batch_size=2)
        >>> data.class_names, data.labels.tolist(), [len(batch) for batch in data.batches()]
        (('ant', 'bee', 'cat'), [0, 1, 0, 2, 1], [2, 2, 1])
    """

    inputs: Any
    labels: Any = None
    _: KW_ONLY
    name: str = "these inputs"
    split: Split | None = None
    class_names: tuple[str, ...] = ()
    item_ids: Sequence[str] | None = None
    indices: Tensor = field(default_factory=lambda: torch.arange(0))  # by default 0, 1, ...
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    preparation: Preparation | None = None
    positive_distance: float | None = None
    skipped: tuple[str, ...] = ()
    licence: str = ""
    citation: str = ""
    page: str = ""
    batch_size: int = DEFAULT_BATCH
    workers: int = 0
    folder: Path | None = None

    def __post_init__(self) -> None:
        put = partial(object.__setattr__, self)
        if isinstance(self.inputs, np.ndarray):
            put("inputs", torch.as_tensor(self.inputs))
        if not isinstance(self.inputs, (Tensor, ImageFiles)):
            raise TypeError(
                f"inputs is a {type(self.inputs).__name__}: a tensor or an array of all inputs is needed, or a data "
                "set of data.load or data.from_arrays"
            )
        if self.split is not None:
            put("split", parse_split(self.split))
        if len(self.indices) == 0:
            put("indices", torch.arange(len(self)))
        if self.labels is not None:
            labels, names = numbered(self.labels, tuple(self.class_names))
            put("labels", labels)
            put("class_names", names)
        what = "inputs" if self.preparation is None else "images"
        rows = {"labels": self.labels, "ids": self.item_ids, "indices": self.indices, **self.extras}
        for name, values in rows.items():
            if values is not None and len(values) != len(self):
                raise ValueError(f"{self.title}: {name} has {len(values)} entries for {len(self)} {what}")
        images = None if self.preparation is None or isinstance(self.inputs, ImageFiles) else self.inputs
        if images is not None and (images.ndim != 4 or images.dtype != torch.uint8):
            raise ValueError(
                f"{self.name}: images must be uint8 of shape (N, C, H, W), not {images.dtype} of shape "
                f"{tuple(images.shape)}"
            )
        if self.labels is not None and len(self) and self.class_names:
            low, high = int(self.labels.min()), int(self.labels.max())
            if not 0 <= low <= high < len(self.class_names):
                raise ValueError(
                    f"{self.name}: labels go from {low} to {high}, but there are {len(self.class_names)} class names"
                )
        if self.batch_size < 1 or self.workers < 0:
            raise ValueError(
                f"batch_size is {self.batch_size} and workers {self.workers}, at least 1 and 0 are needed"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.title} has {len(self)} images, no image {index}")
        index %= len(self)
        one = self.inputs[index]
        if self.preparation is not None:
            one = self.preparation.item(one)
        return one if self.labels is None else (one, int(self.labels[index]))

    def __repr__(self) -> str:
        what = "rows of features" if self.holds_features else "images"
        classes = "" if self.labels is None else f" of {len(self.classes)} classes"
        split = "" if self.split is None else f", {self.split.value!r}"
        return f"{type(self).__name__}({self.name!r}{split}: {len(self)} {what}{classes})"

    # --- what is known ---

    @property
    def title(self) -> str:
        """The name with the split."""
        return self.name if self.split is None else f"{self.name}:{self.split.value}"

    @property
    def role(self) -> Role | None:
        """What the inputs may be used for: fitting, selection or evaluation; None where nobody said."""
        return None if self.split is None else self.split.role

    @property
    def holds_features(self) -> bool:
        """Whether the inputs are rows of features, (N, H), rather than images."""
        return self.preparation is None and isinstance(self.inputs, Tensor) and self.inputs.ndim == 2

    @property
    def features(self) -> Tensor:
        """The inputs, where they are rows of features (N, H); images are refused."""
        if not self.holds_features:
            raise TypeError(
                f"{self.title} holds no features (N, H): lam.features(data) computes those of images"
            )
        rows: Tensor = self.inputs
        return rows

    @property
    def images(self) -> Any:
        """The images as they are kept: uint8 (N, C, H, W) or `ImageFiles`."""
        return self.inputs

    @property
    def ids(self) -> tuple[str, ...]:
        """One for each input: ``item_ids``, the names of files, or numbers."""
        if self.item_ids is not None:
            return tuple(self.item_ids)
        return self.inputs.names if isinstance(self.inputs, ImageFiles) else tuple(map(str, range(len(self))))

    @property
    def classes(self) -> list[int]:
        """The labels that occur, ascending."""
        return [int(label) for label in torch.unique(self.known_labels(by_class=False))]

    @property
    def label_names(self) -> NDArray[np.str_]:
        """The name of every input's class, (N,)."""
        labels = self.known_labels(by_class=False)
        names: NDArray[np.str_] = np.array(
            [self.class_names[label] if self.class_names else str(label) for label in labels.tolist()],
            dtype=str,
        )
        return names

    def known_labels(self, *, by_class: bool = True) -> Tensor:
        """Return the labels; an error where there are none, or where, ``by_class``, images match by distance."""
        if self.labels is None:
            remedy = (
                "pass labels with the features: in the same file, or pass --labels FILE"
                if self.holds_features
                else "take a folder with a folder for each class"
            )
            raise ValueError(f"the classes of {self.title} are not known: {remedy}")
        if by_class and self.positive_distance is not None:
            raise ValueError(
                f"the images of {self.title} match by distance and not by class: labels do not say which images match"
            )
        labels: Tensor = self.labels
        return labels

    def require_classes(self, purpose: str) -> None:
        """Refuse inputs that match by distance, and inputs of one class."""
        if len(torch.unique(self.known_labels())) < 2:
            only = self.label_names[0] if len(self) else "none"
            raise ValueError(
                f"all {len(self)} images of {self.title} are of the class {str(only)!r}: {purpose} needs at least 2 "
                "classes"
            )

    # --- as a network takes them ---

    @property
    def num_batches(self) -> int:
        """How many batches `batches` yields."""
        return -(-len(self) // self.batch_size)

    def batches(
        self, rows: Sequence[Tensor] | None = None, generator: torch.Generator | None = None
    ) -> Iterator[Batch]:
        """Yield all inputs in order, the same batches every time; or, to train on, those at given positions.

        Args:
            rows: the positions (B,) of each batch. Their images are augmented where the preparation says so.
            generator: decides what the workers' augmentations draw; without workers they draw from torch's global one.
        """
        data = self if rows is not None or self.preparation is None else self.prepared(augment=None)
        if rows is None:
            chosen = list(torch.arange(len(self)).split(self.batch_size)) if len(self) else []
        else:
            chosen = list(rows)
        for positions, inputs in zip(chosen, data._read(chosen, rows is None, generator), strict=True):
            ids = None if self.item_ids is None else [self.item_ids[row] for row in positions.tolist()]
            yield Batch(inputs, None if self.labels is None else self.labels[positions], ids)

    def _read(
        self, rows: Sequence[Tensor], in_order: bool, generator: torch.Generator | None
    ) -> Iterator[Any]:
        """Yield the inputs at these positions, made ready."""
        preparation = self.preparation
        if isinstance(self.inputs, ImageFiles) or (
            preparation is not None and preparation.augment is not None
        ):
            unlabelled = replace(self, labels=None)
            batches = [positions.tolist() for positions in rows]
            yield from DataLoader(
                unlabelled,
                batch_sampler=batches,
                num_workers=self.workers,
                generator=generator,
                pin_memory=pins_memory(),
            )
            return
        in_order = in_order and len(rows) > 0
        parts = self.inputs.split(self.batch_size) if in_order else (self.inputs[chosen] for chosen in rows)
        for part in parts:
            inputs = part if preparation is None else preparation.batch(part)
            yield inputs.pin_memory() if pins_memory() else inputs

    def floats(self) -> Tensor:
        """Return all inputs as a network takes them, without augmentation: images (N, C, H, W) as float32.

        Image files are all read; they need an `image_size` in their preparation unless they are of one size.
        """
        if self.preparation is None:
            tensor: Tensor = self.inputs
            return tensor
        if isinstance(self.inputs, Tensor):
            return self.preparation.batch(self.inputs)
        if not len(self):
            raise ValueError(f"{self.title} has no images")
        images = [self.preparation.batch(image) for image in self.inputs]
        sizes = {tuple(image.shape) for image in images}
        if len(sizes) > 1:
            raise ValueError(
                f"the images of {self.name} have different sizes, for instance {sorted(sizes)[:2]}; "
                "load them with an image_size"
            )
        return torch.stack(images)

    def in_memory(self, *, batch_size: int | None = None) -> Dataset:
        """Return all inputs made ready for a network once, without augmentation."""
        size = self.batch_size if batch_size is None else batch_size
        return replace(self.with_inputs(self.floats()), batch_size=size)

    def with_inputs(self, inputs: Tensor, folder: Path | None = None) -> Dataset:
        """Return the same items as a network takes them: images made ready, or features (N, H), mapped from a folder.

        Example:
            >>> from laplacian_metric.data import from_arrays
            >>> photos = from_arrays(torch.zeros(2, 8, 8, dtype=torch.uint8), ["ant", "bee"], split="test")
            >>> photos.with_inputs(torch.randn(2, 4))
            Dataset('arrays', 'test': 2 rows of features of 2 classes)
        """
        ids = self.ids if isinstance(self.inputs, ImageFiles) else self.item_ids
        return replace(self, inputs=inputs, preparation=None, item_ids=ids, folder=folder)

    # --- parts and other forms ---

    def select(self, rows: Tensor | Sequence[int]) -> Dataset:
        """Return the inputs at the given positions (n,), or where a mask (N,) is true; name and split stay."""
        chosen = torch.as_tensor(rows)
        if chosen.dtype == torch.bool:
            if len(chosen) != len(self):
                raise ValueError(f"rows is a mask of {len(chosen)} entries for {len(self)} inputs")
            chosen = chosen.nonzero()[:, 0]
        chosen = chosen.long()
        inputs = self.inputs.select(chosen) if isinstance(self.inputs, ImageFiles) else self.inputs[chosen]
        return replace(
            self,
            inputs=inputs,
            labels=None if self.labels is None else self.labels[chosen],
            item_ids=None if self.item_ids is None else [self.item_ids[row] for row in chosen.tolist()],
            indices=self.indices[chosen],
            extras={name: values[chosen] for name, values in self.extras.items()},
            folder=None,
        )

    def of_classes(self, classes: Sequence[int | str]) -> Dataset:
        """Return the inputs of some classes, given by label or by name.

        Example:
            >>> from laplacian_metric.data import load
            >>> load("sample-mnist", split="test").of_classes([3, "8"])
            Dataset('sample-mnist', 'test': 200 images of 2 classes)
        """
        labels = []
        for entry in classes:
            if isinstance(entry, str) and entry in self.class_names:
                labels.append(self.class_names.index(entry))
            elif not isinstance(entry, str) and 0 <= entry < len(self.class_names):
                labels.append(int(entry))
            else:
                raise ValueError(f"{self.name} has no class {entry!r}; see its class_names")
        return self.select(
            torch.isin(self.known_labels(by_class=False), torch.tensor(labels, dtype=torch.int64))
        )

    def relabelled(self) -> Dataset:
        """Return the same inputs with labels 0, 1, ... for the classes that occur, for losses with a row per class."""
        present, labels = torch.unique(self.known_labels(by_class=False), return_inverse=True)
        names = tuple(self.class_names[int(label)] for label in present) if self.class_names else ()
        return replace(self, labels=labels, class_names=names)

    def prepared(self, preparation: Preparation | None = None, **changes: Any) -> Dataset:
        """Return the same images made ready in another way: by another preparation, or by this one with changes."""
        before = preparation or self.preparation or Preparation()
        return replace(self, preparation=replace(before, **changes))

    def without_unreadable(self) -> Dataset:
        """Return those whose files decode; reads all files and names the others in `skipped`."""
        bad = self.inputs.unreadable() if isinstance(self.inputs, ImageFiles) else []
        if not bad:
            return self
        keep = torch.ones(len(self), dtype=torch.bool)
        keep[bad] = False
        names = tuple(self.inputs.names[index] for index in bad)
        return replace(self.select(keep), skipped=(*self.skipped, *names))

    # --- to recognise and to show ---

    def digests(self) -> Tensor:
        """Return a number for every input that depends on its content, (N,) int64: whether two sets share images."""
        if isinstance(self.inputs, Tensor):
            contents = (row.numpy().tobytes() for row in self.inputs)
        else:
            contents = (_beginning(self.inputs.root / name) for name in self.inputs.names)
        digests = (hashlib.blake2b(content, digest_size=8).digest() for content in contents)
        numbers = [int.from_bytes(digest, "little", signed=True) for digest in digests]
        return torch.tensor(numbers, dtype=torch.int64)

    def thumbnails(self, side: int = 96) -> NDArray[np.uint8] | None:
        """Return small images (N, h, w) or (N, h, w, 3); None of features and of other inputs that are no images."""
        if self.preparation is None:
            return None
        if isinstance(self.inputs, Tensor):
            small = fit_square(self.inputs, side) if min(self.inputs.shape[-2:]) > side else self.inputs
        else:
            small = torch.stack([fit_square(image, side) for image in self.inputs])
        pixels: NDArray[np.uint8] = small.permute(0, 2, 3, 1).contiguous().numpy()
        return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def _beginning(path: Path) -> bytes:
    """Return the size of a file and as much of it as tells images apart."""
    with path.open("rb") as file:
        return str(path.stat().st_size).encode() + file.read(_HEAD)


def shared(one: Tensor, other: Tensor) -> int:
    """Return how many of the first digests (N,) are among the second."""
    return int(torch.isin(one, other).sum())


def at_even_steps(number: int, most: int) -> Tensor:
    """Return the positions of at most so many of a number of inputs, at even steps.

    Example:
        >>> at_even_steps(10, 4).tolist(), at_even_steps(2, 4).tolist()
        ([0, 2, 5, 7], [0, 1])
    """
    taken = min(number, most)
    return torch.arange(taken) * number // max(1, taken)
