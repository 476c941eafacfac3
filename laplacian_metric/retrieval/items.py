"""Distributions of directions as arrays, which is all that retrieval needs to know of an embedding, and their ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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


NORM_TOLERANCE = 1e-4
# What a direction may be off before it is rounded to unit length: half precision keeps three digits.
ROUGH_TOLERANCE = 1e-2
ROWS_AT_ONCE = 1 << 16

Floats = NDArray[np.float32]
Rows = slice | ArrayLike


@dataclass(frozen=True, eq=False)
class Items:
    """N directions in D dimensions, each with its concentration, as one posterior made them.

    Attributes:
        mean: (N, D) float32, unit rows.
        kappa: (N,) float32, at least 0; infinity is a point.
        uncertainty: (N,) float64, the greater the less sure.
        variance: (N, D) float32 before the norm, or None.
        source: what made them, the fingerprint of a posterior say; only items of one source can be compared.

    Example:
        >>> items = Items(np.eye(3), kappa=[10, 20, np.inf], uncertainty=[0.1, 0.05, 0], variance=None, source="a4f0")
        >>> len(items), items.dim, items[1:].kappa
        (3, 3, array([20., inf], dtype=float32))
    """

    mean: Floats
    kappa: Floats
    uncertainty: NDArray[np.float64]
    variance: Floats | None
    source: str

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source:
            raise ValueError(
                f"source is {self.source!r}: name what made the items, by the fingerprint of the posterior say"
            )
        mean = _array("mean", self.mean, np.float32, 2)
        if mean.shape[1] < 2:
            raise ValueError(f"mean has shape {mean.shape}: directions have at least two dimensions")
        object.__setattr__(self, "mean", mean)
        for name, dtype in (("kappa", np.float32), ("uncertainty", np.float64)):
            object.__setattr__(self, name, _array(name, getattr(self, name), dtype, 1))
        if self.variance is not None:
            object.__setattr__(self, "variance", _array("variance", self.variance, np.float32, 2))
        self._check_lengths()
        # Squares are added up without an array of them; an overflow is as wrong as any other length.
        with np.errstate(over="ignore", invalid="ignore"):
            norm = np.sqrt(np.einsum("nd,nd->n", mean, mean))
            off = np.flatnonzero(~(np.abs(norm - 1) <= NORM_TOLERANCE))
        if len(off):
            raise ValueError(
                f"mean has {len(off)} of {len(mean)} rows that are not of unit length, the first is row {off[0]} "
                f"with norm {norm[off[0]]:.6g}: divide each row by its norm, or leave out the images without a "
                "direction"
            )
        _refuse(
            "kappa",
            self.kappa,
            np.asarray(~(self.kappa >= 0)),
            "concentrations are from 0 (uniform) to infinity",
        )
        _refuse("uncertainty", self.uncertainty, np.asarray(np.isnan(self.uncertainty)), "numbers are needed")
        if self.variance is not None:
            for start in range(0, len(self), ROWS_AT_ONCE):
                part = self.variance[start : start + ROWS_AT_ONCE]
                wrong = np.asarray(~((part >= 0) & (part < np.inf)).all(axis=1))
                _refuse("variance", part, wrong, "variances are finite and at least 0", start)

    def _check_lengths(self) -> None:
        num, dim = self.mean.shape
        for name in ("kappa", "uncertainty"):
            if len(getattr(self, name)) != num:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {num} directions")
        if self.variance is not None and self.variance.shape != (num, dim):
            raise ValueError(f"variance has shape {self.variance.shape}, ({num}, {dim}) is needed")

    @staticmethod
    def of(embedding: Any, *, source: str | None = None, variance: bool = True) -> Items:
        """The items of a `StochasticEmbedding`, or of whatever has its attributes as tensors or arrays.

        Args:
            embedding: with ``mean``, ``kappa``, ``uncertainty`` and, where there are ``gaussians``, ``variance``.
            source: the fingerprint of the posterior or encoder that made it; by default the one that it carries.
            variance: whether to keep the variance, which takes as much memory as the directions.
        """
        fingerprint = getattr(embedding, "source", None)
        if source is None and fingerprint is None:
            raise ValueError(
                "the embedding does not say what made it: pass source=, the name or fingerprint of its model"
            )
        if None not in (source, fingerprint) and source != fingerprint:
            raise ValueError(
                f"source is {source!r}, but the embedding was made by {fingerprint!r}: leave source out"
            )
        source = source or fingerprint
        assert source is not None
        kept = None
        if variance and getattr(embedding, "gaussians", None) is not None:
            kept = _numpy(embedding.variance)
        with np.errstate(over="ignore"):  # a concentration beyond float32 is a point
            return Items(
                _rounded_to_unit(_numpy(embedding.mean)),
                _numpy(embedding.kappa).astype(np.float32),
                _numpy(embedding.uncertainty).astype(np.float64),
                kept,
                source,
            )

    @classmethod
    def trusted(
        cls,
        mean: Floats,
        kappa: Floats,
        uncertainty: NDArray[np.float64],
        variance: Floats | None,
        source: str,
    ) -> Items:
        """Items whose values were checked before and have not changed since; only their shapes are looked at.

        Checking the values reads all of them, and mapped files are not to be read before they are needed.
        """
        unchecked = cls.__new__(cls)
        arrays = {"mean": mean, "kappa": kappa, "uncertainty": uncertainty, "variance": variance}
        for name, value in {**arrays, "source": source}.items():
            object.__setattr__(unchecked, name, value)
        unchecked._check_lengths()
        return unchecked

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def dim(self) -> int:
        """D."""
        return int(self.mean.shape[1])

    def __getitem__(self, rows: Rows) -> Items:
        """Some of the items: a slice, row numbers, or a boolean for each row."""
        if not isinstance(rows, slice):
            rows = row_numbers(rows, len(self))
        return Items.trusted(
            self.mean[rows],
            self.kappa[rows],
            self.uncertainty[rows],
            None if self.variance is None else self.variance[rows],
            self.source,
        )

    @staticmethod
    def cat(parts: Sequence[Items]) -> Items:
        """All items of several parts, in order; they need one source and as many dimensions.

        Example:
            >>> one = Items(np.eye(2), [1, 2], [1, 0.5], None, "a4f0")
            >>> len(Items.cat([one, one[:1]]))
            3
        """
        if not parts:
            raise ValueError("there are no parts: at least one is needed")
        for part in parts[1:]:
            check_alike(parts[0], part, "the first part", "another part")
        variances = [part.variance for part in parts if part.variance is not None]
        if len(variances) not in (0, len(parts)):
            raise ValueError(
                "some items have a variance and some have not: make them alike, by Items.of(..., variance=False) say"
            )
        return Items.trusted(
            np.concatenate([part.mean for part in parts]),
            np.concatenate([part.kappa for part in parts]),
            np.concatenate([part.uncertainty for part in parts]),
            np.concatenate(variances) if variances else None,
            parts[0].source,
        )

    def without_variance(self) -> Items:
        """The same items with less to keep."""
        return Items.trusted(self.mean, self.kappa, self.uncertainty, None, self.source)


def check_alike(one: Any, other: Any, name: str, other_name: str) -> None:
    """Refuse to compare what different posteriors made: cosines between them mean nothing."""
    if one.dim != other.dim:
        raise ValueError(
            f"{other_name} has {other.dim} dimensions and {name} {one.dim}: they were not made by the same network"
        )
    if one.source != other.source:
        first, second = _beginnings(one.source, other.source)
        raise ValueError(
            f"{other_name} comes from {second} and {name} from {first}: only what one posterior made can be "
            "compared, so embed both with the same one"
        )


def angles(first: Floats, second: Floats) -> NDArray[np.float64]:
    """The angles between unit vectors (..., D), from 0 to pi; exact where a cosine in float32 is 1 to all digits.

    Example:
        >>> angles(np.float32([[1, 0], [1, 0]]), np.float32([[0, 1], [1, 1e-5]])).round(7)
        array([1.5707963e+00, 1.0000000e-05])
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    apart = np.linalg.norm(one - two, axis=-1)
    between: NDArray[np.float64] = 2 * np.arctan2(apart, np.linalg.norm(one + two, axis=-1))
    return between


# --- arrays ---


def _array(name: str, values: ArrayLike, dtype: type[np.floating[Any]], ndim: int) -> NDArray[Any]:
    """Of the dtype, in memory order, and not to be written to through the items."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} has dtype {array.dtype}, real numbers are needed")
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(array, dtype=dtype)
    if array.ndim != ndim or np.asarray(values).ndim != ndim:
        needed = "(N, D)" if ndim == 2 else "(N,)"
        raise ValueError(f"{name} has shape {np.shape(values)}, {needed} is needed")
    view = array.view()
    view.flags.writeable = False
    frozen: NDArray[Any] = view
    return frozen


def _numpy(values: Any) -> NDArray[Any]:
    """An array from a tensor, which is known by its methods, or from an array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        # numpy has no bfloat16
        values = (values if "float64" in str(values.dtype) else values.float()).numpy()
    return np.asarray(values)


def _rounded_to_unit(mean: NDArray[Any]) -> NDArray[Any]:
    """Rows of unit length in float32; what low precision took off their length is given back."""
    if mean.ndim != 2:
        return mean
    rounded = np.empty(mean.shape, dtype=np.float32)
    for start in range(0, len(mean), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        exact = mean[rows].astype(np.float64)
        norm = np.linalg.norm(exact, axis=1, keepdims=True)
        near = np.abs(norm - 1) <= ROUGH_TOLERANCE
        # What is no unit vector is left as it is, and refused with its row.
        rounded[rows] = np.divide(exact, norm, out=exact, where=near)
    return rounded


def _refuse(name: str, values: NDArray[Any], wrong: NDArray[np.bool_], why: str, first_row: int = 0) -> None:
    rows = np.flatnonzero(wrong)
    if len(rows):
        value = f" ({values[rows[0]]})" if values.ndim == 1 else ""
        raise ValueError(
            f"{name} is wrong in {len(rows)} of {len(values)} rows, the first is row {first_row + rows[0]}{value}: "
            f"{why}"
        )


def row_numbers(rows: ArrayLike, num: int) -> NDArray[np.int64]:
    numbers = np.asarray(rows)
    if numbers.ndim != 1:
        raise ValueError(
            f"rows has shape {numbers.shape}: pass a slice, row numbers or a boolean for each row"
        )
    if numbers.dtype == np.bool_:
        if len(numbers) != num:
            raise ValueError(f"rows has {len(numbers)} booleans for {num} items")
        return np.flatnonzero(numbers)
    if len(numbers) == 0:
        return np.zeros(0, dtype=np.int64)
    if numbers.dtype.kind not in "iu":
        raise TypeError(
            f"rows has dtype {numbers.dtype}: pass a slice, row numbers or a boolean for each row"
        )
    wrong = (numbers < -num) | (numbers >= num)
    if wrong.any():
        raise IndexError(f"there is no row {numbers[wrong][0]} among {num} items")
    return numbers.astype(np.int64)


def _beginnings(first: str, second: str) -> tuple[str, str]:
    """Enough of both to tell them apart."""
    length = 12
    while first[:length] == second[:length] and length < max(len(first), len(second)):
        length *= 2
    one, other = (text if len(text) <= length else text[:length] + "..." for text in (first, second))
    return one, other
