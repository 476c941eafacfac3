"""Four ways to treat the indefinite output Hessian of a pair loss (Eq. 7-9 and appendix F.3 of the paper)."""

from __future__ import annotations

from enum import Enum


class Approximation(str, Enum):
    """What is kept of the output Hessian."""

    FULL = "full"
    """All of it. Indefinite in general; its diagonal is clamped at 0 once, after everything was accumulated."""

    FIXED = "fixed"
    """The blocks of each image alone: every pair is seen from one end, while the other is held fixed."""

    POSITIVE = "positive"
    """The positive pairs alone, each weighing 1/|P|, whatever the loss's negative weight."""

    CLIPPED = "clipped"
    """All of it, its negative eigenvalues set to 0 before anything is pulled back: positive semi-definite for every
    sign of the pair weights, so that no clamp is needed afterwards."""

    @classmethod
    def parse(cls, value: str | Approximation) -> Approximation:
        """The member with this name, or an error that lists them."""
        try:
            return cls(value)
        except ValueError:
            names = ", ".join(repr(member.value) for member in cls)
            raise ValueError(f"approximation is {value!r}, one of {names} is needed") from None
