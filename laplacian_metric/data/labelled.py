"""Inputs with labels, as training and embedding take them: in memory, or read from files when they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from laplacian_metric.data.dataset import LabelledImages
from laplacian_metric.data.splits import Role, Split, parse_split

DEFAULT_BATCH = 500


class LabelledInputs:
    """N inputs and their labels. Iterating yields batches (inputs, labels) in order, the same ones every time.

    Args:
        inputs: a tensor of N inputs (images, or features of a frozen backbone, which may be mapped from a file), or a
            data set.
        labels: (N,), integers; a data set has its own.
        batch_size: of the batches that iterating yields.
        workers: processes that read image files, beside this one.
        split: what the inputs are a part of, such as "train" or "test", where a tensor's are known to be; a data set
            says so itself. Training refuses test data.

    Example:
        >>> data = LabelledInputs(torch.randn(5, 2), torch.arange(5), batch_size=2)
        >>> len(data), [len(labels) for _, labels in data]
        (5, [2, 2, 1])
    """

    def __init__(
        self,
        inputs: Tensor | LabelledImages,
        labels: Tensor | None = None,
        *,
        batch_size: int = DEFAULT_BATCH,
        workers: int = 0,
        split: str | Split | None = None,
    ) -> None:
        found = None if split is None else parse_split(split)
        self.name = "these inputs"
        if isinstance(inputs, LabelledImages):
            if labels is not None:
                raise ValueError(f"{inputs.name} has labels of its own: leave `labels` out")
            if found not in (None, inputs.split):
                raise ValueError(
                    f"{inputs.name} is the split {inputs.split.value!r} and not {split!r}: leave `split` out"
                )
            labels, found, self.name = inputs.labels, inputs.split, inputs.name
        elif not isinstance(inputs, Tensor):
            raise TypeError(
                f"inputs is a {type(inputs).__name__}: a tensor of all inputs is needed, or a data set of data.load or "
                "data.from_arrays, which takes the arrays of a data set of your own"
            )
        elif labels is None:
            raise ValueError("labels are missing: a tensor of inputs needs one for each")
        if labels.ndim != 1 or labels.is_floating_point():
            raise ValueError(
                f"labels must be integers of shape (N,), not {labels.dtype} of shape {tuple(labels.shape)}"
            )
        if len(labels) != len(inputs):
            raise ValueError(f"labels has {len(labels)} entries for {len(inputs)} inputs")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, at least 1 is needed")
        if workers < 0:
            raise ValueError(f"workers is {workers}, a number from 0 on is needed")
        self.split = found
        self.inputs = inputs
        self.labels = labels
        self.batch_size = batch_size
        self.workers = workers

    @staticmethod
    def in_memory(images: LabelledImages, *, batch_size: int = DEFAULT_BATCH) -> LabelledInputs:
        """All images of a data set, made ready for a network once, without augmentation."""
        made = LabelledInputs(images.floats(), images.labels, batch_size=batch_size, split=images.split)
        made.name = images.name
        return made

    @property
    def role(self) -> Role | None:
        """What they may be used for; None where nobody said of which split they are."""
        return None if self.split is None else self.split.role

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        if not len(self):
            return
        if isinstance(self.inputs, Tensor):
            yield from zip(
                self.inputs.split(self.batch_size), self.labels.split(self.batch_size), strict=True
            )
            return
        plain = self.inputs.prepared(replace(self.inputs.preparation, augment=None))
        yield from _loader(plain, torch.arange(len(self)).split(self.batch_size), self.workers, None)

    def batches(self, rows: Sequence[Tensor], generator: torch.Generator | None = None) -> Iterator[Any]:
        """The given batches of positions, as (inputs, labels), with augmentation where the data set has one.

        The generator decides what the workers' augmentations draw; without workers they draw from torch's global one.
        """
        if isinstance(self.inputs, Tensor):
            for chosen in rows:
                yield self.inputs[chosen], self.labels[chosen]
            return
        yield from _loader(self.inputs, rows, self.workers, generator)

    def select(self, rows: Tensor) -> LabelledInputs:
        """Those at the given positions (N,), or where a mask (N,) is true."""
        if rows.dtype == torch.bool:
            if len(rows) != len(self):
                raise ValueError(f"rows is a mask of {len(rows)} entries for {len(self)} inputs")
            rows = rows.nonzero()[:, 0]
        settings: dict[str, Any] = {
            "batch_size": self.batch_size,
            "workers": self.workers,
            "split": self.split,
        }
        if isinstance(self.inputs, Tensor):
            chosen = LabelledInputs(self.inputs[rows], self.labels[rows], **settings)
        else:
            chosen = LabelledInputs(self.inputs.select(rows), **settings)
        chosen.name = self.name
        return chosen


def _loader(
    images: LabelledImages, rows: Sequence[Tensor], workers: int, generator: torch.Generator | None
) -> Iterator[Any]:
    batches = [chosen.tolist() for chosen in rows]
    yield from DataLoader(images, batch_sampler=batches, num_workers=workers, generator=generator)
