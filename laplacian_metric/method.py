"""The old place of `laplacian_metric.core.method`, kept for those who import from it."""

from laplacian_metric.core.method import *  # noqa: F403
