"""The errors of the code that was published with the LAM paper: importing this makes them known to cells.

It registers the loss "published" (`PublishedContrastiveLoss`), and gives the methods "laplace", "online-laplace",
"pfe", "hib" and "mc-dropout" the options that switch errors on: `variant`, `preset` and `defects`.
`python -m experiments.run` imports it.
"""

from __future__ import annotations

from experiments.losses import LOSSES
from experiments.published.contrastive import PublishedContrastiveLoss
from experiments.published.gaussian import PublishedHIB, PublishedMCDropout, PublishedPFE
from experiments.published.laplace import PublishedLaplace
from experiments.published.online import (
    PAPER,
    PUBLISHED,
    PublishedOnlineLAM,
    PublishedOnlineLaplace,
    Switches,
)
from laplacian_metric import methods

__all__ = [
    "PAPER",
    "PUBLISHED",
    "PublishedContrastiveLoss",
    "PublishedHIB",
    "PublishedLaplace",
    "PublishedMCDropout",
    "PublishedOnlineLAM",
    "PublishedOnlineLaplace",
    "PublishedPFE",
    "Switches",
]

LOSSES.register("published", PublishedContrastiveLoss)
for _method in (PublishedLaplace, PublishedOnlineLaplace, PublishedPFE, PublishedHIB, PublishedMCDropout):
    methods.register(_method, replace=True)
