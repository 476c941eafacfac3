"""The stored tables, and random distributions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FOLDER = Path(__file__).resolve().parent


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of ``normalizer.json`` or ``projected.json``, as make_tables.py wrote them."""
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def column(name: str, dim: int) -> Tensor:
    """One column of the table of normalisers, float64."""
    return torch.tensor(
        [float(row[name]) for row in rows("normalizer.json") if row["dim"] == dim], dtype=torch.float64
    )


def directions(num: int, dim: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random unit vectors (num, dim)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(num, dim, generator=generator, dtype=dtype), dim=1)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """The largest relative error; of float64 numbers."""
    assert actual.shape == expected.shape
    return float(((actual.double() - expected) / expected).abs().max())
