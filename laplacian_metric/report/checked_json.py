"""Reading what a JSON file says, entry by entry, with errors that name the file and the entry."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

AGAIN = "remove the file and run its cell again"


class ResultFileError(ValueError):
    """A result file is damaged or not a result file."""


@dataclass(frozen=True)
class CheckedFile:
    """What is in a file is what it should be, or an error says which entry is not.

    Example:
        >>> file = CheckedFile(Path("seed0.json"))
        >>> file.number(None, "ece"), file.number(1, "ece")
        (nan, 1.0)
        >>> file.number("much", "ece")
        Traceback (most recent call last):
        ...
        laplacian_metric.report.checked_json.ResultFileError: seed0.json: ece is 'much', not a number; remove the ...
    """

    path: Path

    def wrong(self, where: str, what: str, remedy: str = AGAIN) -> NoReturn:
        """Raise the error."""
        raise ResultFileError(f"{self.path}: {where} {what}; {remedy}")

    def entry(self, mapping: Mapping[str, Any], name: str, where: str = "") -> Any:
        """An entry that must be there; it may be null."""
        if name not in mapping:
            self.wrong(f"{where}.{name}" if where else name, "is missing")
        return mapping[name]

    def mapping(self, value: object, where: str) -> Mapping[str, Any]:
        """A JSON object."""
        if not isinstance(value, Mapping):
            self.wrong(where, f"is {_shown(value)}, not an object")
        return value

    def sequence(self, value: object, where: str) -> Sequence[Any]:
        """A JSON array."""
        if not isinstance(value, list):
            self.wrong(where, f"is {_shown(value)}, not a list")
        return value

    def text(self, value: object, where: str) -> str:
        """A string that is not empty."""
        if not isinstance(value, str) or not value:
            self.wrong(where, f"is {_shown(value)}, not a text")
        return value

    def whole(self, value: object, where: str) -> int:
        """A whole number."""
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(where, f"is {_shown(value)}, not a whole number")
        return value

    def number(self, value: object, where: str) -> float:
        """A number; null is NaN."""
        if value is None:
            return math.nan
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong(where, f"is {_shown(value)}, not a number")
        return float(value)

    def numbers(self, value: object, where: str) -> dict[str, float]:
        """An object of numbers."""
        entries = self.mapping(value, where).items()
        return {name: self.number(entry, f"{where}.{name}") for name, entry in entries}

    def array(self, value: object, where: str, dimensions: int | None = None) -> npt.NDArray[np.float64]:
        """Nested lists of numbers, as float64; null is NaN."""
        self.sequence(value, where)
        try:
            array = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            self.wrong(where, "is not a list of numbers, or its rows differ in length")
        if dimensions is not None and array.ndim != dimensions:
            self.wrong(where, f"has {array.ndim} dimensions, not {dimensions}")
        return array


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
