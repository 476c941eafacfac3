"""The sums over all pairs of a data set: exact, or an estimate whose error is measured; resumed where interrupted.

The estimate (see `hessians.active_pairs`) is the mean of independent rounds. Pilot rounds, which are not part of it,
measure how much a round scatters, and so how many rounds bring the error of the curvature to half of what is allowed.
The error is that of the curvature's diagonal diag_kh = sum_n A_nk x_nh^2 in the l2 norm. It is measured in random
combinations of the columns x^2, which keep the norms of differences on average, so that no round needs a pass over
the features.
"""

from __future__ import annotations

import json
import logging
import math
import time
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from hessians import ContrastiveLoss
from hessians.active_pairs import ActiveSearch, Cells, Stratum
from hessians.checks import CurvatureWarning
from hessians.features import FeatureReader
from hessians.pairs import PairSums
from laplacian_metric.core import tensor_file
from laplacian_metric.core.artifact import ArtifactError
from laplacian_metric.core.parallel import gathered, share
from laplacian_metric.core.progress import track
from laplacian_metric.core.tensor_file import digest
from laplacian_metric.laplace.options import FitSettings, PairChoice

LOGGER = logging.getLogger(__name__)

EXACT_IMAGES = 1 << 16  # "auto" estimates beyond so many images
PARTNERS = 256  # that a round looks at for each image, about
ROUNDS_AT_ONCE = 4  # the number of rounds is a multiple of it
PILOT_ROUNDS = 4
MOST_ROUNDS = 64
COMBINATIONS = 16  # of the squared features, in which the error is measured
ROWS = 1 << 15
FEATURE_MEMORY = 64 << 20
SECONDS_BETWEEN_NOTES = 30.0
FILE = "pairs.safetensors"


def search_pairs(
    loss: ContrastiveLoss,
    embeddings: Tensor,
    labels: Tensor,
    features: Tensor,
    settings: FitSettings,
    *,
    bias: bool = True,
) -> tuple[PairSums, Tensor, float]:
    """Return the sums over all pairs of the images of all processes, for the images of this one.

    Beside them the labels of the images of all processes, and the error of the curvature's diagonal in the l2 norm: 0
    where every pair was looked at, NaN where it was not measured.

    Args:
        loss: with power 2.
        embeddings: u, (N, Z).
        labels: (N,).
        features: h, (N, H), in which the error of an estimate is measured.
        settings: of the fit.
        bias: whether the curvature has entries for the bias.

    Example:
        >>> from laplacian_metric.laplace.options import LamOptions
        >>> u, labels = torch.eye(3)[[0, 0, 1]], torch.tensor([0, 1, 1])
        >>> search_pairs(ContrastiveLoss(0.7), u, labels, u, FitSettings(LamOptions()))[0].active[:, 0]
        tensor([1., 1., 0.])
    """
    if settings.reduce is not None:
        # All processes draw the same, with the seed of the first.
        seed = settings.reduce(torch.tensor([settings.seed if share()[0] == 0 else 0]))
        settings = replace(settings, seed=int(seed))
    origin = None
    if loss.normalize:
        points, inverse = loss.on_sphere(embeddings)
    else:
        every, _ = gathered(embeddings.mean(0, keepdim=True) * len(embeddings), settings.reduce)
        count, _ = gathered(torch.tensor([len(embeddings)]), settings.reduce)
        origin = every.sum(0) / max(1, int(count.sum()))
        points, inverse = embeddings - origin, None
    points, start = gathered(points, settings.reduce)
    all_labels, _ = gathered(labels.to(points.device), settings.reduce)
    own = slice(start, start + len(labels))
    search = ActiveSearch(points, all_labels, loss.margin, sphere=loss.normalize, seed=settings.seed)
    class_of = search.class_of.long()
    choice = settings.options.pairs
    if choice is PairChoice.ESTIMATE or (choice is PairChoice.AUTO and len(points) > EXACT_IMAGES):
        combined = _combined(features, bias, settings.seed)
        sketch = _Sketch(
            loss,
            _type_weights(class_of, loss),
            points,
            None if inverse is None else gathered(inverse, settings.reduce)[0],
            gathered(combined, settings.reduce)[0],
        )
        active, error = _Estimate(search, settings, sketch).run()
    else:
        active, error = _exact(search, settings), 0.0
    active = active if settings.reduce is None else settings.reduce(active)
    classes = _class_sums(points, class_of)
    sums = PairSums(classes, class_of[own], active[own], loss.margin, origin)
    return sums, all_labels, error


def _class_sums(points: Tensor, class_of: Tensor) -> Tensor:
    """[1, z] summed over each class, (C, 1 + Z), in the dtype of the points."""
    count = int(class_of.max()) + 1 if len(class_of) else 0
    sums = torch.zeros(count, 1 + points.shape[1], dtype=torch.float64, device=points.device)
    for rows, classes in zip(points.split(ROWS), class_of.split(ROWS), strict=True):
        ones = torch.ones(len(rows), 1, dtype=torch.float64, device=points.device)
        sums.index_add_(0, classes, torch.cat([ones, rows.double()], dim=1))
    return sums.to(points.dtype)


def _type_weights(class_of: Tensor, loss: ContrastiveLoss) -> tuple[float, float]:
    """What one positive and one negative pair weigh."""
    sizes = torch.bincount(class_of).double()
    positives = float((sizes * (sizes - 1) / 2).sum())
    negatives = len(class_of) * (len(class_of) - 1) / 2 - positives
    return (
        2 * (1 - loss.negative_weight) / positives if positives else 0.0,
        2 * loss.negative_weight / negatives if negatives else 0.0,
    )


# --- exactly ---


def _exact(search: ActiveSearch, settings: FitSettings) -> Tensor:
    tiles = search.tiles()
    rows, classes = search.rows(tiles.order), search.class_of[tiles.order]
    note = _Note(settings, search, "exact, tiles to and fro")
    state = note.read()
    sums = state.get("sums", search.zeros())
    first = int(state.get("number", torch.zeros(())))
    rank, processes = share() if settings.reduce is not None else (0, 1)
    for tile in track(range(len(tiles.starts) - 1), "pairs", show=settings.progress):
        if tile < first or _process_of(tile, processes) != rank:
            continue
        search.add_tile(sums, rows, classes, tiles.starts[tile], tiles.starts[tile + 1])
        note.keep(sums=sums, number=torch.tensor(tile + 1))
    note.remove()
    del rows
    return search.in_order(sums, tiles.order)


def _process_of(tile: int, processes: int) -> int:
    """The process that computes a tile: 0, 1, ..., P - 1, P - 1, ..., 1, 0 and over again, as later tiles cost less."""
    place = tile % (2 * processes)
    return min(place, 2 * processes - 1 - place)


# --- estimated ---


@dataclass(frozen=True)
class _Sketch:
    """Random combinations (Z, 16) of the columns of a curvature's diagonal: linear in the sums of [1, z]."""

    loss: ContrastiveLoss
    weights: tuple[float, float]
    points: Tensor
    inverse: Tensor | None
    squares: Tensor  # (N, 16)

    def __call__(self, sums: Tensor, order: Tensor) -> Tensor:
        total = torch.zeros(
            self.points.shape[1], self.squares.shape[1], dtype=torch.float64, device=sums.device
        )
        for start in range(0, len(sums), ROWS):
            images = order[start : start + ROWS]
            inverse = None if self.inverse is None else self.inverse[images]
            term = self.loss.node_term(self.points[images], inverse, sums[start : start + ROWS])
            total += (term.T @ self.squares[images]).double()
        return total

    def of_active(self, sums: Tensor, order: Tensor) -> Tensor:
        """Of the active negatives' share, from the sums over them, in an order of the images."""
        return -self.weights[1] * self(sums, order)

    def of_positives(self, class_of: Tensor) -> Tensor:
        """Of the positives' share."""
        known = PairSums(_class_sums(self.points, class_of), class_of, self.points[:, :0], 0.0)
        order = torch.arange(len(class_of), device=class_of.device)
        return self.weights[0] * self(known.positive(self.points), order)


def _combined(features: Tensor, bias: bool, seed: int) -> Tensor:
    """Random signed sums of the columns of x^2, x = [h, 1], (N, 16)."""
    reader = FeatureReader(features, FEATURE_MEMORY)
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(2, (reader.width + 1, COMBINATIONS), generator=generator).to(reader.dtype) * 2 - 1
    signs = signs.to(features.device) / math.sqrt(COMBINATIONS)
    parts = [reader.read(i, j).square() @ signs[:-1] + int(bias) * signs[-1] for i, j in reader.blocks]
    return torch.cat(parts)


class _Estimate:
    """The rounds of an estimate, those of the pilot first.

    The processes form as many teams as divide both their number and that of the rounds, one at most for each of four
    rounds. A team computes whole rounds, whose images it alone has to shuffle; in a team each process has some strata.
    """

    def __init__(self, search: ActiveSearch, settings: FitSettings, sketch: _Sketch) -> None:
        self.search, self.settings, self.sketch = search, settings, sketch
        rank, processes = share() if settings.reduce is not None else (0, 1)
        self.teams = math.gcd(processes, ROUNDS_AT_ONCE)
        self.team, self.share = rank % self.teams, (rank // self.teams, processes // self.teams)
        self.cells: Cells = search.cells()
        self.strata: list[Stratum] = search.strata(self.cells, PARTNERS)
        self.scratch = search.zeros()

    def run(self) -> tuple[Tensor, float]:
        """This process's share of the sums (N, 1 + Z), and the error of the curvature's diagonal."""
        settings, search = self.settings, self.search
        note = _Note(
            settings, search, f"estimate {settings.tolerance} of {len(self.strata)} by {self.teams} teams"
        )
        state = note.read()
        sums = state.get("sums", search.zeros())
        sketches = list(state.get("sketches", torch.zeros(0, *self._shape())))
        rounds = int(state["rounds"]) if state else self._planned_rounds()
        if rounds == 0:  # the pilot says that all pairs are no more work
            return _exact(search, settings), 0.0
        for number in track(range(rounds), "pairs", show=settings.progress):
            if number < len(sketches):
                continue
            sketches.append(self._round(PILOT_ROUNDS + number, sums, 1 / rounds))
            note.keep(sums=sums, sketches=torch.stack(sketches), rounds=torch.tensor(rounds))
        note.remove()
        deviation = _scatter(self._added(torch.stack(sketches))) / math.sqrt(rounds)
        return sums, deviation

    def _shape(self) -> tuple[int, int]:
        return self.search.dim, COMBINATIONS

    def _round(self, number: int, sums: Tensor | None = None, scale: float = 1.0) -> Tensor:
        """Add a round to the sums; the sketch of this process's share of it, in float64 on the CPU."""
        if number % self.teams != self.team:
            return torch.zeros(self._shape(), dtype=torch.float64)
        self.scratch.zero_()
        order = self.search.add_round(self.scratch, self.cells, self.strata, number, share=self.share)
        if sums is not None:
            sums.index_add_(0, order, self.scratch, alpha=scale)
        return self.sketch.of_active(self.scratch, order).cpu()

    def _added(self, sketches: Tensor) -> Tensor:
        return sketches if self.settings.reduce is None else self.settings.reduce(sketches)

    def _planned_rounds(self) -> int:
        """How many rounds bring the error to half of the tolerance; 0 where all pairs are less work."""
        pilot = [self._round(number) for number in range(PILOT_ROUNDS)]
        sketches = self._added(torch.stack(pilot))
        size = float((self.sketch.of_positives(self.search.class_of.long()).cpu() + sketches.mean(0)).norm())
        if not size > 0:
            return ROUNDS_AT_ONCE
        relative = _scatter(sketches) / size
        wanted = math.ceil((2 * relative / self.settings.tolerance) ** 2 / ROUNDS_AT_ONCE) * ROUNDS_AT_ONCE
        wanted = max(ROUNDS_AT_ONCE, wanted)
        looked_at = sum(stratum.pairs for stratum in self.strata)
        if wanted * looked_at >= self.search.num_images**2 / 2:
            return 0 if self.search.num_images <= 4 * EXACT_IMAGES else min(wanted, MOST_ROUNDS)
        LOGGER.info("%d rounds of %.3g pairs each, of %.3g", wanted, looked_at, self.search.num_images**2 / 2)
        return min(wanted, MOST_ROUNDS)


def _scatter(sketches: Tensor) -> float:
    """The standard deviation of one round, in the l2 norm, from sketches (R, Z, 16)."""
    deviations = sketches - sketches.mean(0)
    return math.sqrt(float(deviations.square().sum()) / max(1, len(sketches) - 1))


def warn_if_inexact(error: float, size: float, tolerance: float) -> None:
    """Say so where an estimate has missed its tolerance."""
    if error > tolerance * size:
        warnings.warn(
            f"the estimate of the curvature has a relative error of {error / size if size else math.inf:.2g}, and "
            f"{tolerance:g} is allowed: positives and negatives nearly cancel, or few pairs are active; use "
            'pairs="exact", or allow more with pair_tolerance=',
            CurvatureWarning,
            stacklevel=3,
        )


@dataclass
class _Note:
    """What a search has done so far, in a file."""

    settings: FitSettings
    search: ActiveSearch
    kind: str
    _written: float = field(default_factory=time.monotonic)
    _digest: str = ""

    @property
    def path(self) -> Path | None:
        return None if self.settings.folder is None else self.settings.folder / FILE

    def read(self) -> dict[str, Tensor]:
        """The tensors of an interrupted search of the same pairs; empty where there is none in each process."""
        state: dict[str, Tensor] = {}
        if self.path is not None:
            try:
                tensors, notes = tensor_file.load(self.path)
                if json.loads(notes.get("search", "null")) == self._identity():
                    state = {name: tensor.to(self.search.points.device) for name, tensor in tensors.items()}
            except ArtifactError:
                pass
        if self.settings.reduce is not None:
            agreed = torch.tensor([1, int(bool(state)), int(state.get("rounds", torch.zeros(())))])
            count, ready, rounds = self.settings.reduce(agreed).tolist()
            if ready != count or rounds != count * int(agreed[2]):
                state = {}
                # All of them, or processes would wait for sums of the pilot that others do not compute.
        if state:
            LOGGER.info("the interrupted search for pairs resumes")
        return state

    def keep(self, **tensors: Tensor) -> None:
        """Write the tensors, unless that was done a moment ago."""
        if self.path is None or time.monotonic() - self._written < SECONDS_BETWEEN_NOTES:
            return
        tensor_file.save(self.path, tensors, {"search": json.dumps(self._identity())})
        self._written = time.monotonic()

    def remove(self) -> None:
        """Nothing is left to go on with."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _identity(self) -> list[str]:
        """What the search depends on."""
        search = self.search
        if not self._digest:
            settings = {
                "kind": self.kind,
                "margin": search.margin,
                "sphere": search.sphere,
                "seed": search.seed,
            }
            self._digest = digest({"points": search.points, "class_of": search.class_of}, settings)
        return [self._digest, *map(str, share() if self.settings.reduce is not None else (0, 1))]
