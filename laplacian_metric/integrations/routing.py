"""Semantic routing: the route of a text, or none where the match cannot be trusted."""

from __future__ import annotations

from typing import Any

from laplacian_metric.core.check import as_array
from laplacian_metric.trust.answer import ACCEPT
from laplacian_metric.trust.trust import Trust


def route(trust: Trust, h: Any) -> Any:
    """Return the label of a query's route, or None where its match is not accepted; a list for several queries.

    Args:
        trust: fitted on labelled examples of each route; ``trust.accepting(threshold)`` moves the threshold.
        h: the features of one query, (H,), or of several, (Q, H).

    Example:
        >>> import numpy as np
        >>> generator, labels = np.random.default_rng(0), np.arange(400) % 4
        >>> h = np.eye(5)[labels] + 0.3 * generator.standard_normal((400, 5))
        >>> names = np.array(["refund", "delivery", "account", "greeting"])[labels]
        >>> trust = Trust.fit((h[:200], names[:200]), (h[200:], names[200:]))
        >>> route(trust, np.eye(5)[0]), route(trust, -np.eye(5)[4])
        ('refund', None)
    """
    rows = as_array("h", h)
    answer = trust(rows if rows.ndim > 1 else rows[None])
    if answer.labels is None:
        raise ValueError("trust has no labels: fit it on examples of routes with their labels")
    accepted = zip(answer.labels.tolist(), answer.verdict == ACCEPT, strict=True)
    routes = [label if accept else None for label, accept in accepted]
    return routes if rows.ndim > 1 else routes[0]
