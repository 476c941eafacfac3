"""A loader as laplace-torch needs it, and how many pairs its batches have."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from hessians import Pairs
from hessians.checks import CurvatureWarning
from laplacian_metric.core import batch as batch_reading
from laplacian_metric.core.batch import Loader

# A model that normalises is known by several outputs; a norm of 1 may happen to one of them.
FIRST_IMAGES = 8


class Counts(NamedTuple):
    """What the batches of one pass add up to: positive pairs, negative pairs and images."""

    positives: int
    negatives: int
    images: int

    def plus(self, labels: Tensor) -> Counts:
        """With a further batch."""
        pairs = Pairs.from_labels(labels)
        return Counts(
            self.positives + int(pairs.num_positives),
            self.negatives + int(pairs.num_negatives),
            self.images + pairs.num_images,
        )

    def check(self) -> None:
        """Refuse batches without a pair."""
        if not self.positives + self.negatives:
            raise ValueError(
                "no batch has two images, and pairs are taken inside of batches: use larger batches, best with "
                "several images of several classes each"
            )

    def check_same(self, seen: Counts, stacklevel: int) -> None:
        """Warn if another pass had other pairs."""
        if seen != self:
            warnings.warn(
                f"this pass over the loader had {seen.positives} positive and {seen.negatives} negative pairs in "
                f"{seen.images} images, the pass before {self.positives} and {self.negatives} in {self.images}, by "
                "which the curvature was divided: give the loader a fixed order",
                CurvatureWarning,
                stacklevel=stacklevel,
            )


def check_loader(loader: object) -> None:
    """Refuse a loader that can be read once only."""
    if isinstance(loader, Iterator):
        raise TypeError(
            f"the loader is a {type(loader).__name__}, which can be read once only: pass a DataLoader, or a list of "
            "batches (images, labels)"
        )


def batch_population(loader: Iterable[Any]) -> tuple[int, int]:
    """How many positive and how many negative pairs lie inside the batches of one pass over a loader.

    These are the numbers by which every batch divides, so that the batches' curvatures add up to one average over all
    pairs that are seen. They hold for another pass only if it has the same batches: use ``shuffle=False``, or a fixed
    list of index lists as the ``batch_sampler``.

    Example:
        >>> import torch
        >>> images = torch.zeros(4, 3)
        >>> batch_population([(images, torch.tensor([0, 0, 1, 1])), (images, torch.tensor([0, 0, 0, 1]))])
        (5, 7)
    """
    counts = Counts(0, 0, 0)
    for _, labels in read(loader):
        counts = counts.plus(labels)
    return counts.positives, counts.negatives


def read(loader: Loader) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of one pass, each checked to be images and labels and nothing else."""
    for batch in batch_reading.read(loader, labelled=True):
        images, labels = batch.inputs, batch.labels
        if not isinstance(images, Tensor) or labels is None:
            raise TypeError(
                f"the loader gives a {type(images).__name__} of inputs, laplace-torch needs a tensor of images "
                "(B, ...) and labels (B,): pick these two in the data set or in the loader's collate_fn"
            )
        yield images, labels


class Batches:
    """A loader as ``fit`` of laplace-torch needs it: (images, labels), a data set with a length, batches that stay.

    The batches of a plain DataLoader are drawn once and kept, as lists of indices, so that a shuffling sampler does
    no harm. Any other loader is trusted to give the same ones in every pass, and told on if it does not.

    Attributes:
        counts: pairs and images of one pass.
        dataset: something that has as many entries as one pass has images.
        first: a few images.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        check_loader(loader)
        self._loader = with_fixed_batches(loader)
        self.counts, self.first = Counts(0, 0, 0), torch.empty(0)
        for images, labels in read(self._loader):
            if not self.counts.images:
                self.first = images[:FIRST_IMAGES].clone()
            self.counts = self.counts.plus(labels)
        self.dataset = range(self.counts.images)
        self.counts.check()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        seen = Counts(0, 0, 0)
        for images, labels in read(self._loader):
            seen = seen.plus(labels)
            yield images, labels
        self.counts.check_same(seen, stacklevel=3)


def with_fixed_batches(loader: Loader) -> Loader:
    """A plain DataLoader with the batches that one pass over it would have now; anything else as it is."""
    if type(loader) is not DataLoader or loader.batch_sampler is None:
        return loader
    if isinstance(loader.dataset, IterableDataset):
        return loader
    return DataLoader(
        loader.dataset,
        batch_sampler=[list(batch) for batch in loader.batch_sampler],
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
    )
