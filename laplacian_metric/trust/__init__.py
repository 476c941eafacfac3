"""Can a match be trusted? The probability that the nearest item is right, novelty, and reasons; without torch."""

from __future__ import annotations

from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.trust.answer import Answer
from laplacian_metric.trust.calibration import CalibrationError
from laplacian_metric.trust.trust import Trust

__all__ = ["Answer", "CalibrationError", "Neighbours", "Trust"]
