"""The harness: cells and suites as configurations, one runner that resumes, result files and their tables."""

from __future__ import annotations

import experiments.hard_margin
import experiments.methods
import experiments.published
import experiments.sets  # noqa: F401 (all register what cells name)
from experiments.harness.cell_fitting import Fitted, fitted
from experiments.harness.config import Cell, Cells, ConfigError
from experiments.harness.results import Results
from experiments.harness.runner import RunError, Summary, run, states

__all__ = [
    "Cell",
    "Cells",
    "ConfigError",
    "Fitted",
    "Results",
    "RunError",
    "Summary",
    "fitted",
    "run",
    "states",
]
