"""In what the published code of online LAM differs from the method as it is here: one switch for each difference."""

from __future__ import annotations

import math
from dataclasses import dataclass

PUBLISHED_TRIPLETS = 5000
PUBLISHED_SHARE = 1e-3
PAPER_SHARE = 1e-4

_CHOICES = {"scale": ("images", "squared"), "memory": ("average", "sum"), "start": ("prior", "images")}


@dataclass(frozen=True)
class Switches:
    """The defaults are the corrected method; `PUBLISHED` has every switch the other way.

    Attributes:
        scale: what n_effective is by default: "images", their number N, or "squared", N^2.
        relu_per_batch: whether negative entries are set to 0 in every batch, rather than once when they are used.
        mined: over how many random triplets of a batch, at most, loss and curvature are taken; None: over all pairs.
        memory: "average", H <- (1-a) H + a H_batch, or "sum", H <- (1-a) H + H_batch, which grows to E[H]/a.
        start: the precision that H starts at: None for nothing at all (an average is then corrected for its short
            past), "prior" for the prior precision, "images" for N, or a number. The prior is added all the same.

    Example:
        >>> Switches(memory="sum").start is None, PUBLISHED.start
        (True, 'images')
    """

    scale: str = "images"
    relu_per_batch: bool = False
    mined: int | None = None
    memory: str = "average"
    start: str | float | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if name == "start" and (value is None or isinstance(value, int | float)):
                continue
            if value not in choices:
                raise ValueError(
                    f"{name} is {value!r}, one of {', '.join(map(repr, choices))} is needed"
                    + (", or None or a number" if name == "start" else "")
                )
        if isinstance(self.start, int | float) and not (math.isfinite(self.start) and self.start >= 0):
            raise ValueError(f"start is {self.start}, a precision that is not negative is needed")
        if self.mined is not None and self.mined < 1:
            raise ValueError(f"mined is {self.mined}, at least 1 triplet is needed; None takes all pairs")

    def precision_at_start(self, prior_precision: float, num_images: int) -> float | None:
        """The number that ``start`` stands for."""
        known = {"prior": prior_precision, "images": float(num_images)}
        return known[self.start] if isinstance(self.start, str) else self.start


PUBLISHED = Switches(
    scale="squared", relu_per_batch=True, mined=PUBLISHED_TRIPLETS, memory="sum", start="images"
)

PAPER = Switches(memory="sum", start="prior")
