"""Runs of the cells of published tables: configurations, a runner that resumes, and result files."""

from __future__ import annotations

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
