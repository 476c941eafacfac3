"""The old place of `laplacian_metric.laplace.model_folder`, kept for those who import from it."""

from laplacian_metric.laplace.model_folder import *  # noqa: F403
