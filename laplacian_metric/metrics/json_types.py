"""Numbers and arrays as JSON holds them: what is not defined is NaN in Python and null in a file."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _array(value: Any) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("is not a list of numbers, or its rows differ in length") from None


def _vector(value: Any) -> npt.NDArray[np.float64]:
    array = _array(value)
    if array.ndim != 1:
        raise ValueError(f"has {array.ndim} dimensions, not 1")
    return array


def _labels(value: Any) -> npt.NDArray[np.int64]:
    numbers = _vector(value)
    if not np.isfinite(numbers).all():
        raise ValueError("has an entry that is no number")
    return numbers.astype(np.int64)


def _listed(values: npt.NDArray[Any]) -> list[Any]:
    plain = values.astype(object)
    plain[~np.isfinite(values)] = None
    return plain.tolist()  # type: ignore[no-any-return]


def _or_empty(value: Any) -> Any:
    return value or {}


Number = Annotated[
    float,
    Field(strict=True),
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(_finite, when_used="json"),
]
Array = Annotated[npt.NDArray[np.float64], PlainValidator(_array), PlainSerializer(_listed)]
Vector = Annotated[npt.NDArray[np.float64], PlainValidator(_vector), PlainSerializer(_listed)]
Labels = Annotated[npt.NDArray[np.int64], PlainValidator(_labels), PlainSerializer(_listed)]
# What is left out or null in a file has no entries.
OrEmpty = BeforeValidator(_or_empty)
Numbers = Annotated[dict[str, Number], OrEmpty]
