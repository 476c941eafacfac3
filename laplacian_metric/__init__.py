"""Uncertainty for metric learning: every image becomes a distribution on the unit sphere.

Importing this package is light: it loads no data set, no model zoo and no plotting library.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
