"""Which pairs of images count, of which type, and how often.

A pair is unordered, and an image is never paired with itself. Three ways to say which pairs there are share one
interface: labels and positions imply their pairs (which are never listed for a whole data set), index tuples list them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hessians.checks import check_finite, check_floating, check_same_device

Population = tuple[float, float]


class PairList(NamedTuple):
    """Unordered pairs of one type, (P,) each: first < second, each pair once, given so many ``times``."""

    first: Tensor
    second: Tensor
    times: Tensor


class PairSums(NamedTuple):
    """Sums of [1, z] over the partners of images, where they are known already.

    ``classes`` (C, 1 + Z) are over all images of each class, those of other processes among them, ``class_of`` (N,)
    says which class an image has, and ``active`` (N, 1 + Z) are over its active negatives within ``margin``. Points
    without a norm are relative to ``origin`` (Z,).
    """

    classes: Tensor
    class_of: Tensor
    active: Tensor
    margin: float
    origin: Tensor | None = None

    def positive(self, points: Tensor) -> Tensor:
        """Over the positive partners of the images at z (N, Z), (N, 1 + Z)."""
        sums = self.classes[self.class_of]
        sums[:, 0] -= 1
        sums[:, 1:] -= points
        return sums


class Pairs(ABC):
    """A set of positive and a set of negative pairs over ``num_images`` images.

    ``num_positives`` and ``num_negatives`` are the population counts |P| and |Q| by which the loss divides: those of
    the set itself, repeats counted, unless others are passed in. Passing those of a whole data set makes the values,
    gradients and curvatures of its batches sum up to what the data set's own averages give, with no bias from
    unequal batches.

    Example:
        >>> pairs = Pairs.from_labels(torch.tensor([0, 0, 1]))
        >>> pairs.num_positives, pairs.num_negatives
        (1, 2)
    """

    num_images: int
    device: torch.device  # embeddings have to live there too
    num_positives: float
    num_negatives: float
    sums: PairSums | None = None

    @staticmethod
    def from_labels(labels: Any, *, population: Population | None = None) -> Pairs:
        """All unordered pairs of images with these labels (N,): positive where they agree, else negative.

        Labels are whole numbers, as a tensor, an array or a sequence, or text.

        Example:
            >>> Pairs.from_labels(["cat", "dog", "cat"]).num_positives
            1
        """
        return LabelPairs(labels, population=population)

    @staticmethod
    def from_indices(
        indices: Sequence[Tensor], num_images: int, *, population: Population | None = None
    ) -> Pairs:
        """Pairs from pytorch-metric-learning's index tuples.

        Three index tensors are triplets (anchor, positive, negative), four are (anchor, positive, anchor of the
        negative, negative). Repeats are folded into counts; (i, j) and (j, i) are the same pair.

        Example:
            >>> anchor, positive, negative = torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([2, 2])
            >>> Pairs.from_indices((anchor, positive, negative), num_images=3).num_positives
            2
        """
        return ListedPairs(indices, num_images, population=population)

    @staticmethod
    def from_positions(
        positions: Tensor,
        positive_radius: float,
        negative_radius: float,
        *,
        population: Population | None = None,
    ) -> Pairs:
        """Pairs from positions (N, D), for places that have no classes.

        Positive within ``positive_radius`` (inclusive), negative beyond ``negative_radius``, neither in between.
        """
        return PositionPairs(positions, positive_radius, negative_radius, population=population)

    @abstractmethod
    def block(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """How often images start..stop-1 are paired with each of the N: positives, negatives, (stop - start, N)."""

    def listed(self, positive: bool) -> Iterator[PairList]:
        """Every pair of one type, listed in chunks."""
        for start, stop in row_blocks(self.num_images):
            block = self.block(start, stop)[0 if positive else 1]
            rows, columns = block.triu(start + 1).nonzero(as_tuple=True)
            yield PairList(rows + start, columns, torch.ones_like(rows))

    def positive_sums(self, values: Tensor) -> Tensor:
        """For every image the sum of the rows of ``values`` (N, C) over its positive partners, (N, C)."""
        sums = torch.empty_like(values)
        for start, stop in row_blocks(self.num_images):
            sums[start:stop] = self.block(start, stop)[0].to(values.dtype) @ values
        return sums

    def with_population(self, population: Population) -> Pairs:
        """The same pairs, to be divided by other counts of positives and negatives.

        Example:
            >>> Pairs.from_labels([0, 0, 1]).with_population((10, 20)).num_negatives
            20
        """
        other = copy(self)
        other._set_population((self.num_positives, self.num_negatives), population)
        return other

    def with_sums(self, sums: PairSums) -> Pairs:
        """The same pairs, with the sums over them that would otherwise be searched for."""
        if not len(sums.active) == len(sums.class_of) == self.num_images:
            raise ValueError(
                f"the sums are over {len(sums.active)} images, and the pairs over {self.num_images}"
            )
        other = copy(self)
        other.sums = sums
        return other

    def _set_population(self, own: Population, population: Population | None) -> None:
        if population is not None:
            for name, total, counted in zip(("positive", "negative"), population, own, strict=True):
                if not total >= 0 or (total == 0 and counted > 0):
                    raise ValueError(
                        f"the population has {total} {name} pairs, but this set alone has {counted}: "
                        "pass the counts of the whole data set"
                    )
        self.num_positives, self.num_negatives = own if population is None else population


def row_blocks(num_images: int, elements: int = 1 << 20) -> Iterator[tuple[int, int]]:
    """Ranges of rows of an N x N matrix; a block of ``elements`` entries stays in the processor's cache."""
    size = max(1, elements // max(1, num_images))
    for start in range(0, num_images, size):
        yield start, min(start + size, num_images)


class LabelPairs(Pairs):
    """All pairs that labels imply; stores the labels only."""

    def __init__(self, labels: Any, *, population: Population | None = None) -> None:
        if not isinstance(labels, Tensor) and len(labels) and isinstance(labels[0], str):
            numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
            labels = [numbers[label] for label in labels]
        labels = torch.as_tensor(labels)
        if labels.numel() == 0:
            labels = labels.long()
        if labels.ndim != 1:
            raise ValueError(
                f"labels has shape {tuple(labels.shape)}, one label for each image is needed, shape (N,)"
            )
        if labels.is_floating_point() or labels.is_complex():
            raise TypeError(f"labels has dtype {labels.dtype}, integers are needed: use labels.long()")
        self.labels: Tensor = labels.detach()
        self.num_images, self.device = len(labels), labels.device
        _, self.class_of, self.class_sizes = torch.unique(
            self.labels, return_inverse=True, return_counts=True
        )
        positives = int((self.class_sizes * (self.class_sizes - 1) // 2).sum())
        own = (positives, self.num_images * (self.num_images - 1) // 2 - positives)
        self._set_population(own, population)

    def block(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        positive = self.class_of[start:stop, None] == self.class_of[None, :]
        negative = ~positive
        positive.diagonal(start).fill_(False)
        return positive, negative

    def members(self) -> Sequence[Tensor]:
        """The images of each class, in the order of ``class_sizes``."""
        return torch.split(torch.argsort(self.class_of, stable=True), self.class_sizes.tolist())

    def listed(self, positive: bool) -> Iterator[PairList]:
        # By classes only where whole rows would mostly be looked at in vain.
        if not positive or self.num_images <= 1024:
            yield from super().listed(positive)
            return
        for members in self.members():
            for start, stop in row_blocks(len(members)):
                rows, columns = torch.triu_indices(
                    stop - start, len(members), offset=start + 1, device=self.device
                )
                pair = members[torch.stack([rows + start, columns])]
                yield PairList(pair.amin(0), pair.amax(0), torch.ones_like(rows))

    def positive_sums(self, values: Tensor) -> Tensor:
        by_class = values.new_zeros(len(self.class_sizes), values.shape[1]).index_add_(
            0, self.class_of, values
        )
        return by_class[self.class_of] - values


class ListedPairs(Pairs):
    """Pairs that were listed one by one, repeats folded into counts."""

    def __init__(
        self, indices: Sequence[Tensor], num_images: int, *, population: Population | None = None
    ) -> None:
        indices = [torch.as_tensor(index) for index in indices]
        if len(indices) not in (3, 4):
            raise ValueError(
                f"{len(indices)} index tensors were given; (anchor, positive, negative) or "
                "(anchor, positive, anchor of the negative, negative) are needed"
            )
        check_same_device(**{f"index tensor {at}": index for at, index in enumerate(indices)})
        names = (
            ("anchor", "positive", "negative")
            if len(indices) == 3
            else ("anchor", "positive", "anchor2", "negative")
        )
        for name, index in zip(names, indices, strict=True):
            _check_index(name, index, num_images)
        self.num_images, self.device = num_images, indices[0].device
        negative_names = ("anchor", "negative") if len(indices) == 3 else ("anchor2", "negative")
        negative_anchor = indices[0] if len(indices) == 3 else indices[2]
        self._positive = _fold(("anchor", "positive"), indices[0], indices[1], num_images)
        self._negative = _fold(negative_names, negative_anchor, indices[-1], num_images)
        own = (int(self._positive.times.sum()), int(self._negative.times.sum()))
        self._set_population(own, population)

    def listed(self, positive: bool) -> Iterator[PairList]:
        yield self._positive if positive else self._negative

    def block(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self._count_block(self._positive, start, stop), self._count_block(self._negative, start, stop)

    def _count_block(self, pairs: PairList, start: int, stop: int) -> Tensor:
        counts = pairs.times.new_zeros(stop - start, self.num_images)
        for rows, columns in ((pairs.first, pairs.second), (pairs.second, pairs.first)):
            inside = (rows >= start) & (rows < stop)
            counts[rows[inside] - start, columns[inside]] = pairs.times[inside]
        return counts

    def positive_sums(self, values: Tensor) -> Tensor:
        first, second, count = self._positive
        return neighbour_sums(first, second, count.to(values.dtype), values)


def neighbour_sums(
    first: Tensor, second: Tensor, weight: Tensor, values: Tensor, chunk: int = 1 << 22
) -> Tensor:
    """Y @ values, (N, C), for the symmetric matrix Y that has ``weight`` (P,) at the pairs (first, second)."""
    sums = torch.zeros_like(values)
    size = max(1, chunk // max(1, values.shape[1]))
    for i, j, y in zip(first.split(size), second.split(size), weight.split(size), strict=True):
        sums.index_add_(0, i, y[:, None] * values[j])
        sums.index_add_(0, j, y[:, None] * values[i])
    return sums


class PositionPairs(Pairs):
    """All pairs that positions and two radii imply; stores the positions only."""

    def __init__(
        self,
        positions: Tensor,
        positive_radius: float,
        negative_radius: float,
        *,
        population: Population | None = None,
    ) -> None:
        check_floating("positions", positions)
        if positions.ndim != 2:
            raise ValueError(
                f"positions has shape {tuple(positions.shape)}, (N, D) is needed: one row for each image"
            )
        check_finite("positions", positions)
        if not 0 <= positive_radius <= negative_radius:
            raise ValueError(
                f"positive_radius is {positive_radius} and negative_radius {negative_radius}: "
                "0 <= positive_radius <= negative_radius is needed"
            )
        # float64, because map coordinates have 7 digits before the metre.
        self.positions = positions.detach().double()
        self.positive_radius = positive_radius
        self.negative_radius = negative_radius
        self.num_images, self.device = len(positions), positions.device
        self._set_population(self._count(), population)

    def block(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        # By differences, not by a matrix product, which would lose the digits that float64 keeps.
        distance = torch.cdist(
            self.positions[start:stop], self.positions, compute_mode="donot_use_mm_for_euclid_dist"
        )
        positive = distance <= self.positive_radius
        positive.diagonal(start).fill_(False)
        return positive, distance > self.negative_radius

    def _count(self) -> Population:
        positives = negatives = 0
        for start, stop in row_blocks(self.num_images):
            positive, negative = self.block(start, stop)
            positives += int(positive.sum())
            negatives += int(negative.sum())
        return positives // 2, negatives // 2


def _check_index(name: str, index: Tensor, num_images: int) -> None:
    if index.ndim != 1:
        raise ValueError(f"{name} has shape {tuple(index.shape)}, a list of indices is needed, shape (P,)")
    if index.numel() == 0:
        return
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {index.dtype}, integer indices are needed")
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= num_images:
        raise ValueError(
            f"{name} has the index {low if low < 0 else high}, but there are {num_images} images: 0 to {num_images - 1}"
        )


def _fold(names: tuple[str, str], one: Tensor, other: Tensor, num_images: int) -> PairList:
    """Unordered pairs with their counts from index tensors that may repeat a pair, in either order."""
    if len(one) != len(other):
        raise ValueError(
            f"{names[0]} has {len(one)} entries and {names[1]} has {len(other)}: they are read pairwise"
        )
    one, other = one.long(), other.long()
    same = (one == other).nonzero().flatten()
    if len(same):
        at = int(same[0])
        raise ValueError(
            f"{names[0]} and {names[1]} both are image {int(one[at])} at position {at}: no image is paired with itself"
        )
    keys, count = torch.unique(
        torch.minimum(one, other) * num_images + torch.maximum(one, other), return_counts=True
    )
    return PairList(keys // max(1, num_images), keys % max(1, num_images), count)
