"""Runs of the cells of published tables: configurations, a runner that resumes, and result files."""

from __future__ import annotations

from laplacian_metric.runs.cell_fitting import Fitted, fitted
from laplacian_metric.runs.config import Cell, Cells, ConfigError
from laplacian_metric.runs.results import Results
from laplacian_metric.runs.runner import RunError, Summary, run, states

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
