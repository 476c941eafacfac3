"""One training loop for all methods: resumable to the bit, selected on validation images, in one process or many."""

from __future__ import annotations

from laplacian_metric.training.checkpoint import OtherRunError, load_best
from laplacian_metric.training.checks import validate
from laplacian_metric.training.loop import Trained, train
from laplacian_metric.training.options import TrainingOptions, pair_choice

__all__ = [
    "OtherRunError",
    "Trained",
    "TrainingOptions",
    "load_best",
    "pair_choice",
    "train",
    "validate",
]
