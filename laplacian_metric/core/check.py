"""Checks of arrays, labels and ids where they enter the library; numpy only.

Each error names the argument, what is wrong with it and what would be right. Functions behind a public door do not
check again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

# Norms between these can be squared in float64 without overflow or loss.
SMALLEST_NORM, LARGEST_NORM = 1e-140, 1e140
BLOCK = 8192


def check(name: str, x: Any, shape: str, **sizes: int) -> NDArray[Any]:
    """Return an array of finite floats with the axes that ``shape`` names; the rows of mapped files stay there.

    Args:
        name: of the argument, for errors.
        x: an array, mapped or not, a torch tensor on any device, or nested lists.
        shape: names of the axes, such as "N H"; each has at least one entry.
        sizes: the sizes that some of these axes need to have.

    Example:
        >>> check("h", [[1, 2]], "N H", H=2).dtype
        dtype('float64')
        >>> check("h", [[1.0, 2.0]], "N H", H=3)
        Traceback (most recent call last):
        ...
        ValueError: h has shape (1, 2): (N, H) with H = 3 is needed
    """
    array = as_array(name, x)
    axes = shape.split()
    fits = array.ndim == len(axes) and 0 not in array.shape
    fits = fits and all(array.shape[axes.index(axis)] == size for axis, size in sizes.items())
    if not fits:
        given = " and ".join(f"{axis} = {size}" for axis, size in sizes.items())
        needed = f"({', '.join(axes)}){f' with {given}' if given else ', at least one,'}"
        raise ValueError(f"{name} has shape {array.shape}: {needed} is needed")
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if array.dtype.kind != "f":
        raise TypeError(f"{name} has dtype {array.dtype}: numbers are needed")
    for start in range(0, len(array), BLOCK):
        finite = (
            np.isfinite(array[start : start + BLOCK])
            .reshape(len(array[start : start + BLOCK]), -1)
            .all(axis=1)
        )
        if not finite.all():
            raise ValueError(
                f"{name} has NaN or infinity in row {start + finite.argmin()}: leave the row out"
            )
    return array


def as_array(name: str, x: Any) -> NDArray[Any]:
    """Return an array, mapped or not, or a torch tensor on any device as numpy has it."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = (x.float() if "bfloat16" in str(x.dtype) else x).numpy()
    try:
        return x if isinstance(x, np.ndarray) else np.asarray(x)
    except ValueError:
        raise ValueError(f"{name} has rows of different lengths: rows of one length are needed") from None


def norms_of(name: str, rows: NDArray[Any]) -> Floats:
    """Return the norms (N,) of rows in float64; refuse rows of zeros, which have no direction."""
    norms = np.empty(len(rows))
    for start in range(0, len(rows), BLOCK):
        block = np.asarray(rows[start : start + BLOCK], dtype=np.float64)
        with np.errstate(over="ignore", under="ignore"):
            norms[start : start + len(block)] = np.sqrt(np.einsum("nd,nd->n", block, block))
    for row in np.flatnonzero((norms < SMALLEST_NORM) | (norms > LARGEST_NORM)):
        values = np.asarray(rows[row], dtype=np.float64)
        largest = np.abs(values).max()
        if largest == 0:
            raise ValueError(f"{name} is zero in row {row}: a vector without a direction has no neighbours")
        norms[row] = largest * np.linalg.norm(values / largest)
    if not np.isfinite(norms).all() or norms.min() < np.finfo(np.float64).tiny:
        raise ValueError(f"{name} has rows whose norm is beyond float64: scale them")
    return norms


def unit_rows(name: str, rows: NDArray[Any]) -> Floats:
    """Return rows (N, D) scaled to unit length, in float64."""
    unit: Floats = np.asarray(rows, dtype=np.float64) / norms_of(name, rows)[:, None]
    return unit


def as_labels(name: str, labels: Any, num: int) -> list[Hashable]:
    """Return one label of any hashable kind for each row; scalars of numpy and torch become Python's own.

    Example:
        >>> as_labels("labels", np.array([2, 1]), 2), as_labels("labels", ["a", ("b", 1)], 2)
        ([2, 1], ['a', ('b', 1)])
    """
    if isinstance(labels, (str, bytes, Mapping, set, frozenset)) or not isinstance(labels, Iterable):
        raise TypeError(f"{name} is a {type(labels).__name__}: a sequence of labels is needed")
    values: Iterable[Any] = labels.tolist() if hasattr(labels, "tolist") else labels
    listed = [
        value.item() if hasattr(value, "item") and not getattr(value, "ndim", 0) else value
        for value in values
    ]
    if len(listed) != num:
        raise ValueError(f"{name} has {len(listed)} entries for {num} rows: one label for each is needed")
    for row, label in enumerate(listed):
        if not _is_label(label):
            raise TypeError(
                f"{name} has {label!r} in row {row}: hashable labels are needed, and no missing values"
            )
    return listed


def _is_label(label: Any) -> bool:
    """Return whether a label is hashable and equal to itself, which NaN and pandas.NA are not, in tuples neither."""
    if isinstance(label, tuple):
        return all(_is_label(part) for part in label)
    try:
        hash(label)
    except TypeError:
        return False
    return (label == label) is True


def kind_of(values: Iterable[Any]) -> str:
    """Return the kind that all values have: "text", "bool", "number", or "object" for any other or mixed kinds.

    Example:
        >>> kind_of(["a", "b"]), kind_of([1, 2.5]), kind_of([True]), kind_of([1, "a"])
        ('text', 'number', 'bool', 'object')
    """
    kinds = {_kind(value) for value in values}
    return kinds.pop() if len(kinds) == 1 else "object"


def _kind(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "bool"
    if isinstance(value, (int, float, np.integer, np.floating)):
        return "number"
    return "text" if isinstance(value, str) else "object"


def as_column(values: list[Any]) -> NDArray[Any]:
    """Return values as an array: of numbers or bools where all are of one such kind, else of objects.

    Example:
        >>> as_column([1, 2]).dtype, as_column(["a", "bc"]).dtype
        (dtype('int64'), dtype('O'))
    """
    if kind_of(values) in ("number", "bool") and not _too_large(values):
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _too_large(values: list[Any]) -> bool:
    """Return whether whole numbers do not fit into int64, or would be rounded beside floats."""
    whole = [value for value in values if isinstance(value, int)]
    limit = 2**53 if len(whole) < len(values) else 2**63
    return any(abs(value) >= limit for value in whole)


def as_ids(name: str, ids: Any) -> NDArray[Any]:
    """Return ids (N,), which are different: whole numbers (int64) or texts (objects).

    Example:
        >>> as_ids("ids", [3, 5]), as_ids("ids", ["a", "b"])
        (array([3, 5]), array(['a', 'b'], dtype=object))
    """
    if isinstance(ids, (str, bytes, Mapping)) or not isinstance(ids, Iterable):
        raise TypeError(f"{name} is a {type(ids).__name__}: a sequence of whole numbers or texts is needed")
    listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    listed = [value.item() if isinstance(value, np.generic) else value for value in listed]
    whole = all(
        isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
        for value in listed
    )
    if not whole and not all(isinstance(value, str) for value in listed):
        raise TypeError(f"{name} are neither all whole numbers nor all texts: pass ids of one of these kinds")
    if len(set(listed)) < len(listed):
        raise ValueError(f"{name} has an entry twice: ids have to be different")
    return np.array(listed, dtype=np.int64) if whole else as_column(listed)
