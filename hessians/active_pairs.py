r"""Sums over the active negatives of very many images: exactly, by pruning, or by an unbiased estimate.

All that the "fixed" curvature, the loss and its gradient need to know of the negative pairs are, for each image n,

    s_n = sum over m of [1, z_m],    m of another class and |z_n - z_m| < margin,

the number of its active negatives and the sum of their points, (N, 1 + Z).

Exactly: the images are cut into tiles of neighbours. By the triangle inequality no image further from a tile's centre
than its radius and the margin has an active negative in it; on the sphere this is said of angles. What remains is
computed, each pair once.

Estimated: the images are cut into cells of neighbours, and the pairs into strata (c, d) by the cells of both images.
In a round the images of each cell are shuffled and cut into g groups, and of the g cyclic shifts between the groups of
c and those of d some are drawn at random: each pair belongs to one shift, so that g/shifts times what they add up to
is unbiased. All images take part in equally many pairs, so that the differences between images do not add to the
error, and strata that have more active pairs get a larger share of the shifts. Strata that the triangle inequality
excludes are left out, which is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

TILE = 512
COLUMNS = 2048
BLOCK = 1 << 16  # images that are copied at a time
GROUP = 64  # images of a group in the estimate, where that many of a stratum are to be looked at
SMALLEST_GROUP = 8
MOST_CELLS = 16
PILOT = 64  # images of each cell that tell how many pairs of a stratum are active
LLOYD_STEPS = 4
SAMPLE_PER_CELL = 64


class Stratum(NamedTuple):
    """Pairs of the images of two cells; in a round ``shifts`` of ``groups`` cyclic shifts are drawn."""

    first: int
    second: int
    groups: int
    shifts: int
    pairs: int  # that are looked at in a round


class Cells(NamedTuple):
    """A partition: ``order`` (N,) lists the images cell by cell; cell c is order[starts[c]:starts[c + 1]]."""

    order: Tensor
    starts: list[int]


class ActiveSearch:
    """Finds the active negatives of images at points z (N, Z), unit rows unless ``sphere`` is False.

    Args:
        points: z, (N, Z).
        labels: (N,), integers.
        margin: two images of different labels are active where |z_i - z_j| is less.
        sphere: whether the points are unit vectors.
        seed: of the cells, and with the number of a round of its shifts: equal seeds give equal results.
        cells: how many; by default one for each 4,096 images, and at most 16.

    Example:
        >>> points = torch.eye(3)[[0, 0, 1]]
        >>> search = ActiveSearch(points, torch.tensor([0, 1, 1]), margin=0.7)
        >>> search.exact()[:, 0]
        tensor([1., 1., 0.])
    """

    def __init__(
        self,
        points: Tensor,
        labels: Tensor,
        margin: float,
        *,
        sphere: bool = True,
        seed: int = 0,
        cells: int | None = None,
    ) -> None:
        if points.ndim != 2 or labels.shape != points.shape[:1]:
            raise ValueError(
                f"points has shape {tuple(points.shape)} and labels {tuple(labels.shape)}: (N, Z) and (N,) are needed"
            )
        self.points = points
        self.margin = margin
        self.sphere = sphere
        self.seed = seed
        self.num_images, self.dim = points.shape
        _, self.class_of = torch.unique(labels, return_inverse=True)
        self.class_of = self.class_of.to(torch.int32)
        count = max(1, min(MOST_CELLS, self.num_images // 4096)) if cells is None else cells
        self._cells = count
        self._limit = -(margin**2) / 2
        self._slack: float = 4 * torch.finfo(points.dtype).eps ** 0.5

    # --- exactly ---

    def exact(self) -> Tensor:
        """s, (N, 1 + Z)."""
        tiles = self.tiles()
        sums = self.zeros()
        rows, classes = self.rows(tiles.order), self.class_of[tiles.order]
        for tile in range(len(tiles.starts) - 1):
            self.add_tile(sums, rows, classes, tiles.starts[tile], tiles.starts[tile + 1])
        return self.in_order(sums, tiles.order)

    def tiles(self) -> Cells:
        """The images in the order of `add_tile`, cut into tiles of at most 512 neighbours."""
        cells = _partition(self.points, max(1, self.num_images // TILE), self.seed)
        starts = [0]
        for start, stop in zip(cells.starts, cells.starts[1:], strict=False):
            # Images of a class lie together, so that most tiles have one class.
            part = cells.order[start:stop]
            cells.order[start:stop] = part[torch.argsort(self.class_of[part], stable=True)]
            starts.extend(range(start + TILE, stop, TILE))
            if stop > start:
                starts.append(stop)
        return Cells(cells.order, starts)

    def add_tile(self, sums: Tensor, rows: Tensor, classes: Tensor, start: int, stop: int) -> None:
        """Add the active pairs of the images start..stop-1 among themselves and with all that come after them.

        ``sums`` (N, 1 + Z), ``rows`` and ``classes`` are in the order of the tiles.
        """
        tile, tile_classes = rows[start:stop], classes[start:stop]
        single = bool((tile_classes == tile_classes[0]).all())
        flipped = _flipped(tile)
        if not single:
            self._add(sums, None, flipped, tile, tile_classes, slice(start, stop), rows, classes)
        near = self._near(tile, rows[stop:])
        if single:
            near &= classes[stop:] != tile_classes[0]
        for chunk in (stop + near.nonzero().flatten()).split(COLUMNS):
            self._add(sums, chunk, flipped, tile, tile_classes, slice(start, stop), rows, classes, single)

    def _add(
        self,
        sums: Tensor,
        others: Tensor | None,
        flipped: Tensor,
        tile: Tensor,
        tile_classes: Tensor,
        place: slice,
        rows: Tensor,
        classes: Tensor,
        different: bool = False,
    ) -> None:
        """Add the pairs of a tile with ``others``, or with itself; ``different`` says that no two share a class."""
        columns = tile if others is None else rows[others]
        active = torch.mm(flipped, columns.T)
        if others is not None:
            hit = active.amax(0) > self._limit
            if int(hit.sum()) < len(hit) // 2:
                others, columns, active = others[hit], columns[hit], active[:, hit]
            if not len(columns):
                return
        active = active.gt_(self._limit)
        if not different:
            other_classes = tile_classes if others is None else classes[others]
            active.masked_fill_(tile_classes[:, None] == other_classes, 0)
        sums[place] += active @ columns[:, :-1]
        if others is not None:
            sums.index_add_(0, others, active.T @ tile[:, :-1])

    def _near(self, tile: Tensor, rows: Tensor) -> Tensor:
        """Which rows (n, 2 + Z) may lie within the margin of a tile's, (n,)."""
        if not len(rows):
            return torch.zeros(0, dtype=torch.bool, device=rows.device)
        centre, radius = self._ball(tile)
        return self._distances(rows, centre) <= radius + self._reach()

    def _reach(self) -> float:
        """The margin as `_distances` measures it, with slack for rounding."""
        if self.sphere:
            return 2 * math.asin(min(1.0, self.margin / 2)) + 2 * self._slack
        largest = float(self.points.abs().max()) if len(self.points) else 0.0
        return self.margin + 2 * self._slack * largest

    def _ball(self, rows: Tensor) -> tuple[Tensor, float]:
        """The centre of points, and how far they are from it."""
        centre = rows[:, 1:-1].mean(0)
        if self.sphere:
            centre = centre / torch.linalg.vector_norm(centre).clamp(min=torch.finfo(centre.dtype).tiny)
        return centre, float(self._distances(rows, centre).max())

    def _distances(self, rows: Tensor, centre: Tensor) -> Tensor:
        """Angles on the sphere, else distances, to a centre, (n,)."""
        products = rows[:, 1:-1] @ centre
        if self.sphere:
            return products.clamp(-1, 1).arccos()
        return (2 * (rows[:, -1] - products) + centre.square().sum()).clamp(min=0).sqrt()

    # --- estimated ---

    def cells(self) -> Cells:
        """The cells of the estimate."""
        return _partition(self.points, self._cells, self.seed)

    def strata(self, cells: Cells, partners: int) -> list[Stratum]:
        """What a round looks at: about ``partners`` partners of each image, more where more pairs are active."""
        sizes = [stop - start for start, stop in zip(cells.starts, cells.starts[1:], strict=False)]
        generator = torch.Generator().manual_seed(self.seed + 1)
        balls, chosen = [], []
        for start, size in zip(cells.starts, sizes, strict=False):
            members = cells.order[start : start + size]
            balls.append(self._ball(self.rows(members)))
            picked = torch.randint(size, (PILOT,), generator=generator)
            chosen.append(members[picked.to(members.device)])
        pilot = [self.rows(members) for members in chosen]
        candidates: list[tuple[int, int, float]] = []
        for c, d in itertools.combinations_with_replacement(range(len(sizes)), 2):
            if c == d or not self._apart(balls[c], balls[d]):
                hits = torch.mm(_flipped(pilot[c]), pilot[d].T) > self._limit
                hits &= self.class_of[chosen[c]][:, None] != self.class_of[chosen[d]]
                candidates.append((c, d, (float(hits.sum()) + 1) / (hits.numel() + 1)))
        return _allocated(candidates, sizes, partners * self.num_images)

    def _apart(self, one: tuple[Tensor, float], other: tuple[Tensor, float]) -> bool:
        """Whether no point of one ball is within the margin of one of the other."""
        if self.sphere:
            between = math.acos(max(-1.0, min(1.0, float(one[0] @ other[0]))))
        else:
            between = float(torch.linalg.vector_norm(one[0] - other[0]))
        return between > one[1] + other[1] + self._reach()

    def shuffled(self, cells: Cells, number: int) -> Tensor:
        """The images cell by cell, those of a cell in the random order of a round, (N,)."""
        generator = torch.Generator().manual_seed(_mixed(self.seed, number))
        keys = torch.rand(self.num_images, generator=generator, dtype=torch.float64)
        for cell, (start, stop) in enumerate(zip(cells.starts, cells.starts[1:], strict=False)):
            keys[start:stop] += 2 * cell
        return cells.order[torch.argsort(keys).to(cells.order.device)]

    def add_round(
        self,
        sums: Tensor,
        cells: Cells,
        strata: Sequence[Stratum],
        number: int,
        *,
        share: tuple[int, int] = (0, 1),
    ) -> Tensor:
        """Add the estimate of a round to ``sums`` (N, 1 + Z), in an order of the images (N,) that is returned.

        ``share`` (rank, processes) takes every so-manyth stratum only: those of all ranks add up to the round.
        """
        order = self.shuffled(cells, number)
        rows, classes = self.rows(order), self.class_of[order]
        generator = torch.Generator().manual_seed(_mixed(self.seed, -1 - number))
        for at, stratum in enumerate(strata):
            shifts = torch.randperm(stratum.groups, generator=generator)[: stratum.shifts].tolist()
            if at % share[1] == share[0]:
                weight = stratum.groups / stratum.shifts
                for shift in shifts:
                    self._add_shift(sums, rows, classes, cells.starts, stratum, shift, weight)
        return order

    def _add_shift(
        self,
        sums: Tensor,
        rows: Tensor,
        classes: Tensor,
        starts: list[int],
        stratum: Stratum,
        shift: int,
        weight: float,
    ) -> None:
        """Add the pairs of the groups a of the first and a + shift of the second cell, for all a."""
        groups = stratum.groups
        first = slice(starts[stratum.first], starts[stratum.first + 1])
        second = slice(starts[stratum.second], starts[stratum.second + 1])
        one, other = _grouped(rows[first], groups), _grouped(rows[second], groups).roll(-shift, 0)
        one_classes = _grouped(classes[first], groups)
        other_classes = _grouped(classes[second], groups).roll(-shift, 0)
        # Rows that fill up a group are 0: they count nothing, whether they are active or not.
        active = torch.bmm(_flipped(one), other.mT).gt_(self._limit)
        active.masked_fill_(one_classes[:, :, None] == other_classes[:, None, :], 0)
        partners = torch.bmm(active, other[..., :-1]).flatten(0, 1)
        sums[first].add_(partners[: first.stop - first.start], alpha=weight)
        if stratum.first != stratum.second:
            partners = torch.bmm(active.mT, one[..., :-1]).roll(shift, 0).flatten(0, 1)
            sums[second].add_(partners[: second.stop - second.start], alpha=weight)

    # --- rows ---

    def zeros(self) -> Tensor:
        """Nothing yet, (N, 1 + Z)."""
        return self.points.new_zeros(self.num_images, 1 + self.dim)

    def rows(self, order: Tensor) -> Tensor:
        """[1, z, |z|^2/2] of the images in an order, (n, 2 + Z)."""
        rows = self.points.new_ones(len(order), self.dim + 2)
        for into, images in zip(rows.split(BLOCK), order.split(BLOCK), strict=True):
            block = self.points[images]
            into[:, 1:-1], into[:, -1] = block, block.square().sum(1) / 2
        return rows

    def in_order(self, sums: Tensor, order: Tensor) -> Tensor:
        """Sums in the order of the images from sums in another order."""
        result = torch.empty_like(sums)
        result[order] = sums
        return result


def _flipped(rows: Tensor) -> Tensor:
    """[-|z|^2/2, z, -1], whose product with [1, z', |z'|^2/2] is -|z - z'|^2/2."""
    return torch.cat([-rows[..., -1:], rows[..., 1:-1], -rows[..., :1]], dim=-1)


def _grouped(rows: Tensor, groups: int) -> Tensor:
    """Rows (n, ...) in groups of equal size (groups, ceil(n/groups), ...), filled up with zeros."""
    size = -(-len(rows) // groups)
    if size * groups != len(rows):
        rows = torch.cat([rows, rows.new_zeros(size * groups - len(rows), *rows.shape[1:])])
    return rows.view(groups, size, *rows.shape[1:])


def _mixed(seed: int, number: int) -> int:
    """A seed for each number, far from those of other seeds."""
    return (seed * 0x9E3779B97F4A7C15 + (number + 1) * 0xBF58476D1CE4E5B9) % (1 << 63)


def _partition(points: Tensor, count: int, seed: int) -> Cells:
    """About ``count`` cells of neighbouring points, by some steps of k-means on a sample."""
    num = len(points)
    if count <= 1 or num <= count:
        return Cells(torch.arange(num, device=points.device), [0, num])
    generator = torch.Generator().manual_seed(seed)
    sample = points[torch.randperm(num, generator=generator)[: SAMPLE_PER_CELL * count].to(points.device)]
    centres = sample[:count].clone()
    for _ in range(LLOYD_STEPS):
        cell = _nearest(sample, centres)
        sizes = torch.bincount(cell, minlength=count).to(points.dtype)
        moved = torch.zeros_like(centres).index_add_(0, cell, sample)
        centres = torch.where(sizes[:, None] > 0, moved / sizes.clamp(min=1)[:, None], centres)
    cell = _nearest(points, centres)
    starts = [0, *torch.bincount(cell).cumsum(0).unique().tolist()]  # cells without an image are left out
    return Cells(torch.argsort(cell, stable=True), starts)


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each point, (N,)."""
    half = centres.square().sum(1) / 2
    at_once = max(1, (1 << 21) // len(centres))
    return torch.cat(
        [torch.addmm(half, part, centres.T, alpha=-1).argmin(1) for part in points.split(at_once)]
    )


def _allocated(candidates: list[tuple[int, int, float]], sizes: list[int], budget: int) -> list[Stratum]:
    """Groups and shifts of each stratum: the share that is looked at grows as the root of the active share."""
    counts = [sizes[c] * sizes[d] for c, d, _ in candidates]
    roots = [math.sqrt(active) for _, _, active in candidates]
    low, high = 0.0, max((1 / root for root in roots), default=1.0)
    for _ in range(40):
        factor = (low + high) / 2
        total = sum(count * min(1.0, factor * root) for count, root in zip(counts, roots, strict=True))
        low, high = (factor, high) if total < budget else (low, factor)
    strata = []
    for (c, d, _), count, root in zip(candidates, counts, roots, strict=True):
        share, fewest = min(1.0, high * root), min(sizes[c], sizes[d])
        groups = max(1, min(max(fewest // GROUP, math.ceil(1 / share)), fewest // SMALLEST_GROUP))
        shifts = max(1, min(groups, round(share * groups)))
        strata.append(Stratum(c, d, groups, shifts, count * shifts // groups))
    # The largest first, so that many processes get about equal shares.
    return sorted(strata, key=lambda stratum: (-stratum.pairs, stratum.first, stratum.second))
