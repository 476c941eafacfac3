"""What a result file says of pairs of images: how they are verified, and where some of them lie in their space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from laplacian_metric.report.checked_json import CheckedFile

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Space:
    """Some images of a set as mixtures of Gaussians, and the centres of all classes.

    Attributes:
        means, variances: (n, C, Z).
        labels: (n,).
        centres: (K, Z).
        centre_labels: (K,).
    """

    means: Array
    variances: Array
    labels: npt.NDArray[np.int64]
    centres: Array
    centre_labels: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Verification:
    """Figures of one test set.

    Attributes:
        values: by name; NaN where there is none.
        correlations: of every uncertainty with performance, by the uncertainty's name and by what is performed.
        bins: for the same the performance from the lowest to the highest uncertainty.
        space: where spaces can be drawn.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    correlations: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bins: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    space: Space | None = None


def read_verification(file: CheckedFile, value: object) -> dict[str, Verification]:
    """The sets of a result file by name; none where nothing was measured."""
    if value is None:
        return {}
    return {
        name: _set(file, entry, f"verification.{name}")
        for name, entry in file.mapping(value, "verification").items()
    }


def _set(file: CheckedFile, value: object, where: str) -> Verification:
    entries = file.mapping(value, where)
    nested = ("correlations", "bins", "space")
    correlations, bins = (
        file.mapping(entries.get(key) or {}, f"{where}.{key}") for key in ("correlations", "bins")
    )
    return Verification(
        file.numbers({key: entry for key, entry in entries.items() if key not in nested}, where),
        {name: file.numbers(entry, f"{where}.correlations.{name}") for name, entry in correlations.items()},
        {
            name: {
                key: file.array(numbers, f"{where}.bins.{name}.{key}", 1)
                for key, numbers in file.mapping(entry, f"{where}.bins.{name}").items()
            }
            for name, entry in bins.items()
        },
        _space(file, entries.get("space"), f"{where}.space"),
    )


def _space(file: CheckedFile, value: object, where: str) -> Space | None:
    if value is None:
        return None
    entries = file.mapping(value, where)
    means, variances = (
        file.array(file.entry(entries, key, where), f"{where}.{key}", 3) for key in ("means", "variances")
    )
    if means.shape != variances.shape:
        file.wrong(f"{where}.variances", f"has the shape {variances.shape} for means {means.shape}")
    centres = file.mapping(file.entry(entries, "centres", where), f"{where}.centres")
    points = file.array(file.entry(centres, "points", where), f"{where}.centres.points", 2)
    labels = _labels(file, file.entry(entries, "labels", where), len(means), f"{where}.labels")
    of_centres = _labels(file, file.entry(centres, "labels", where), len(points), f"{where}.centres.labels")
    if points.shape[1] != means.shape[2]:
        file.wrong(f"{where}.centres", f"has {points.shape[1]} dimensions for means of {means.shape[2]}")
    return Space(means, variances, labels, points, of_centres)


def _labels(file: CheckedFile, value: object, number: int, where: str) -> npt.NDArray[np.int64]:
    found = [file.whole(entry, where) for entry in file.sequence(value, where)]
    if len(found) != number:
        file.wrong(where, f"has {len(found)} entries for {number} points")
    return np.asarray(found, dtype=np.int64)
