"""The metrics that tables and figures may show: what they are called, where they are, and which way is better."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from experiments.harness.results import OWN, Result
from experiments.harness.tables.seeds import Cell
from laplacian_metric.core.checked import near
from laplacian_metric.metrics.evaluation import Score


@dataclass(frozen=True)
class Column:
    """A metric of a result. `out` names the set of OOD images where the metric is about detecting them."""

    metric: str
    place: tuple[str, ...]
    higher: bool = True
    digits: int = 3
    out: str = ""
    title: str = ""

    @property
    def heading(self) -> str:
        """What stands over the column, with the direction that is better."""
        return f"{self.title or self.metric} {'↑' if self.higher else '↓'}"

    @property
    def about_uncertainty(self) -> bool:
        """Whether it depends on the score that is asked about."""
        return self.place[0] in ("scores", "out", "correlations", "excess")

    def value(self, result: Result, score: str = OWN) -> float:
        """The number of one result, NaN where it has none."""
        room, *rest = self.place
        if room == "seconds":
            return result.seconds.get(rest[0], math.nan)
        if room == "retrieval":
            return result.retrieval.get(rest[0], {}).get(rest[1], math.nan)
        if room == "calibration":
            # The agreement of sampled spaces, which only the method itself has.
            return result.calibration.ece if result.calibration and score == OWN else math.nan
        if room in ("verification", "correlations"):
            pairs = result.verification.get(rest[0])
            if pairs is None:
                return math.nan
            by_name = pairs.values if room == "verification" else pairs.correlations.get(score, {})
            return by_name.get(rest[1], math.nan)
        if score not in result.scores:
            return math.nan
        named = result.scores[score]
        if room == "excess":
            return _excess(named, result, rest[0])
        numbers = named.values if room == "scores" else named.ood.get(self.out, {})
        return numbers.get(rest[0], math.nan)

    def values(self, cell: Cell, score: str = OWN) -> list[float]:
        """The numbers of the seeds that are done."""
        return [self.value(result, score) for result in cell.done]


def _excess(score: Score, result: Result, k: str) -> float:
    """How far ECE@k is above what no uncertainty could bring it below: the distance of mAP@k from 1/2."""
    precision = result.retrieval.get("test", {}).get(f"map@{k}", math.nan)
    return score.values.get(f"ece@{k}", math.nan) - abs(precision - 0.5)


_RETRIEVAL = {
    "mAP@1": "map@1",
    "mAP@5": "map@5",
    "mAP@10": "map@10",
    "mAP@R": "map@r",
    "R@1": "recall@1",
    "R@5": "recall@5",
    "R@10": "recall@10",
}
_OTHER = {"own_similarity": ", own similarity", "expected_similarity": ", expected distance"}
_PARTS = {"test": "", "validation": ", validation", **_OTHER}
# Of pairs and neighbours, on the test sets of digits side by side; other sets by the names that cells give them.
_TESTS = {
    "test": ", clean",
    "mixed": ", mixed",
    "corrupt": ", corrupt",
    "unseen": ", unseen",
    "unseen corrupt": ", unseen corrupt",
}
_VERIFICATION = {
    "AP of pairs": ("verification", "average_precision"),
    "5-NN": ("verification", "knn"),
    "5-NN of means": ("verification", "knn_of_means"),
    "5-NN in the clean": ("verification", "knn_in_gallery"),
    "tau of AP": ("correlations", "average_precision"),
    "tau of 5-NN": ("correlations", "knn"),
}
_COLUMNS = (
    *(
        Column(name + suffix, ("retrieval", part, key))
        for part, suffix in _PARTS.items()
        for name, key in _RETRIEVAL.items()
    ),
    Column("AUROC", ("out", "auroc")),
    Column("AUPRC", ("out", "average_precision")),
    Column("R-AUROC", ("scores", "r_auroc")),
    Column("R-AUROC, validation", ("scores", "validation_r_auroc")),
    Column("AUROC, corrupted", ("scores", "corrupted_auroc")),
    Column("AUSC", ("scores", "ausc")),
    Column("AUSC, oracle", ("scores", "ausc_oracle")),
    Column("AUSC, random", ("scores", "ausc_random")),
    *(Column(f"ECE@{k}", ("scores", f"ece@{k}"), higher=False) for k in (1, 5, 10)),
    *(Column(f"ECE@{k}, excess", ("excess", str(k)), higher=False) for k in (1, 5, 10)),
    *(
        Column(f"ECE@{k}{suffix}", ("retrieval", part, f"ece@{k}"), higher=False)
        for part, suffix in _OTHER.items()
        for k in (1, 5, 10)
    ),
    Column("crop test", ("scores", "crop_test")),
    Column("rank correlation", ("scores", "rank_correlation")),
    Column("ECE", ("calibration", "ece"), higher=False),
    *(
        Column(name + suffix, (room, part, key))
        for part, suffix in _TESTS.items()
        for name, (room, key) in _VERIFICATION.items()
    ),
    *(
        Column(f"seconds, {part}", ("seconds", part), higher=False, digits=1)
        for part in ("training", "fit", "evaluation")
    ),
)
_BY_NAME = {column.metric: column for column in _COLUMNS}


def names() -> tuple[str, ...]:
    """The names of all metrics."""
    return tuple(_BY_NAME)


def find(metric: str, out: str = "", title: str = "") -> Column:
    """The column of a metric; those of OOD images need the name of their set, `out`.

    Example:
        >>> find("AUROC", out="mnist").place
        ('out', 'auroc')
        >>> find("ECE").heading
        'ECE ↓'
        >>> find("AUROK")
        Traceback (most recent call last):
        ...
        ValueError: no metric is called 'AUROK'; did you mean 'AUROC'?
    """
    if metric not in _BY_NAME:
        raise ValueError(f"no metric is called {metric!r}; {near(metric, _BY_NAME)}")
    column = _BY_NAME[metric]
    if column.place[0] != "out":
        return replace(column, title=title)
    if not out:
        raise ValueError(f"{metric} needs to know which set is out of the distribution: give 'out'")
    return replace(column, out=out, title=title)
