"""Several results side by side: of `lam evaluate`, and of runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist, mean

from experiments.harness.tables.seeds import spread
from laplacian_metric.core.checked import read_json, validated
from laplacian_metric.metrics import Interval, QueryRecord
from laplacian_metric.metrics.query_records import paired_intervals
from laplacian_metric.metrics.resampling import PairedComparison, compare_paired

EVALUATION = "laplacian_metric evaluation"
# What comes first where nobody asks for anything else.
USUAL = ("recall@1", "map@5", "r_auroc", "ausc", "retrieval_ece")


@dataclass(frozen=True)
class Measured:
    """The numbers of one result: whose, with which seed, by name; its intervals and queries where they are known."""

    name: str
    seed: int
    values: Mapping[str, float]
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    queries: QueryRecord | None = None


@dataclass(frozen=True)
class Group:
    """All results of one name, in the order of their seeds."""

    name: str
    results: tuple[Measured, ...]

    @property
    def seeds(self) -> list[int]:
        return [one.seed for one in self.results]

    def spread(self, metric: str) -> tuple[float, float] | None:
        """Return mean and standard deviation over seeds, the latter NaN of a single one; None where none is defined."""
        over_seeds = spread(one.values.get(metric, math.nan) for one in self.results)
        return (over_seeds.mean, over_seeds.deviation) if over_seeds.number else None


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


def read_result(path: Path) -> Measured:
    """Return the numbers of a result file of either kind.

    Raises:
        ValueError: it is damaged, failed, or something else.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the result files in it, {path}/*.json say")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    content = read_json(path, "make it again")
    if content.get("format") == EVALUATION:
        from laplacian_metric.report.model_evaluation import ModelEvaluation

        evaluation = validated(ModelEvaluation, content, path, "evaluate again")
        return Measured(
            evaluation.name, evaluation.seed, evaluation.values, evaluation.intervals, evaluation.queries
        )
    if "cell" not in content:
        raise ValueError(f"{path} is no result: give files of `lam evaluate --out` or of runs")
    from experiments.harness.results import read_result as read_run

    result = read_run(path)
    if not result.done:
        raise ValueError(f"{path} is of a run that failed ({result.error}): leave it out, or run it again")
    return Measured(result.cell, result.seed, result.values)


def grouped(results: Iterable[Measured], names: Sequence[str] = ()) -> list[Group]:
    """Results of one name together.

    Args:
        results: in the order in which groups are to come.
        names: one for each result, in place of those that the files have.
    """
    every = list(results)
    if names and len(names) != len(every):
        raise ValueError(f"there are {len(names)} names for {len(every)} files: give one for each, or none")
    by_name: dict[str, dict[int, Measured]] = {}
    for number, one in enumerate(every):
        name = names[number] if names else one.name
        seeds = by_name.setdefault(name, {})
        if one.seed in seeds:
            raise ValueError(
                f"two of the files are of {name!r} with seed {one.seed}: give each file a name with --name, or leave "
                "one out"
            )
        seeds[one.seed] = replace(one, name=name)
    return [Group(name, tuple(seeds[seed] for seed in sorted(seeds))) for name, seeds in by_name.items()]


def metrics_of(groups: Sequence[Group], wanted: Sequence[str] = ()) -> list[str]:
    """The metrics that are shown: those wanted, or the usual ones and every AUROC of OOD images."""
    metric_names = list(
        dict.fromkeys(name for group in groups for one in group.results for name in one.values)
    )
    for name in wanted:
        if name not in metric_names:
            raise ValueError(f"no result has {name!r}; there are: {', '.join(metric_names)}")
    if wanted:
        return list(wanted)
    return [name for name in USUAL if name in metric_names] + [
        name for name in metric_names if name.startswith("auroc ")
    ]


def differences(groups: Sequence[Group], metrics: Sequence[str], level: float = 0.95) -> list[Difference]:
    """Return every group less the first, with intervals over the seeds that both have, or over the queries of one."""
    return [gap for group in groups[1:] for gap in _from_first(groups[0], group, metrics, level)]


def _from_first(first: Group, group: Group, metrics: Sequence[str], level: float) -> Iterator[Difference]:
    by_seed = {one.seed: one for one in first.results}
    common = [(one, by_seed[one.seed]) for one in group.results if one.seed in by_seed]
    drawn: dict[str, Interval] = {}
    if len(common) == 1 and (own := common[0][0].queries) and (other := common[0][1].queries):
        drawn = paired_intervals(own, other, level=level)
    for metric in metrics:
        values = [(one.seed, one.values.get(metric), other.values.get(metric)) for one, other in common]
        pairs = [
            (seed, own, first_own)
            for seed, own, first_own in values
            if own is not None and first_own is not None and math.isfinite(own) and math.isfinite(first_own)
        ]
        if not pairs:
            continue
        seeds, mine, theirs = zip(*pairs, strict=True)
        gap = mean(a - b for a, b in zip(mine, theirs, strict=True))
        paired = compare_paired(mine, theirs, level=level) if len(pairs) > 1 else None
        interval = drawn.get(metric)
        if paired is None and interval is None and len(common) == 1:
            interval = _apart(gap, [one.intervals.get(metric) for one in common[0]], level)
        yield Difference(group.name, first.name, metric, seeds, gap, paired, interval, metric in drawn)


def _apart(gap: float, intervals: Sequence[Interval | None], level: float) -> Interval | None:
    """Return a normal interval of the difference of two numbers that were drawn apart, from the interval of each."""
    variance = 0.0
    for interval in intervals:
        if interval is None or not math.isfinite(interval.high - interval.low):
            return None
        variance += ((interval.high - interval.low) / 2 / NormalDist().inv_cdf((1 + interval.level) / 2)) ** 2
    reach = math.sqrt(variance) * NormalDist().inv_cdf((1 + level) / 2)
    return Interval(gap - reach, gap + reach, level, 0)
