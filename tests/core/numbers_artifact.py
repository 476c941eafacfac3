"""A small artifact, for tests and for the processes that they start."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from laplacian_metric.core.artifact import Manifest, save


class Numbers(Manifest):
    """Two arrays that have to be of one version, and a text."""

    FORMAT: ClassVar[str] = "laplacian_metric numbers"
    PAYLOADS: ClassVar[tuple[str, ...]] = ("a.npy", "b.npy", "c.txt")

    number: int
    length: int


def write(folder: Path, number: int = 0, length: int = 100, overwrite: bool = True) -> Path:
    array = np.full(length, number)
    payloads = {"a.npy": array, "b.npy": -array, "c.txt": lambda path: path.write_text(str(number))}
    return save(folder, Numbers(number=number, length=length), payloads, overwrite=overwrite)
