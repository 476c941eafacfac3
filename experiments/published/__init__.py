"""The errors of the code that was published with the LAM paper: importing this makes them known to cells.

It registers the loss "published" (`PublishedContrastiveLoss`), and gives the methods "laplace" and "online-laplace" the
options that switch errors on: `variant`, `preset` and `defects`. `python -m experiments.run` imports it, and so does
`lam --import experiments.published COMMAND`.
"""

from __future__ import annotations

from experiments.published.contrastive import PublishedContrastiveLoss
from experiments.published.laplace import PublishedLaplace
from experiments.published.online import (
    PAPER,
    PUBLISHED,
    PublishedOnlineLAM,
    PublishedOnlineLaplace,
    Switches,
)
from laplacian_metric import losses, methods

__all__ = [
    "PAPER",
    "PUBLISHED",
    "PublishedContrastiveLoss",
    "PublishedLaplace",
    "PublishedOnlineLAM",
    "PublishedOnlineLaplace",
    "Switches",
]

losses.register("published", PublishedContrastiveLoss)
for _method in (PublishedLaplace, PublishedOnlineLaplace):
    methods.register(_method, replace=True)
