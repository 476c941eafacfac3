"""Loss prediction: heads that predict from frozen features how likely an item is to be retrieved wrongly."""

from __future__ import annotations

from laplacian_metric.methods.risk.fitting import RiskHistory, RiskOptions, fit_head
from laplacian_metric.methods.risk.head import RiskEncoder, RiskHead, with_head
from laplacian_metric.methods.risk.loss_prediction import LossPrediction, pretrain
from laplacian_metric.methods.risk.shipped import card, load, names

__all__ = [
    "LossPrediction",
    "RiskEncoder",
    "RiskHead",
    "RiskHistory",
    "RiskOptions",
    "card",
    "fit_head",
    "load",
    "names",
    "pretrain",
    "with_head",
]
