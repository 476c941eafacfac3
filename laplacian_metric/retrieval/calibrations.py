"""What was calibrated on an index: promises that hold for the items they were made with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laplacian_metric.retrieval.abstention import Threshold
    from laplacian_metric.retrieval.credible import CredibleCaps
    from laplacian_metric.retrieval.drift import DriftMonitor
    from laplacian_metric.retrieval.matching import MatchProbability

NAMES = ("threshold", "credible", "matching", "drift")
WHAT = {
    "threshold": "threshold",
    "credible": "credible caps",
    "matching": "match probability",
    "drift": "drift monitor",
}


class NotCalibratedError(ValueError):
    """Something was asked that has to be calibrated first."""


@dataclass(frozen=True)
class Calibrations:
    """The threshold, the credible caps, the match probability and the drift monitor of an index, each there or None.

    ``withdrawn`` names those that were there before the items changed.

    Example:
        >>> Calibrations().to_dict()
        {'threshold': None, 'credible': None, 'matching': None, 'drift': None, 'withdrawn': []}
    """

    threshold: Threshold | None = None
    credible: CredibleCaps | None = None
    matching: MatchProbability | None = None
    drift: DriftMonitor | None = None
    withdrawn: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Whether one of them is there."""
        return getattr(self, name) is not None

    def need(self, name: str) -> Any:
        """One of them; where it is not there the error says why."""
        calibration = getattr(self, name)
        if calibration is None:
            raise NotCalibratedError(self._missing(name))
        return calibration

    def _missing(self, name: str) -> str:
        what = WHAT[name]
        if name in self.withdrawn:
            return (
                f"the {what} of this index was calibrated for other items, and withdrawn when these changed: calibrate "
                f"again, and set it by index.calibrated({name}=...)"
            )
        return f"this index has no {what}: calibrate one, and set it by index.calibrated({name}=...)"

    def withdraw(self) -> Calibrations:
        """None of them, and the memory of which there were."""
        were = [name for name in NAMES if self.has(name) or name in self.withdrawn]
        return Calibrations(withdrawn=tuple(were))

    def and_also(self, **others: Any) -> Calibrations:
        """These, with some replaced."""
        kept = tuple(name for name in self.withdrawn if others.get(name) is None)
        return replace(self, **others, withdrawn=kept)

    def to_dict(self) -> dict[str, Any]:
        """As values of JSON."""
        content = {name: getattr(self, name).to_dict() if self.has(name) else None for name in NAMES}
        return {**content, "withdrawn": list(self.withdrawn)}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Calibrations:
        """What `to_dict` gave."""
        by_name = {name: _read(name, stored[name]) for name in NAMES if stored[name] is not None}
        withdrawn = tuple(name for name in NAMES if name in stored["withdrawn"])
        return Calibrations(**by_name, withdrawn=withdrawn)


def _read(name: str, stored: Mapping[str, Any]) -> Any:
    """Their modules are imported when there is something to read."""
    if name == "threshold":
        from laplacian_metric.retrieval.abstention import Threshold

        return Threshold.from_dict(stored)
    if name == "credible":
        from laplacian_metric.retrieval.credible import CredibleCaps

        return CredibleCaps.from_dict(stored)
    if name == "matching":
        from laplacian_metric.retrieval.matching import MatchProbability

        return MatchProbability.from_dict(stored)
    from laplacian_metric.retrieval.drift import DriftMonitor

    return DriftMonitor.from_dict(stored)
