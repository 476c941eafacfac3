"""Four ways to treat the indefinite output Hessian of a pair loss (Eq. 7-9 and appendix F.3 of the paper)."""

from __future__ import annotations

from hessians.checks import Choice


class Approximation(Choice):
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
