"""The pair losses by name, for configurations; a loss of your own is registered."""

from __future__ import annotations

from typing import Any

from hessians.pair_loss import PairLoss
from laplacian_metric.core.registry import Registry

_LOSSES: Registry[PairLoss] = Registry(
    "loss",
    {
        "contrastive": "hessians:ContrastiveLoss",
        "info-nce": "hessians:InfoNCELoss",
        "triplet": "laplacian_metric.methods.pairs.triplet_loss:TripletLoss",
    },
)


def names() -> tuple[str, ...]:
    """The names of all losses.

    Example:
        >>> "contrastive" in names()
        True
    """
    return _LOSSES.names()


def find(name: str) -> type[PairLoss]:
    """The class of a loss.

    Example:
        >>> find("triplet").__name__
        'TripletLoss'
    """
    return _LOSSES.find(name)


def make(name: str, **options: Any) -> PairLoss:
    """A loss with its options.

    Example:
        >>> make("contrastive", margin=1.0).margin
        1.0
    """
    return _LOSSES.make(name, **options)


def register(name: str, loss: type[PairLoss]) -> None:
    """Make a loss of your own, a dataclass of its options, known by a name, so that cells find it.

    Example:
        >>> register("triplet", find("contrastive"))
        Traceback (most recent call last):
        ...
        ValueError: there is another loss called 'triplet': choose another name
    """
    _LOSSES.register(name, loss)
