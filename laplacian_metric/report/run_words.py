"""What the numbers of a posterior mean, and when they are bad, in words."""

from __future__ import annotations

from laplacian_metric.laplace.diagnostics import Diagnostics
from laplacian_metric.report.blocks.texts import number, share
from laplacian_metric.report.page import Table

# Rules of thumb, which the table states.
CLAMPED = 0.5
PRIOR = 100.0
EFFECTIVE = 1.0

FINE, BAD, NONE = "✓ fine", "✗ look at this", "–"


def diagnostics_table(found: Diagnostics) -> Table:
    """Every number with its meaning, when it is bad, and whether it is.

    Example:
        >>> found = Diagnostics(0.1, 0.01, 0.5, 3.0, 0.2, 0.01, 9.0, 64)
        >>> [row[4] for row in diagnostics_table(found).rows]
        ['–', '–', '✓ fine', '✓ fine', '✓ fine', '✓ fine']
    """
    return Table(
        "The posterior of the weights",
        ("What", "Value", "What it means", "When it is bad", "Here"),
        [
            (
                "Loss",
                number(found.loss_value, 4),
                "The loss of the trained network over the pairs that the curvature is of.",
                "Only beside that of another run.",
                NONE,
            ),
            (
                "Length of the gradient",
                number(found.gradient_norm, 4),
                "How steep the loss still is at the trained weights; 0 at a minimum.",
                "By itself it has no scale; the next line gives it one.",
                NONE,
            ),
            (
                "Steps to the mode",
                f"{number(found.steps_to_mode)} (a typical draw: {number(found.expected_steps)})",
                "How far the trained weights are from the mode of the posterior, in its standard deviations.",
                "Where it is further than a typical draw: the posterior is then around the wrong place. Train longer, "
                "or with the loss that is fitted.",
                FINE if found.is_mode else BAD,
            ),
            (
                "Clamped curvature",
                share(found.clamped),
                "The share of the curvature that was negative and was set to 0, since a precision cannot be negative.",
                f"Above {share(CLAMPED)}: of most weights the prior alone then says how uncertain they are.",
                BAD if found.clamped > CLAMPED else FINE,
            ),
            (
                "Prior over data",
                number(found.prior_to_data),
                "The precision of the prior over the mean precision that the data give a weight.",
                f"Above {PRIOR:g}: the data hardly count, and uncertainties are those of the prior.",
                FINE if found.prior_to_data <= PRIOR else BAD,
            ),
            (
                "Effective parameters",
                f"{number(found.effective_parameters, 4)} of {found.parameters:,}",
                "How many weights the data determine rather than the prior.",
                f"Below {EFFECTIVE:g}: nothing was learnt about the weights.",
                FINE if found.effective_parameters >= EFFECTIVE else BAD,
            ),
        ],
        numeric=frozenset({1}),
    )
