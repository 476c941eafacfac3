"""Result files, `<results>/<cell>/seed<k>.json`: what a cell gave with one seed; read, checked and written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, model_validator

from experiments.harness.config import differences
from experiments.harness.work import RunError, write_text
from laplacian_metric.core.checked import (
    Array,
    Labels,
    Number,
    Numbers,
    OrEmpty,
    Vector,
    finite,
    read_json,
    validated,
)
from laplacian_metric.metrics.evaluation import OWN, TEST, Evaluation

__all__ = [
    "OWN",
    "Result",
    "ResultFileError",
    "Results",
    "Space",
    "read_results",
]

DONE, FAILED = "done", "failed"
AGAIN = "remove the file and run its cell again"
DIGITS = 5  # of numbers that are drawn
DRAWN = ("curves",)


class ResultFileError(RunError, ValueError):
    """A result file is damaged or not a result file."""


class Epoch(BaseModel):
    """One epoch of training: the mean loss, and metrics of the validation images.

    `precision` is what the network computed in; None in files that do not say it.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Number]

    epoch: StrictInt
    loss: Number = math.nan
    seconds: Number = math.nan
    precision: str | None = None

    @property
    def validation(self) -> Mapping[str, float]:
        """The metrics of the validation images by name."""
        return self.__pydantic_extra__


class Training(BaseModel):
    """The epochs in order, and which of them was kept."""

    model_config = ConfigDict(frozen=True)

    history: tuple[Epoch, ...]
    best_epoch: StrictInt | None = None


@dataclass(frozen=True, eq=False)
class Space:
    """Some images as mixtures of Gaussians, and the centres of all classes.

    Attributes:
        means, variances: (n, C, Z).
        labels: (n,).
        centres: (K, Z).
        centre_labels: (K,).
    """

    means: Array
    variances: Array
    labels: Labels
    centres: Array
    centre_labels: Labels


def _centres(content: Any) -> Any:
    centres = content.get("centres") if isinstance(content, Mapping) else None
    if not isinstance(centres, Mapping):
        return content
    return {**content, "centres": centres.get("points"), "centre_labels": centres.get("labels")}


class Verification(BaseModel):
    """How pairs of images of one test set are verified.

    Attributes:
        correlations: of every uncertainty with performance, by the uncertainty's name and by what is performed.
        bins: for the same the performance from the lowest to the highest uncertainty.
        space: where spaces can be drawn.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Number]

    correlations: Annotated[dict[str, Numbers], OrEmpty] = Field(default_factory=dict)
    bins: Annotated[dict[str, dict[str, Vector]], OrEmpty] = Field(default_factory=dict)
    space: Annotated[Space | None, BeforeValidator(_centres)] = None

    @property
    def values(self) -> Mapping[str, float]:
        """The other numbers by name; NaN where there is none."""
        return self.__pydantic_extra__


class Result(Evaluation):
    """One cell with one seed. `error` says why a failed one has no numbers; numbers that are undefined are NaN."""

    file_format: Literal[1] = Field(default=1, alias="schema")
    cell: str = Field(min_length=1)
    seed: StrictInt
    status: Literal["done", "failed"] = "done"
    error: str | None = None
    commit: str = "unknown"
    command: str = "unknown"
    config: Mapping[str, Any] = Field(default_factory=dict)
    environment: Mapping[str, Any] = Field(default_factory=dict)
    seconds: Numbers = Field(default_factory=dict)
    training: Training | None = None
    verification: dict[str, Verification] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        stored = {key: value for key, value in content.items() if value is not None}
        if stored.get("status") == FAILED:
            stored.setdefault("error", "it does not say why")
        return stored

    @property
    def done(self) -> bool:
        """Whether there are numbers."""
        return self.error is None


def read_results(folder: Path) -> list[Result]:
    """Return all results below a folder, by cell and seed.

    Raises:
        ResultFileError: the folder has none, one cannot be read, or two are of the same cell and seed; the message
            names the file and says what to do.
    """
    if not folder.is_dir():
        raise ResultFileError(
            f"there is no folder {folder}: run the experiments first, or name another folder"
        )
    results = {path: read_result(path) for path in sorted(folder.rglob("seed*.json"))}
    if not results:
        raise ResultFileError(f"{folder} holds no file <cell>/seed<k>.json: run the experiments first")
    for path, result in results.items():
        place = f"{result.cell}/seed{result.seed}.json"
        if path.relative_to(folder).as_posix() != place:
            raise ResultFileError(
                f"{path} says that it is {result.cell}, seed {result.seed}, which belongs into {place}: move it there "
                "or remove it"
            )
    return sorted(results.values(), key=lambda result: (result.cell, result.seed))


def read_result(path: Path) -> Result:
    """Return the result in a file.

    Raises:
        ResultFileError: it is not whole, or not what such a file looks like.
    """
    try:
        content = read_json(path, AGAIN)
        for key in ("status", *(("retrieval",) if content.get("status") != FAILED else ())):
            if key not in content:
                raise ValueError(f"{path}: {key} is missing; {AGAIN}")
        result = validated(Result, content, path, AGAIN)
        if result.done and TEST not in result.retrieval:
            raise ValueError(f"{path}: retrieval.test is missing; {AGAIN}")
    except ValueError as error:
        raise ResultFileError(str(error)) from error
    return result


class Results:
    """The result files below a folder.

    Args:
        root: each cell has a folder in it, each seed a file.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, cell: str, seed: int) -> Path:
        """Return the file of one run."""
        return self.root / cell / f"seed{seed}.json"

    def read(self, cell: str, seed: int) -> Result | None:
        """Return the result of one run, or None where there is none."""
        path = self.path(cell, seed)
        return read_result(path) if path.is_file() else None

    def write(self, cell: str, seed: int, content: Mapping[str, Any]) -> Result:
        """Write the result of one run, whole or not at all, and return it."""
        path = self.path(cell, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = finite({"cell": cell, "seed": seed, **content})
        for key in DRAWN:
            record[key] = rounded(record.get(key))
        result = validated(Result, record, path, "this is not what a result looks like")
        ordered = {key: record[key] for key in ("cell", "seed", "status", "error", *record)}
        write_text(path, record_text(ordered))
        return result

    def changes(self, cell: str, seed: int, config: Mapping[str, Any]) -> list[str]:
        """Return the keys in which a result was made with another configuration; of a failed one too."""
        result = self.read(cell, seed)
        return [] if result is None else differences(result.config, config)

    def remove(self, cell: str, seed: int) -> None:
        """Remove the result of one run."""
        self.path(cell, seed).unlink(missing_ok=True)


def rounded(values: Any) -> Any:
    """Return the same values with so many digits as can be seen in a drawing."""
    if isinstance(values, Mapping):
        return {key: rounded(value) for key, value in values.items()}
    if isinstance(values, list):
        return [rounded(value) for value in values]
    return float(f"{values:.{DIGITS}g}") if isinstance(values, float) else values


def record_text(content: Mapping[str, Any]) -> str:
    """Return JSON with a line for every key at the top and below it: small files, readable differences."""
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
