"""A list of runs: what each is, what became of them, and how that is said."""

from __future__ import annotations

from dataclasses import dataclass, field

from laplacian_metric.metrics.evaluation import OWN, TEST
from laplacian_metric.runs.config import Cell
from laplacian_metric.runs.results import Result


@dataclass(frozen=True)
class Task:
    """One cell with one seed."""

    cell: Cell
    seed: int

    @property
    def name(self) -> str:
        return f"{self.cell.name}, seed {self.seed}"

    @property
    def features(self) -> tuple[str, int]:
        """The name and the seed of the features that it may go by."""
        return self.cell.features_at(self.seed)


@dataclass
class Summary:
    """What became of the runs, by name; those that failed in an earlier call are not tried again unless asked for."""

    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed_before: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    without_data: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether all of them have a result now."""
        return not self.failed and not self.failed_before and not self.without_data


def headline(result: Result) -> str:
    """Return the main numbers of a result in one line."""
    retrieval, scores = result.retrieval[TEST], result.scores
    parts = [f"{name} {retrieval[name]:.4f}" for name in retrieval if name in ("recall@1", "map@5")]
    for name in [OWN] if OWN in scores else scores:
        detected = [f"{label} {numbers['auroc']:.4f}" for label, numbers in scores[name].ood.items()]
        auroc = f"AUROC {' '.join(detected)}, " if detected else ""
        parts.append(f"{name}: {auroc}R-AUROC {scores[name].values['r_auroc']:.4f}")
    if result.calibration is not None:
        parts.append(f"ECE {result.calibration.ece:.4f}")
    seconds = [f"{result.seconds[key]:.0f}" for key in ("training", "fit", "evaluation")]
    return ", ".join([*parts, f"{' + '.join(seconds)} s"])
