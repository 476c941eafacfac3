"""Which answers to validation queries are right: by labels, by relevant ids, or by a table of flags."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from laplacian_metric.core.check import as_labels
from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.trust.fitting import Flags


def target_of(target: str) -> tuple[str, int]:
    """Return the kind of a target and how many items it is about.

    Example:
        >>> target_of("top1"), target_of("any@5")
        (('top1', 1), ('any', 5))
    """
    kind, _, number = target.partition("@")
    if target == "top1":
        return "top1", 1
    if kind not in ("any", "each") or not number.isdigit() or int(number) < 1:
        raise ValueError(f"target is {target!r}: 'top1', 'any@5' or 'each@10', with any number, is needed")
    return kind, int(number)


def right_of(neighbours: Neighbours, labels: Any, relevant: Any, ids: Any) -> Flags:
    """Return whether each neighbour (Q, k) is right: of the query's label, or among the relevant items.

    Args:
        neighbours: of Q queries.
        labels: (Q,), of the queries; None where ``relevant`` is passed.
        relevant: for each query an id, a list or a set of ids, or a boolean for each item (Q, N).
        ids: (N,), of the items in the order of the columns of a boolean table.
    """
    if relevant is None:
        return _of_labels(neighbours, labels)
    listed = _relevant_ids(relevant, len(neighbours), ids)
    without = sum(not some for some in listed)
    if without:
        warnings.warn(
            f"{without} of {len(listed)} validation queries have no relevant item: their answers count as wrong",
            stacklevel=4,
        )
    return np.array(
        [[item in some for item in row] for row, some in zip(neighbours.ids.tolist(), listed, strict=True)],
        dtype=bool,
    ).reshape(neighbours.distances.shape)


def _of_labels(neighbours: Neighbours, labels: Any) -> Flags:
    if labels is None or neighbours.labels is None:
        raise ValueError(
            "right answers are not known: pass labels of gallery and queries, or relevant= for each query"
        )
    queries = as_labels("query_labels", labels, len(neighbours))
    table = neighbours.labels.tolist()
    return np.array(
        [[item == label for item in row] for row, label in zip(table, queries, strict=True)], dtype=bool
    ).reshape(neighbours.distances.shape)


def _relevant_ids(relevant: Any, num: int, ids: Any) -> list[set[Hashable]]:
    """Return the ids that are relevant to each query."""
    if hasattr(relevant, "dtype") and str(relevant.dtype).endswith("bool"):
        table = np.asarray(relevant)
        if ids is None or table.shape != (num, len(ids)):
            expected = "ids or lists of ids" if ids is None else f"shape {(num, len(ids))}"
            raise ValueError(
                f"relevant has shape {table.shape}: {expected} is needed, one row for each query"
            )
        return [set(np.asarray(ids)[row].tolist()) for row in table]
    rows = relevant.tolist() if hasattr(relevant, "tolist") else list(relevant)
    if len(rows) != num:
        raise ValueError(f"relevant has {len(rows)} entries for {num} queries: one for each is needed")
    listed = []
    for row in rows:
        several = isinstance(row, Iterable) and not isinstance(row, (str, bytes, dict))
        if isinstance(row, dict) or row is None:
            raise TypeError(
                f"relevant has a {type(row).__name__}: an id, or a list or a set of ids, is needed"
            )
        values = list(row) if several else [row]
        listed.append({value.item() if isinstance(value, np.generic) else value for value in values})
    return listed
