"""Result files: one for each cell and seed, in the form that reports read."""

from __future__ import annotations

import errno
import json
import math
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laplacian_metric.core.files import atomic_write
from laplacian_metric.runs.config import completed, differences
from laplacian_metric.runs.provenance import ROOT, without_paths
from laplacian_metric.runs.work import read_json

DONE, FAILED = "done", "failed"
FRAMES = 6  # of a traceback, the innermost
DIGITS = 5  # of numbers that are drawn
DRAWN = ("curves", "latent")
MEASURED = (
    "training",
    "retrieval",
    "scores",
    "calibration",
    "curves",
    "extremes",
    "latent",
    "intervals",
    "counts",
    "settings",
)


class Results:
    """The result files below a folder.

    Args:
        root: each cell has a folder in it, each seed a file.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, cell: str, seed: int) -> Path:
        """The file of one run."""
        return self.root / cell / f"seed{seed}.json"

    def read(self, cell: str, seed: int) -> dict[str, Any] | None:
        """The result of one run, or None where there is none."""
        return read_json(self.path(cell, seed))

    def write(self, cell: str, seed: int, content: Mapping[str, Any]) -> Path:
        """Write the result of one run, whole or not at all."""
        path = self.path(cell, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = finite({**dict.fromkeys(MEASURED), "cell": cell, "seed": seed, **content})
        for key in DRAWN:
            whole[key] = rounded(whole[key])
        ordered = {key: whole[key] for key in ("cell", "seed", "status", "error", *whole)}
        with atomic_write(path) as temporary:
            temporary.write_text(_text(ordered), encoding="utf-8")
        return path

    def remove(self, cell: str, seed: int) -> None:
        """Remove the result of one run."""
        self.path(cell, seed).unlink(missing_ok=True)

    def changes(self, cell: str, seed: int, config: Mapping[str, Any]) -> list[str]:
        """The keys in which a result was made with another configuration; of a failed one too."""
        found = self.read(cell, seed)
        if found is None:
            return []
        return differences(completed(found["config"]), config)


def finite(values: Any) -> Any:
    """The same values with None for those that JSON has no word for.

    Example:
        >>> finite({"r_auroc": float("nan"), "points": [1.0, float("inf")]})
        {'r_auroc': None, 'points': [1.0, None]}
    """
    if isinstance(values, Mapping):
        return {str(key): finite(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def rounded(values: Any) -> Any:
    """The same values with so many digits as can be seen in a drawing."""
    if isinstance(values, Mapping):
        return {key: rounded(value) for key, value in values.items()}
    if isinstance(values, list):
        return [rounded(value) for value in values]
    return float(f"{values:.{DIGITS}g}") if isinstance(values, float) else values


def _text(content: Mapping[str, Any]) -> str:
    """JSON with a line for every key at the top and below it, so that files stay small and differences readable."""
    lines = []
    for key, value in content.items():
        if isinstance(value, dict) and value:
            inner = ",\n".join(
                f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in value.items()
            )
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


# --- failures ---


def failure(error: BaseException) -> str:
    """What went wrong, with the innermost places of this project's sources, and no folder of this machine."""
    places = []
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_absolute() and path.is_relative_to(ROOT):
            places.append(f"{path.relative_to(ROOT).as_posix()}:{frame.lineno} in {frame.name}")
        else:
            places.append(f"{path.name}:{frame.lineno} in {frame.name}")
    said = without_paths(f"{type(error).__name__}: {error}")
    return f"{said} ({'; '.join(places[-FRAMES:])})" if places else said


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what led to it, is that there is no space left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "No space left on device" in str(error):  # as the writer of safetensors says it
            return True
        error = error.__cause__ or error.__context__
    return False
