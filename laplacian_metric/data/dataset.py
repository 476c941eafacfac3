"""A split of a data set: images, one label each, and everything else that is known about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from laplacian_metric.data.images import ImageFiles, Preparation, UnreadableImageError
from laplacian_metric.data.splits import Role, Split, parse_split

_NAMED = 5  # how many of many things a message names


@dataclass(frozen=True, eq=False)
class LabelledImages(Dataset[tuple[torch.Tensor, int]]):
    """Images with one label each, as one split of a data set.

    Item i is `(image, label)`: a float32 tensor (C, H, W) and an int, which is what a DataLoader takes.

    Attributes:
        name: the data set.
        split: which part of it; it decides what the images may be used for, see `role`.
        images: (N, C, H, W), uint8, in memory; or image files, decoded when they are asked for.
        labels: (N,), int64.
        class_names: the name of every label; may name classes that this split does not have.
        indices: (N,), int64; the position of every image in the order of the published files.
        extras: what else is known about every image, by name; the first dimension of each tensor is N.
        preparation: how an image becomes what a network takes.
        positive_distance: where images match by distance and not by class: how far apart, in the unit of
            `extras["positions"]`.
        skipped: images that were left out on request because they do not decode.
        licence: under which the images may be used.
        citation: whom to cite for them.
        page: where they come from.
    """

    name: str
    split: Split
    images: torch.Tensor | ImageFiles
    labels: torch.Tensor
    class_names: tuple[str, ...]
    indices: torch.Tensor
    extras: Mapping[str, torch.Tensor] = field(default_factory=dict)
    preparation: Preparation = field(default_factory=Preparation)
    positive_distance: float | None = None
    skipped: tuple[str, ...] = ()
    licence: str = ""
    citation: str = ""
    page: str = ""

    def __post_init__(self) -> None:
        rows = {"labels": self.labels, "indices": self.indices, **self.extras}
        for name, values in rows.items():
            if values.shape[0] != len(self.images):
                raise ValueError(
                    f"{self.name}, {self.split.value}: {name} has {values.shape[0]} entries for "
                    f"{len(self.images)} images"
                )
        if isinstance(self.images, torch.Tensor) and (
            self.images.ndim != 4 or self.images.dtype != torch.uint8
        ):
            raise ValueError(
                f"{self.name}: images must be uint8 of shape (N, C, H, W), not {self.images.dtype} of shape "
                f"{tuple(self.images.shape)}"
            )
        if len(self) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.class_names):
            raise ValueError(
                f"{self.name}: labels go from {int(self.labels.min())} to {int(self.labels.max())}, but there are "
                f"{len(self.class_names)} class names"
            )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name}, {self.split.value} has {len(self)} images, no image {index}")
        index %= len(self)
        return self.preparation.item(self.images[index]), int(self.labels[index])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}, {self.split.value!r}: {len(self)} images of "
            f"{len(self.classes)} classes)"
        )

    @property
    def role(self) -> Role:
        """What the images may be used for: fitting, selection or evaluation."""
        return self.split.role

    @property
    def classes(self) -> list[int]:
        """The labels that occur, ascending."""
        return [int(label) for label in torch.unique(self.labels)]

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Images made ready for a network, without augmentation, and labels, in order."""
        from laplacian_metric.data.labelled import LabelledInputs

        return iter(LabelledInputs(self))

    def floats(self) -> torch.Tensor:
        """All images as a network takes them, without augmentation: (N, C, H, W), float32.

        Image files are all read; they need an `image_size` in their preparation unless they are of one size.
        """
        if isinstance(self.images, torch.Tensor):
            return self.preparation.batch(self.images)
        if not len(self):
            raise ValueError(f"{self.name}, {self.split.value} has no images")
        made = [self.preparation.batch(image) for image in self.images]
        sizes = {tuple(image.shape) for image in made}
        if len(sizes) > 1:
            raise ValueError(
                f"the images of {self.name} have different sizes, for instance {sorted(sizes)[:2]}; "
                "load them with an image_size"
            )
        return torch.stack(made)

    def select(self, indices: torch.Tensor | Sequence[int]) -> LabelledImages:
        """The images at the given positions; name, split and role stay."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        images = self.images[chosen] if isinstance(self.images, torch.Tensor) else self.images.select(chosen)
        return dataclasses.replace(
            self,
            images=images,
            labels=self.labels[chosen],
            indices=self.indices[chosen],
            extras={name: values[chosen] for name, values in self.extras.items()},
        )

    def of_classes(self, classes: Sequence[int | str]) -> LabelledImages:
        """The images of some classes, given by label or by name.

        Example:
            >>> from laplacian_metric.data import load
            >>> load("sample-mnist", split="test").of_classes([3, "8"])
            LabelledImages('sample-mnist', 'test': 200 images of 2 classes)
        """
        labels = []
        for entry in classes:
            if isinstance(entry, str) and entry in self.class_names:
                labels.append(self.class_names.index(entry))
            elif not isinstance(entry, str) and 0 <= entry < len(self.class_names):
                labels.append(int(entry))
            else:
                raise ValueError(f"{self.name} has no class {entry!r}; see its class_names")
        return self.select(torch.isin(self.labels, torch.tensor(labels, dtype=torch.int64)).nonzero()[:, 0])

    def relabelled(self) -> LabelledImages:
        """The same images with labels 0, 1, ... for the classes that occur, for losses with a row per class."""
        present, labels = torch.unique(self.labels, return_inverse=True)
        names = tuple(self.class_names[int(label)] for label in present)
        return dataclasses.replace(self, labels=labels, class_names=names)

    def prepared(self, preparation: Preparation) -> LabelledImages:
        """The same images, made ready for a network in another way."""
        return dataclasses.replace(self, preparation=preparation)

    def without_unreadable(self) -> LabelledImages:
        """Without the image files that do not decode; reads all of them and names those in `skipped`."""
        if isinstance(self.images, torch.Tensor):
            return self
        bad = self.images.unreadable()
        if not bad:
            return self
        keep = torch.ones(len(self), dtype=torch.bool)
        keep[bad] = False
        names = tuple(self.images.names[index] for index in bad)
        return dataclasses.replace(self.select(keep.nonzero()[:, 0]), skipped=(*self.skipped, *names))

    def require_readable(self) -> None:
        """Read every image file.

        Raises:
            UnreadableImageError: some do not decode; it says how many and names the first of them.
        """
        if isinstance(self.images, torch.Tensor):
            return
        bad = self.images.unreadable()
        if bad:
            named = ", ".join(self.images.names[index] for index in bad[:_NAMED])
            more = ", ..." if len(bad) > _NAMED else ""
            raise UnreadableImageError(
                f"{len(bad)} of {len(self)} images below {self.images.root} do not decode: {named}{more}; "
                "repair or remove them, or load with skip_unreadable=True"
            )


def from_arrays(
    images: torch.Tensor | npt.NDArray[np.uint8],
    labels: torch.Tensor | npt.NDArray[np.integer] | Sequence[int],
    *,
    split: str | Split,
    name: str = "arrays",
    class_names: Sequence[str] | None = None,
    extras: Mapping[str, torch.Tensor] | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    preprocessing: str = "unit",
    augment: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> LabelledImages:
    """Your own images as a data set, with the split said out loud, so that test data cannot select a model.

    Args:
        images: (N, H, W) or (N, C, H, W), uint8.
        labels: (N,), integers from 0.
        split: "train", "validation", "test" ...
        name: what the data set is called in messages and reports.
        class_names: the name of every label; by default the label itself.
        extras: more about each image, tensors with N rows each, by name.
        image_size: to which images are resized when they are made ready for a network; None leaves them.
        channels: 1 or 3, to which images are converted; None leaves them.
        preprocessing: how pixels become floats, "unit" for 0 to 1 or the name of a network's own.
        augment: changes an image (C, H, W) at random, in training only; it draws from torch's generator.

    Example:
        >>> import torch
        >>> pictures = torch.zeros(4, 8, 8, dtype=torch.uint8)
        >>> from_arrays(pictures, [0, 0, 1, 1], split="validation")
        LabelledImages('arrays', 'validation': 4 images of 2 classes)
    """
    pixels = torch.as_tensor(images)
    if pixels.ndim == 3:
        pixels = pixels.unsqueeze(1)
    elif pixels.ndim == 4 and pixels.shape[3] in (1, 3, 4) and pixels.shape[1] not in (1, 3, 4):
        raise ValueError(
            f"images has shape {tuple(pixels.shape)}, which looks like (N, H, W, C): (N, C, H, W) is needed, "
            "so move the last axis with torch.as_tensor(images).permute(0, 3, 1, 2)"
        )
    try:
        numbers = torch.as_tensor(labels)
    except (TypeError, ValueError):
        raise ValueError(
            "labels are no numbers: class_names, labels = numpy.unique(labels, return_inverse=True) makes both of names"
        ) from None
    if numbers.ndim != 1 or numbers.is_floating_point():
        raise ValueError(
            f"labels must be integers of shape (N,), not {numbers.dtype} of shape {tuple(numbers.shape)}"
        )
    numbers = numbers.to(torch.int64)
    if class_names is None:
        class_names = [str(label) for label in range(int(numbers.max()) + 1 if len(numbers) else 0)]
    return LabelledImages(
        name=name,
        split=parse_split(split),
        images=pixels,
        labels=numbers,
        class_names=tuple(class_names),
        indices=torch.arange(len(numbers)),
        extras=dict(extras or {}),
        preparation=Preparation(image_size, channels, preprocessing, augment),
    )
