"""Results: what one configuration of an experiment, a cell, gave with one seed.

Cells that failed, and seeds that are missing,
are kept beside those that are done, so that whoever shows the results can say so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from laplacian_metric.report.verification import Verification

Array = npt.NDArray[np.float64]

OWN = "own"
TRIVIAL = ("feature norm", "embedding norm", "nearest distance")


@dataclass(frozen=True)
class Epoch:
    """What the training loop kept of one epoch: the mean loss, and metrics of the validation images by name.

    `precision` is what the network computed in; None in files that do not say it.
    """

    epoch: int
    loss: float
    validation: Mapping[str, float]
    precision: str | None = None


@dataclass(frozen=True)
class Training:
    """The epochs in order, and which of them was kept."""

    history: tuple[Epoch, ...]
    best_epoch: int | None


@dataclass(frozen=True)
class Score:
    """What an uncertainty is worth: its metrics by name, and for each set of strangers those of telling them."""

    values: Mapping[str, float]
    out: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Bin:
    """The queries with a confidence between `low` and `high`; NaN where there are none."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """The expected calibration error of retrieval and the bins that it is made of."""

    ece: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True, eq=False)
class Roc:
    """A curve in both rates (K,)."""

    false_positive_rate: Array
    true_positive_rate: Array


@dataclass(frozen=True, eq=False)
class Cloud:
    """Embedded images: points (n, Z), covariances (n, Z, Z) or None, kappa (n,) or None, labels (n,) or None."""

    points: Array
    covariances: Array | None
    kappa: Array | None
    labels: npt.NDArray[np.int64] | None


@dataclass(frozen=True, eq=False)
class Latent:
    """Some of the test images in two or three dimensions, and some of each set of strangers."""

    test: Cloud
    out: Mapping[str, Cloud]


@dataclass(frozen=True)
class Extremes:
    """Positions, in the order of the data set, of the images with the lowest and the highest uncertainty."""

    lowest: tuple[int, ...]
    highest: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Result:
    """One cell with one seed. `error` says why a failed one has no numbers; numbers that are undefined are NaN."""

    cell: str
    seed: int
    error: str | None = None
    commit: str = "unknown"
    command: str = "unknown"
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    training: Training | None = None
    retrieval: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    scores: Mapping[str, Score] = field(default_factory=dict)
    calibration: Calibration | None = None
    roc: Mapping[str, Roc] = field(default_factory=dict)
    sparsification: Mapping[str, Array] = field(default_factory=dict)
    extremes: Mapping[str, Extremes] = field(default_factory=dict)
    latent: Latent | None = None
    verification: Mapping[str, Verification] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether there are numbers."""
        return self.error is None


@dataclass(frozen=True)
class Cell:
    """The seeds of one cell: those that are done, those that failed, and those that are not there.

    Example:
        >>> cell = Cell("mnist/pfe", done=(), failed=(Result("mnist/pfe", 0, error="diverged"),), missing=(1,))
        >>> cell.said()
        'seed 0 failed: diverged; seed 1 is missing'
    """

    name: str
    done: tuple[Result, ...]
    failed: tuple[Result, ...] = ()
    missing: tuple[int, ...] = ()

    @property
    def expected(self) -> int:
        """How many seeds there should be."""
        return len(self.done) + len(self.failed) + len(self.missing)

    def said(self) -> str:
        """What is not there and why; empty if all is."""
        reasons: dict[str, list[int]] = {}
        for result in self.failed:
            reasons.setdefault(tidy(result.error or ""), []).append(result.seed)
        parts = [f"{seeds_in_words(seeds)} failed: {reason}" for reason, seeds in reasons.items()]
        if self.missing and not self.done and not self.failed:
            parts.append("no result yet")
        elif self.missing:
            parts.append(
                f"{seeds_in_words(self.missing)} {'is' if len(self.missing) == 1 else 'are'} missing"
            )
        return "; ".join(parts)


def seeds_in_words(numbers: Sequence[int]) -> str:
    """Example:
    >>> seeds_in_words([1]), seeds_in_words([0, 2])
    ('seed 1', 'seeds 0, 2')
    """
    return f"seed{'s' if len(numbers) > 1 else ''} {', '.join(str(number) for number in numbers)}"


def tidy(error: str, length: int = 200) -> str:
    """An error in one line without folders, which are nobody's business but its own machine's.

    Example:
        >>> tidy("FileNotFoundError: /data/of/somebody/images.npz\\nis not there")
        'FileNotFoundError: images.npz is not there'
    """
    line = re.sub(r"(?<![\w.:/])/(?:[\w.+~-]+/)+", "", " ".join(error.replace("`", "'").split()))
    return line if len(line) <= length else line[: length - 3] + "..."


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1) of a number over seeds; NaN where there are too few."""

    mean: float
    deviation: float
    number: int

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """Student's interval of the mean; None of fewer than two seeds.

        Example:
            >>> low, high = spread([0.81, 0.83, 0.85]).interval()
            >>> round(low, 4), round(high, 4)
            (0.7803, 0.8797)
        """
        from scipy.stats import t  # imported here, because reading results needs no scipy

        if self.number < 2:
            return None
        reach = float(t.ppf((1 + level) / 2, self.number - 1)) * self.deviation / math.sqrt(self.number)
        return self.mean - reach, self.mean + reach


def spread(values: Iterable[float]) -> Spread:
    """The spread of those values that are defined.

    Example:
        >>> spread([1.0, 2.0, 3.0, float("nan")])
        Spread(mean=2.0, deviation=1.0, number=3)
    """
    known = [float(value) for value in values if math.isfinite(value)]
    number = len(known)
    if number == 0:
        return Spread(math.nan, math.nan, 0)
    mean = math.fsum(known) / number
    if number == 1:
        return Spread(mean, math.nan, 1)
    squares = math.fsum((value - mean) ** 2 for value in known)
    return Spread(mean, math.sqrt(squares / (number - 1)), number)


def group(results: Iterable[Result], seeds: Sequence[int] | None = None) -> dict[str, Cell]:
    """The results by cell; `seeds` are those that each should have, by default those that any has.

    Example:
        >>> cells = group([Result("a", 0), Result("a", 1), Result("b", 0)])
        >>> len(cells["a"].done), cells["b"].missing
        (2, (1,))
    """
    every = sorted(results, key=lambda result: (result.cell, result.seed))
    wanted = sorted({result.seed for result in every} if seeds is None else set(seeds))
    return {name: pick(every, name, wanted) for name in dict.fromkeys(result.cell for result in every)}


def pick(results: Iterable[Result], name: str, seeds: Sequence[int]) -> Cell:
    """One cell with the given seeds out of all results; it may be there in part or not at all."""
    mine = {result.seed: result for result in results if result.cell == name and result.seed in seeds}
    found = [mine[seed] for seed in seeds if seed in mine]
    return Cell(
        name,
        tuple(result for result in found if result.done),
        tuple(result for result in found if not result.done),
        tuple(seed for seed in seeds if seed not in mine),
    )
