"""A `Trust` in a folder: the gallery's vectors in files that stay mapped, everything else in small arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core import artifact
from laplacian_metric.core.artifact import Manifest
from laplacian_metric.core.checked import Strict
from laplacian_metric.core.labelled_gallery import Head, LabelledGallery
from laplacian_metric.core.second_moment import SecondMoment
from laplacian_metric.core.vector_search import Vectors
from laplacian_metric.trust.calibration import CalibrationError, Logistic, Tail
from laplacian_metric.trust.novelty import Novelty
from laplacian_metric.trust.risk import FeatureRisk
from laplacian_metric.trust.searched import SearchedGallery
from laplacian_metric.trust.trust import Trust

PLAIN = (str, int, float, bool)
MAPPED = ("h", "z")  # the rest is small, and read into memory


class Stored(Strict):
    """The shape and the dtype of an array."""

    shape: list[int]
    dtype: str


class TrustEntry(Strict):
    """What a manifest says about a `Trust`: its numbers, its classes' names, and the shape of every array."""

    arrays: dict[str, Stored]
    numbers: dict[str, float]
    names: str | None  # of the classes, in JSON
    calibration_error: dict[str, float] | None

    def files(self, prefix: str = "") -> dict[str, str]:
        """Return the name of every array's file, by the name of the array."""
        return {name: f"{prefix}{name}.npy" for name in self.arrays}


class TrustManifest(Manifest):
    """What a saved `Trust` says about itself."""

    FORMAT: ClassVar[str] = "laplacian_metric trust"

    arrays: dict[str, Stored]
    numbers: dict[str, float]
    names: str | None
    calibration_error: dict[str, float] | None

    def entry(self) -> TrustEntry:
        """Return the fields of the `Trust`."""
        return TrustEntry(**{name: getattr(self, name) for name in TrustEntry.model_fields})

    def payloads(self) -> set[str]:
        """Return the files of all arrays."""
        return set(self.entry().files().values())


def save(trust: Trust, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a `Trust` into a folder, which is there whole or not at all."""
    entry, payloads = to_payloads(trust)
    artifact.save(folder, TrustManifest(**dict(entry)), payloads, overwrite=overwrite)


def load(folder: str | os.PathLike[str], *, mmap: bool = True) -> Trust:
    """Read what `save` wrote, after its files were found to be as they were written."""
    with artifact.load(folder, TrustManifest) as opened:
        return from_payloads(opened.manifest.entry(), opened, mmap=mmap)


def to_payloads(trust: Trust, prefix: str = "") -> tuple[TrustEntry, dict[str, artifact.Payload]]:
    """Return what a manifest has to say about a `Trust`, and its files, for an artifact that holds it among others.

    Args:
        trust: to be written.
        prefix: of the files' names.
    """
    arrays, novelty, gallery = _arrays(trust), trust.novelty, trust.gallery
    names = gallery.names if isinstance(gallery, LabelledGallery) else None
    numbers = {
        "alpha": trust.alpha,
        "slope.a": trust.slope[0],
        "slope.b": trust.slope[1],
        **{name: getattr(novelty, name) for name in ("threshold", "excess", "soft_threshold", "soft_excess")},
        **{
            f"tail{i}.{name}": getattr(tail, name)
            for i, tail in enumerate(novelty.tails)
            for name in ("threshold", "excess")
        },
    }
    if novelty.moment is not None:
        numbers |= {"moment.rest": novelty.moment.rest, "moment.main": novelty.moment.main}
    if novelty.ratio is not None:
        numbers |= {"ratio.scale": novelty.ratio[0], "ratio.log_mean": novelty.ratio[1]}
    if trust.known_slope is not None:
        numbers |= {"known_slope.a": trust.known_slope[0], "known_slope.b": trust.known_slope[1]}
    if trust.expected_ood is not None:
        numbers["expected_ood"] = trust.expected_ood
    if not trust.use_labels:
        numbers["use_labels"] = 0.0
    if trust.match is not None:
        numbers["match.intercept"] = trust.match.intercept
    error = trust.calibration_error
    entry = TrustEntry(
        arrays={
            name: Stored(shape=list(array.shape), dtype=array.dtype.str) for name, array in arrays.items()
        },
        numbers={name: float(value) for name, value in numbers.items()},
        names=None if names is None else _names_to_json(names),
        calibration_error=None if error is None else {k: float(v) for k, v in asdict(error).items()},
    )
    return entry, {file: arrays[name] for name, file in entry.files(prefix).items()}


def from_payloads(
    entry: TrustEntry,
    opened: artifact.Artifact[Any],
    prefix: str = "",
    *,
    mmap: bool = True,
    gallery: SearchedGallery | None = None,
) -> Trust:
    """Return the `Trust` in an open artifact.

    Args:
        entry: what the manifest says about it.
        opened: the artifact.
        prefix: of the files' names.
        mmap: leave the gallery's vectors in their files.
        gallery: what an engine searches, where the artifact holds no items.
    """
    arrays = {
        name: opened.array(
            file,
            shape=tuple(entry.arrays[name].shape),
            dtype=entry.arrays[name].dtype,
            mmap=mmap and name in MAPPED,
        )
        for name, file in entry.files(prefix).items()
    }
    numbers = entry.numbers
    head = Head(arrays["head.weight"], arrays.get("head.bias")) if "head.weight" in arrays else None
    gallery = _gallery(entry, arrays) if gallery is None else gallery
    tails = tuple(
        Tail(arrays[f"tail{i}"], numbers[f"tail{i}.threshold"], numbers[f"tail{i}.excess"])
        for i in range(sum(name.startswith("tail") for name in arrays))
    )
    moment = None
    if "moment.directions" in arrays:
        moment = SecondMoment(
            arrays["moment.directions"],
            arrays["moment.moments"],
            numbers["moment.rest"],
            int(numbers["moment.main"]),
        )
    novelty = Novelty(
        tails,
        numbers["threshold"],
        numbers["excess"],
        numbers["soft_threshold"],
        numbers["soft_excess"],
        moment,
        _pair(numbers, "ratio.scale", "ratio.log_mean"),
    )
    match = None
    if "match" in arrays:
        center, scale, weights = arrays["match"]
        match = Logistic(center, scale, weights, numbers["match.intercept"])
    error = entry.calibration_error
    return Trust(
        gallery,
        head,
        numbers["alpha"],
        novelty,
        match,
        (numbers["slope.a"], numbers["slope.b"]),
        None
        if error is None
        else CalibrationError(error["value"], error["low"], error["high"], int(error["queries"])),
        FeatureRisk.of_stored(arrays),
        bool(numbers.get("use_labels", 1.0)),
        _pair(numbers, "known_slope.a", "known_slope.b"),
        numbers.get("expected_ood"),
    )


def _pair(numbers: Mapping[str, float], first: str, second: str) -> tuple[float, float] | None:
    """Return two numbers, None where a folder of an earlier version does not have them."""
    return (numbers[first], numbers[second]) if first in numbers else None


def _gallery(entry: TrustEntry, arrays: Mapping[str, NDArray[Any]]) -> LabelledGallery:
    features = Vectors(arrays["h"], arrays["h.norms"])
    embeddings = Vectors(arrays["z"], arrays["z.norms"]) if "z" in arrays else features
    names = None if entry.names is None else _names_from_json(entry.names)
    scales = {space: arrays[f"scales.{space}"].copy() for space in ("h", "z")}
    return LabelledGallery(features, embeddings, names, arrays.get("codes"), scales)


def _arrays(trust: Trust) -> dict[str, NDArray[Any]]:
    gallery, novelty = trust.gallery, trust.novelty
    arrays: dict[str, NDArray[Any] | None] = {
        f"tail{i}": tail.reference for i, tail in enumerate(novelty.tails)
    }
    if isinstance(gallery, LabelledGallery):  # an engine keeps its items itself
        arrays |= {"h": gallery.features.rows, "h.norms": gallery.features.norms, "codes": gallery.codes}
        arrays |= {f"scales.{space}": gallery.scales[space] for space in ("h", "z")}
        if gallery.embeddings is not gallery.features:
            arrays |= {"z": gallery.embeddings.rows, "z.norms": gallery.embeddings.norms}
    if trust.head is not None:
        arrays |= {"head.weight": trust.head.weight, "head.bias": trust.head.bias}
    if novelty.moment is not None:
        arrays |= {"moment.directions": novelty.moment.directions, "moment.moments": novelty.moment.moments}
    if trust.match is not None:
        arrays["match"] = np.stack([trust.match.center, trust.match.scale, trust.match.weights])
    if trust.risk is not None:
        arrays |= trust.risk.stored()
    return {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}


def _names_to_json(names: list[Hashable]) -> str:
    """Return the classes' names as JSON, which has texts, numbers and None; tuples of these become lists."""
    for name in names:
        if name is not None and not all(
            isinstance(part, PLAIN) for part in (name if isinstance(name, tuple) else (name,))
        ):
            raise TypeError(
                f"the label {name!r} is a {type(name).__name__}, which a file cannot hold: use texts, numbers or "
                "tuples of them as labels"
            )
    return json.dumps(names)


def _names_from_json(text: str) -> list[Hashable]:
    return [tuple(name) if isinstance(name, list) else name for name in json.loads(text)]
