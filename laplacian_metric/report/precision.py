"""In which precision networks were trained, where a table has both: a difference may come from that alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from laplacian_metric.report.results import Cell, Result, seeds_in_words

FLOAT32, BFLOAT16 = "float32", "bfloat16"


class Precisions:
    """In which precision the network of each result was trained.

    A cell may ask for bfloat16; a processor without instructions for it trains in float32 all the same, and the result
    file has which it was. Files without that are from before there was the choice: their networks computed as asked.

    Args:
        results: all that are known, since a cell may stand on the network of another.
    """

    def __init__(self, results: Iterable[Result]) -> None:
        self._results = {(result.cell, result.seed): result for result in results}

    def of(self, result: Result) -> str | None:
        """Of the network that the result is about; None where its file, or that of the cell it stands on, is not there.

        Example:
            >>> asked = {"training": {"precision": "bfloat16"}}
            >>> here = Result("a", 0, config=asked, environment={"bfloat16": False})
            >>> there = Result("a", 1, config=asked, environment={"bfloat16": True})
            >>> head = Result("b", 1, config={"base": "a"})
            >>> precisions = Precisions([here, there, head])
            >>> precisions.of(here), precisions.of(there), precisions.of(head)
            ('float32', 'bfloat16', 'bfloat16')
        """
        passed: set[str] = set()
        while base := result.config.get("base"):
            if base in passed or (base, result.seed) not in self._results:
                return None
            passed.add(base)
            result = self._results[base, result.seed]
        training = result.config.get("training")
        if not isinstance(training, Mapping):
            return None
        asked = str(training.get("precision", FLOAT32))
        return FLOAT32 if asked == BFLOAT16 and result.environment.get(BFLOAT16) is False else asked

    def sentences(self, cells: Iterable[Cell]) -> list[str]:
        """What has to be said below a table of these cells: nothing where all networks were trained alike."""
        found: dict[str, dict[str, list[int]]] = {}
        for cell in cells:
            for result in cell.done:
                precision = self.of(result)
                if precision is not None:
                    found.setdefault(precision, {}).setdefault(cell.name, []).append(result.seed)
        if len(found) < 2:
            return []
        # The fewer are named; what both have in common needs no name.
        named = min(found, key=lambda precision: (sum(map(len, found[precision].values())), precision))
        others = " or ".join(sorted(set(found) - {named}))
        return [f"Trained in {named}, not in {others} like the others: {_by_seeds(found[named])}."]

    def unlike(self, before: Cell, after: Cell) -> list[int]:
        """The seeds whose networks were trained in one precision in one cell, and in another in the other."""
        first = {result.seed: self.of(result) for result in before.done}
        second = {result.seed: self.of(result) for result in after.done}
        return [
            seed
            for seed in first
            if seed in second and None not in (pair := {first[seed], second[seed]}) and len(pair) > 1
        ]


def _by_seeds(cells: Mapping[str, Sequence[int]]) -> str:
    """Cells with the same seeds together.

    Example:
        >>> _by_seeds({"a": [1], "b": [0, 1], "c": [1]})
        '`a`, `c` (seed 1); `b` (seeds 0, 1)'
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, seeds in cells.items():
        groups.setdefault(tuple(seeds), []).append(f"`{name}`")
    return "; ".join(f"{', '.join(names)} ({seeds_in_words(seeds)})" for seeds, names in groups.items())
