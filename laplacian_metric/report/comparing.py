"""Several evaluations side by side: means over seeds, and differences from the first with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, mean, stdev

from laplacian_metric.core.checked import read_json, validated
from laplacian_metric.metrics import Interval
from laplacian_metric.metrics.query_records import paired_intervals
from laplacian_metric.metrics.resampling import PairedComparison, compare_paired
from laplacian_metric.report.model_evaluation import ModelEvaluation

# Shown unless other metrics are named.
USUAL = ("recall@1", "map@5", "r_auroc", "ausc", "retrieval_ece")


@dataclass(frozen=True)
class Group:
    """All evaluations of one name, in the order of their seeds."""

    name: str
    results: tuple[ModelEvaluation, ...]

    @property
    def seeds(self) -> list[int]:
        return [result.seed for result in self.results]

    def spread(self, metric: str) -> tuple[float, float] | None:
        """Return mean and standard deviation over seeds, the latter NaN of a single one; None where none is defined."""
        values = [result.values.get(metric, math.nan) for result in self.results]
        defined = [value for value in values if math.isfinite(value)]
        if not defined:
            return None
        return mean(defined), stdev(defined) if len(defined) > 1 else math.nan


@dataclass(frozen=True)
class Difference:
    """A metric of one group less that of the first, over the seeds that both have.

    Attributes:
        paired: over seeds, where both have at least two.
        interval: otherwise over the queries of a single seed; ``same_queries`` says whether they are the same images,
            drawn together, or whether each has its own, so that the interval is wider than it need be.
    """

    name: str
    against: str
    metric: str
    seeds: tuple[int, ...]
    difference: float
    paired: PairedComparison | None
    interval: Interval | None = None
    same_queries: bool = False


def read_results(paths: Sequence[Path], names: Sequence[str] = ()) -> list[Group]:
    """Return the groups of result files, by name and in the order of the files.

    Args:
        paths: files of `lam evaluate --out`.
        names: one for each file, in place of those in the files. Files of one name are its seeds. Without names, files
            of one data set and one seed are told apart by their file names.
    """
    if names and len(names) != len(paths):
        raise ValueError(
            f"name is given {len(names)} times for {len(paths)} files: give one for each, or none"
        )
    results = [_read(path) for path in paths]
    used = list(names) or [result.name for result in results]
    if not names and len({(result.name, result.seed) for result in results}) < len(results):
        used = [path.stem for path in paths]
    groups: dict[str, dict[int, ModelEvaluation]] = {}
    for name, result in zip(used, results, strict=True):
        seeds = groups.setdefault(name, {})
        if result.seed in seeds:
            raise ValueError(f"two files are of {name!r} with seed {result.seed}: give each file a --name")
        seeds[result.seed] = result
    return [Group(name, tuple(seeds[seed] for seed in sorted(seeds))) for name, seeds in groups.items()]


def _read(path: Path) -> ModelEvaluation:
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the result files in it, {path}/*.json say")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    remedy = "give files of lam evaluate --out"
    return validated(ModelEvaluation, read_json(path, remedy), path, remedy)


def metrics_of(groups: Sequence[Group], wanted: Sequence[str] = ()) -> list[str]:
    """Return the metrics that are shown: those wanted, or the usual ones and every AUROC of OOD images."""
    available = list(dict.fromkeys(name for group in groups for one in group.results for name in one.values))
    for name in wanted:
        if name not in available:
            raise ValueError(f"metric {name!r} is in no result; there are: {', '.join(available)}")
    return list(wanted) or [
        name for name in available if name in USUAL or name.startswith(("auroc ", "ood_auroc"))
    ]


def differences(groups: Sequence[Group], metrics: Iterable[str], level: float = 0.95) -> list[Difference]:
    """Return every group less the first, with intervals over the seeds that both have, or over the queries of one."""
    return [gap for group in groups[1:] for gap in _from_first(groups[0], group, list(metrics), level)]


def _from_first(first: Group, group: Group, metrics: Sequence[str], level: float) -> Iterator[Difference]:
    by_seed = {result.seed: result for result in first.results}
    common = [(result, by_seed[result.seed]) for result in group.results if result.seed in by_seed]
    paired_by_query: dict[str, Interval] = {}
    if len(common) == 1 and (own := common[0][0].queries) and (other := common[0][1].queries):
        paired_by_query = paired_intervals(own, other, level=level)
    for metric in metrics:
        pairs = [tuple(result.values.get(metric, math.nan) for result in pair) for pair in common]
        seeds = [
            pair[0].seed
            for pair, values in zip(common, pairs, strict=True)
            if all(map(math.isfinite, values))
        ]
        pairs = [values for values in pairs if all(map(math.isfinite, values))]
        if not pairs:
            continue
        gap = mean(one - other for one, other in pairs)
        paired = compare_paired(*zip(*pairs, strict=True), level=level) if len(pairs) > 1 else None
        interval = paired_by_query.get(metric)
        if paired is None and interval is None and len(common) == 1:
            interval = _apart(gap, [result.intervals.get(metric) for result in common[0]], level)
        same = metric in paired_by_query
        yield Difference(group.name, first.name, metric, tuple(seeds), gap, paired, interval, same)


def _apart(gap: float, intervals: Sequence[Interval | None], level: float) -> Interval | None:
    """Return a normal interval of the difference of two numbers that were drawn apart, from the interval of each."""
    variance = 0.0
    for interval in intervals:
        if interval is None or not math.isfinite(interval.high - interval.low):
            return None
        variance += ((interval.high - interval.low) / 2 / NormalDist().inv_cdf((1 + interval.level) / 2)) ** 2
    reach = math.sqrt(variance) * NormalDist().inv_cdf((1 + level) / 2)
    return Interval(gap - reach, gap + reach, level, 0)
