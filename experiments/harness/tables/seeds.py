"""The seeds of one cell side by side: done, failed and missing ones, their spread, and where they come from."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.harness.results import Result

# Scores that need no method, as result files name them, and as tables do.
TRIVIAL = {
    "feature norm": "feature norm",
    "embedding norm": "embedding norm, 1/|u|",
    "nearest distance": "distance to the nearest training image",
}
RETIRED = "confidence"  # a score of the method "laplace" that this version does not have
_NAMED = 3  # commands that a sentence names; the record beside the table has all


@dataclass(frozen=True)
class Cell:
    """The seeds of one cell: those that are done, those that failed, and those that are not there.

    Example:
        >>> failed = Result(cell="mnist/pfe", seed=0, error="diverged")
        >>> cell = Cell("mnist/pfe", done=(), failed=(failed,), missing=(1,))
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

    def text(self, digits: int = 3) -> str:
        """Return the mean, with the standard deviation where there are several numbers.

        Example:
            >>> spread([0.85]).text(), spread([0.85, 0.86]).text()
            ('0.850', '0.855 ± 0.007')
        """
        mean = f"{self.mean:.{digits}f}"
        return mean if self.number < 2 else f"{mean} ± {self.deviation:.{digits}f}"

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
    defined = [float(value) for value in values if math.isfinite(value)]
    number = len(defined)
    if number == 0:
        return Spread(math.nan, math.nan, 0)
    mean = math.fsum(defined) / number
    if number == 1:
        return Spread(mean, math.nan, 1)
    squares = math.fsum((value - mean) ** 2 for value in defined)
    return Spread(mean, math.sqrt(squares / (number - 1)), number)


def pick(results: Iterable[Result], name: str, seeds: Sequence[int]) -> Cell:
    """One cell with the given seeds out of all results; it may be there in part or not at all."""
    mine = {result.seed: result for result in results if result.cell == name and result.seed in seeds}
    chosen = [mine[seed] for seed in seeds if seed in mine]
    return Cell(
        name,
        tuple(result for result in chosen if result.done),
        tuple(result for result in chosen if not result.done),
        tuple(seed for seed in seeds if seed not in mine),
    )


def cells_record(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """For each seed of each cell its commit and command, and why it failed; missing seeds too."""
    rows: list[dict[str, Any]] = []
    for cell in cells:
        for result in sorted((*cell.done, *cell.failed), key=lambda one: one.seed):
            row = {"cell": cell.name, "seed": result.seed, "status": "done" if result.done else "failed"}
            row |= {"commit": result.commit, "command": tidy(result.command, 1000)}
            rows.append(row if result.error is None else row | {"error": tidy(result.error)})
        rows += [{"cell": cell.name, "seed": seed, "status": "missing"} for seed in cell.missing]
    return rows


def cells_sentence(cells: Iterable[Cell]) -> str:
    """Return the commits that made the cells, their commands if they are few, and which are not made again.

    Example:
        >>> cell = Cell("a", (Result(cell="a", seed=0, commit="abc", command="python -m x"),))
        >>> cells_sentence([cell])
        'Cells made at commit abc by `python -m x`.'
    """
    results = [result for cell in cells for result in (*cell.done, *cell.failed)]
    if not results:
        return "No cell has been made yet."
    commits = sorted({result.commit for result in results})
    commands = sorted({tidy(result.command, 1000) for result in results})
    plural = "s" if len(commits) > 1 else ""
    text = f"Cells made at commit{plural} {', '.join(commits)}"
    named = ", ".join(f"`{command}`" for command in commands)
    if len(commands) > _NAMED:
        named = f"{len(commands)} commands, which are in the JSON file of the same name"
    retired = dict.fromkeys(
        f"`{one.cell}`" for one in results if one.config.get("method", {}).get("score") == RETIRED
    )
    left = (
        f" The option of {', '.join(retired)} has left: these numbers are not made again." if retired else ""
    )
    return f"{text} by {named}.{left}"
