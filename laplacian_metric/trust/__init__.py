"""Can a match be trusted? The calibrated probability that an answer is right, a novelty, and a verdict; numpy only."""

from __future__ import annotations

from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.trust.answer import Answer
from laplacian_metric.trust.drift import Drift, RiskDrift
from laplacian_metric.trust.fitting import CalibrationError
from laplacian_metric.trust.guarantee import CredibleSets, Guarantee, NoGuaranteeError, rejecting
from laplacian_metric.trust.pairs import PairTrust
from laplacian_metric.trust.trust import Trust
from laplacian_metric.trust.view import GaussianView

__all__ = [
    "Answer",
    "CalibrationError",
    "CredibleSets",
    "Drift",
    "GaussianView",
    "Guarantee",
    "Neighbours",
    "NoGuaranteeError",
    "PairTrust",
    "RiskDrift",
    "Trust",
    "rejecting",
]
