"""Settings of the tests of curvature."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from hessians.checks import CurvatureWarning


@pytest.fixture(autouse=True)
def _no_curvature_warnings() -> Iterator[None]:
    """Random problems are often degenerate on purpose; the warnings have tests of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CurvatureWarning)
        yield
