"""Settings that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# Tests are many tiny matrix products, in which threads spend their time waiting for each other.
torch.set_num_threads(1)

settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def long_form() -> bool:
    """Whether slow tests run at full size: asked for with LAPLACIAN_METRIC_LONG=1."""
    return os.environ.get("LAPLACIAN_METRIC_LONG", "0") not in ("", "0")
