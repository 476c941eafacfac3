"""Trust in a folder: what was calibrated, the view, and array galleries; any other gallery by its address."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from laplacian_metric.core import artifact, gallery_files
from laplacian_metric.core.array_gallery import ArrayGallery
from laplacian_metric.core.artifact import Artifact, Manifest
from laplacian_metric.core.checked import Strict
from laplacian_metric.core.gallery import Gallery, open_gallery
from laplacian_metric.trust.calibration import Calibration, Each
from laplacian_metric.trust.fitting import CalibrationError, Logistic
from laplacian_metric.trust.head import Head
from laplacian_metric.trust.novelty import Novelty, Tail
from laplacian_metric.trust.trust import Spaces, Trust
from laplacian_metric.trust.view import GaussianView

MATCH, EACH, TAILS, LOGITS, RIGHT = "match.npy", "each.npy", "tails.npy", "logits.npy", "right.npy"
VIEW = ("basis", "whitening", "mean", "precision", "means")
HEAD = ("weight", "bias")
GALLERY, FEATURES = "gallery", "features"


class LogisticEntry(Strict):
    """A logistic without its arrays."""

    names: list[str]
    intercept: float


class EachEntry(Strict):
    """The calibration of each of the first k items without its arrays."""

    k: int = Field(ge=1)
    match: LogisticEntry
    slope: list[float] = Field(min_length=2, max_length=2)


class ErrorEntry(Strict):
    """A calibration error."""

    value: float
    low: float
    high: float
    queries: int
    items: int


class ViewEntry(Strict):
    """A Gaussian view without its arrays."""

    names: list[Any]
    items: int


class AddressEntry(Strict):
    """A gallery that stays where it is: its address without credentials, and how it calls its fields."""

    address: str
    dim: int
    fields: dict[str, Any] = Field(default={})


class TrustManifest(Manifest):
    """What the folder of a Trust says about itself."""

    FORMAT: ClassVar[str] = "laplacian_metric trust"
    PAYLOADS: ClassVar[tuple[str, ...]] = (MATCH, TAILS, LOGITS, RIGHT)
    OPTIONAL: ClassVar[tuple[str, ...]] = (EACH, *(f"{n}.npy" for n in (*VIEW, *HEAD)), GALLERY, FEATURES)

    target: str
    answered: str
    threshold: float
    next_id: int  # which an item that is added without an id gets
    inputs: dict[str, float | str]
    match: LogisticEntry
    tails: list[str]
    limit: float
    excess: float
    slope: list[float] = Field(min_length=2, max_length=2)
    expected_ood: float | None
    alpha: float
    error: ErrorEntry | None
    note: str
    each: EachEntry | None
    view: ViewEntry | None
    gallery: AddressEntry | None
    features: AddressEntry | None


def save(trust: Trust, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a Trust into a folder, which is there whole or not at all."""
    spaces, calibration = trust.spaces, trust.calibration
    tails = [*calibration.novelty.tails.values(), calibration.novelty.total]
    payloads: dict[str, Any] = {
        MATCH: _arrays(calibration.match),
        TAILS: np.stack([np.concatenate([[tail.threshold, tail.excess], tail.reference]) for tail in tails]),
        LOGITS: np.stack([calibration.logits, calibration.totals]),
        RIGHT: calibration.right,
    }
    each, view = None, None
    if calibration.each is not None:
        payloads[EACH] = _arrays(calibration.each.match)
        each = EachEntry(
            k=calibration.each.k, match=_entry(calibration.each.match), slope=list(calibration.each.slope)
        )
    if spaces.view is not None:
        payloads |= {f"{name}.npy": getattr(spaces.view, name) for name in VIEW}
        names = [gallery_files.to_json(name) for name in spaces.view.names]
        view = ViewEntry(names=names, items=spaces.view.items)
    if spaces.head is not None:
        payloads |= {f"{name}.npy": getattr(spaces.head, name) for name in HEAD}
    addresses = {}
    for name, gallery in ((GALLERY, spaces.gallery), (FEATURES, spaces.features)):
        if isinstance(gallery, ArrayGallery):
            payloads[name] = _saver(gallery)
        elif gallery is not None:
            fields = getattr(gallery, "fields", None)
            addresses[name] = AddressEntry(
                address=gallery.address, dim=gallery.dim, fields={} if fields is None else vars(fields)
            )
    manifest = TrustManifest(
        target=trust.target,
        answered=trust.answered,
        threshold=trust.threshold,
        next_id=trust.next_id,
        inputs=trust.inputs,
        match=_entry(calibration.match),
        tails=list(calibration.novelty.tails),
        limit=calibration.novelty.limit,
        excess=calibration.novelty.excess,
        slope=list(calibration.slope),
        expected_ood=calibration.expected_ood,
        alpha=calibration.alpha,
        error=None if calibration.error is None else ErrorEntry(**vars(calibration.error)),
        note=calibration.note,
        each=each,
        view=view,
        gallery=addresses.get(GALLERY),
        features=addresses.get(FEATURES),
    )
    artifact.save(folder, manifest, payloads, overwrite=overwrite)


def load(folder: str | os.PathLike[str], gallery: Gallery | None, features: Gallery | None) -> Trust:
    """Read what `save` wrote; galleries that are passed take the places of those that were saved."""
    with artifact.load(folder, TrustManifest) as opened:
        stored = opened.manifest
        table = opened.array(TAILS, mmap=False)
        tails = [Tail(row[2:], float(row[0]), float(row[1])) for row in table]
        novelty = Novelty(
            dict(zip(stored.tails, tails[:-1], strict=True)), tails[-1], stored.limit, stored.excess
        )
        logits = opened.array(LOGITS, mmap=False)
        right = opened.array(RIGHT, dtype=bool, mmap=False)
        each = None
        if stored.each is not None:
            each = Each(stored.each.k, _logistic(opened, EACH, stored.each.match), _pair(stored.each.slope))
        view = None
        if stored.view is not None:
            names = tuple(gallery_files.from_json(name) for name in stored.view.names)
            arrays = {name: opened.array(f"{name}.npy", mmap=False) for name in VIEW}
            view = GaussianView(**arrays, names=names, items=stored.view.items)
        head = None
        if "weight.npy" in stored.files:
            head = Head(*(opened.array(f"{name}.npy", mmap=False) for name in HEAD))
        spaces = Spaces(
            gallery if gallery is not None else _gallery(opened, GALLERY, stored.gallery),
            features if features is not None else _gallery(opened, FEATURES, stored.features),
            head,
            view,
        )
        match = _logistic(opened, MATCH, stored.match)
    calibration = Calibration(
        match,
        novelty,
        _pair(stored.slope),
        stored.expected_ood,
        stored.alpha,
        logits[0],
        logits[1],
        right,
        None if stored.error is None else CalibrationError(**stored.error.model_dump()),
        stored.note,
        each,
    )
    return Trust(
        spaces,
        calibration,
        stored.target,
        stored.answered,
        stored.threshold,
        dict(stored.inputs),
        stored.next_id,
    )


def _pair(slope: list[float]) -> tuple[float, float]:
    return slope[0], slope[1]


def _saver(gallery: ArrayGallery) -> Any:
    return lambda path: gallery_files.save(gallery, path)


def _gallery(opened: Artifact[TrustManifest], name: str, entry: AddressEntry | None) -> Gallery | None:
    if name in opened.manifest.files:
        return gallery_files.load(opened.path(name))
    return None if entry is None else open_gallery(entry.address, entry.dim, **entry.fields)


def _entry(logistic: Logistic) -> LogisticEntry:
    return LogisticEntry(names=list(logistic.names), intercept=logistic.intercept)


def _arrays(logistic: Logistic) -> Any:
    return np.stack([logistic.low, logistic.high, logistic.center, logistic.scale, logistic.weights])


def _logistic(opened: Artifact[TrustManifest], name: str, entry: LogisticEntry) -> Logistic:
    low, high, center, scale, weights = opened.array(name, shape=(5, len(entry.names)), mmap=False)
    return Logistic(tuple(entry.names), low, high, center, scale, weights, entry.intercept)
