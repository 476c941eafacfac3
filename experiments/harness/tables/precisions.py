"""In which precision networks were trained, where a table has both: a difference may come from that alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from experiments.harness.results import Result
from experiments.harness.tables.seeds import Cell, seeds_in_words
from laplacian_metric.core.method import Method, Start
from laplacian_metric.encoder.precision import Precision
from laplacian_metric.methods import find, names


class Precisions:
    """In which precision the networks of each result were trained.

    A cell may ask for bfloat16; a processor without instructions for it trains in float32 all the same, and the epochs
    of a result say which it was. Those that do not are older: then the machine that wrote the result tells, or, where
    that is not told either, the networks computed as asked.

    Args:
        results: all that are known, since a cell may stand on the networks of another.
    """

    def __init__(self, results: Iterable[Result]) -> None:
        self._results = {(result.cell, result.seed): result for result in results}

    def of(self, result: Result) -> str | None:
        """Of the networks that the result is about; None where the file of one of them is not there.

        Example:
            >>> bfloat16 = {"training": {"precision": "bfloat16"}}
            >>> here = Result(cell="a", seed=0, config=bfloat16, environment={"bfloat16": False})
            >>> there = Result(cell="a", seed=1, config=bfloat16, environment={"bfloat16": True})
            >>> head = Result(cell="b", seed=1, config={"base": "a", "method": {"name": "laplace"}})
            >>> precisions = Precisions([here, there, head])
            >>> precisions.of(here), precisions.of(there), precisions.of(head)
            ('float32', 'bfloat16', 'bfloat16')
        """
        method = _method(result)
        base = result.config.get("base")
        precisions: set[str] = set()
        if base is None or (method is not None and method.trains and method.start is Start.NETWORK):
            precisions |= _own(result)
        for seed in _base_seeds(result, method) if base else []:
            other = self._results.get((str(base), seed))
            if other is None or other.config.get("base"):  # a network that is started from starts from none
                return None
            precisions |= _own(other)
        return " and ".join(sorted(precisions)) or None

    def sentences(self, cells: Iterable[Cell]) -> list[str]:
        """What has to be said below a table of these cells: nothing where all networks were trained alike."""
        seeds_of: dict[str, dict[str, list[int]]] = {}
        for cell in cells:
            for result in cell.done:
                precision = self.of(result)
                if precision is not None:
                    seeds_of.setdefault(precision, {}).setdefault(cell.name, []).append(result.seed)
        if len(seeds_of) < 2:
            return []
        # What most have in common needs no name.
        most = max(seeds_of, key=lambda precision: (sum(map(len, seeds_of[precision].values())), precision))
        return [
            f"Trained in {precision}, not in {most} like most others: {_by_seeds(seeds_of[precision])}."
            for precision in sorted(seeds_of)
            if precision != most
        ]

    def unlike(self, before: Cell, after: Cell) -> list[int]:
        """The seeds whose networks were trained in one precision in one cell, and in another in the other."""
        first = {result.seed: self.of(result) for result in before.done}
        second = {result.seed: self.of(result) for result in after.done}
        both = [seed for seed in first if seed in second and first[seed] and second[seed]]
        return [seed for seed in both if first[seed] != second[seed]]


def _method(result: Result) -> type[Method] | None:
    described = result.config.get("method")
    name = described.get("name") if isinstance(described, Mapping) else None
    return find(name) if name in names() else None


def _own(result: Result) -> set[str]:
    """Of the network that a result's own training made."""
    recorded = {epoch.precision for epoch in result.training.history} if result.training else set()
    if recorded and None not in recorded:
        return {precision for precision in recorded if precision is not None}
    training = result.config.get("training")
    if not isinstance(training, Mapping):
        return set()
    wanted = str(training.get("precision", Precision.FLOAT32.value))
    imitated = wanted == Precision.BFLOAT16.value and result.environment.get("bfloat16") is False
    return {Precision.FLOAT32.value if imitated else wanted}


def _base_seeds(result: Result, method: type[Method] | None) -> list[int]:
    """As `Cell.base_seeds` has them: several networks have seeds of their own."""
    if method is not None and method.start is Start.NETWORKS:
        members = int(result.config.get("members", 1))
        return list(range(members * result.seed, members * (result.seed + 1)))
    return [result.seed]


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
