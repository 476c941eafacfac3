"""The pair losses by name, for cells; a loss of your own is registered."""

from __future__ import annotations

from hessians.pair_loss import PairLoss
from laplacian_metric.core.registry import Registry

LOSSES: Registry[PairLoss] = Registry(
    "loss",
    {
        "contrastive": "hessians:ContrastiveLoss",
        "info-nce": "hessians:InfoNCELoss",
        "triplet": "laplacian_metric.methods.pairs.triplet_loss:TripletLoss",
    },
)
