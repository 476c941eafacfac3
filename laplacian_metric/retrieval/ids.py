"""Names of items: whole numbers or text, each once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Of int64 or text.
Ids = NDArray[Any]
GivenIds = Sequence[int] | Sequence[str] | Ids


def as_ids(ids: GivenIds) -> Ids:
    """Ids as an array (N,) of int64 or text.

    Example:
        >>> as_ids([3, 1]), as_ids(["a", "bc"])
        (array([3, 1]), array(['a', 'bc'], dtype='<U2'))
    """
    if isinstance(ids, str):
        raise TypeError(f"ids is the text {ids!r}: pass a list, even of one id")
    if not isinstance(ids, np.ndarray):
        ids = list(ids)  # type: ignore[assignment]
        kinds = {str if isinstance(one, str) else type(one) for one in ids}
        if str in kinds and len(kinds) > 1:
            raise TypeError("ids has text and other things: either all ids are whole numbers or all are text")
    if len(ids) == 0:
        return np.zeros(0, dtype=np.int64)
    array: NDArray[Any] = np.asarray(ids)
    if array.ndim != 1:
        raise ValueError(f"ids has shape {array.shape}, one id for each item is needed: (N,)")
    if array.dtype.kind == "U":
        if not array.astype(bool).all():
            raise ValueError(f"ids has an empty text at index {int(np.flatnonzero(array == '')[0])}")
        return array
    if array.dtype.kind not in "iu":
        raise TypeError(f"ids has dtype {array.dtype}: whole numbers or text are needed")
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"ids has {array.max()}, which is more than 63 bits hold: pass such ids as text")
    return array.astype(np.int64)


def is_text(ids: Ids) -> bool:
    """Whether ids are text."""
    return ids.dtype.kind == "U"


def check_unique(ids: Ids, where: str = "") -> None:
    """Refuse an id that names two items."""
    ordered = np.sort(ids)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise ValueError(
            f"{len(repeated)} ids are repeated{where}, the first is {repeated[0]!s}: every item needs an id of its own"
        )


def check_same_kind(ids: Ids, other: Ids) -> None:
    """Refuse to mix numbers and text."""
    if is_text(ids) != is_text(other):
        has, wrong_kind = ("text", "numbers") if is_text(ids) else ("numbers", "text")
        raise TypeError(f"the ids of this index are {has} and those given are {wrong_kind}: pass {has}")


def nobody(ids: Ids, shape: tuple[int, ...]) -> Ids:
    """Ids of no item: -1 or empty text."""
    return np.full(shape, "" if is_text(ids) else -1, dtype=ids.dtype)


class RowsOfIds:
    """Which row has an id, by bisection."""

    def __init__(self, ids: Ids) -> None:
        self.ids = ids
        self.order: NDArray[np.int64] = np.argsort(ids, kind="stable")

    def find(self, wanted: Ids) -> NDArray[np.int64]:
        """The rows of some ids (n,); an id that nobody has is refused."""
        if len(wanted) == 0:
            return np.zeros(0, dtype=np.int64)
        check_same_kind(self.ids, wanted)
        place = np.searchsorted(self.ids, wanted, sorter=self.order)
        rows: NDArray[np.int64] = self.order[np.minimum(place, len(self.ids) - 1)]
        unknown = self.ids[rows] != wanted
        if unknown.any():
            raise KeyError(
                f"{int(unknown.sum())} of {len(wanted)} ids are not in the index, the first is {wanted[unknown][0]!s}"
            )
        return rows
