"""A list of runs: what each is, what became of them, and how that is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from laplacian_metric.runs.config import Cell


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


def headline(content: dict[str, Any]) -> str:
    """The main numbers of a result in one line."""
    test, scores = content["retrieval"]["test"], content["scores"]
    parts = [f"{name} {test[name]:.4f}" for name in test if name in ("recall@1", "map@5")]
    for name in ["own"] if "own" in scores else scores:
        found = [f"{out} {measured['auroc']:.4f}" for out, measured in scores[name]["out"].items()]
        strangers = f"AUROC {' '.join(found)}, " if found else ""
        parts.append(f"{name}: {strangers}R-AUROC {scores[name]['r_auroc']:.4f}")
    if content["calibration"] is not None:
        parts.append(f"ECE {content['calibration']['ece']:.4f}")
    seconds = content["seconds"]
    parts.append(" + ".join(f"{seconds[key]:.0f}" for key in ("training", "fit", "evaluation")) + " s")
    return ", ".join(parts)
