"""Collections in folders: what was calibrated, bound to the fingerprint of the items, which stay in their engine.

A folder is an `laplacian_metric.core.artifact`: ``manifest.json``, the files of a `Trust` without its gallery, and for
arrays in memory the items themselves.
"""

from __future__ import annotations

import logging
import os
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from laplacian_metric.core import artifact
from laplacian_metric.core.artifact import ArtifactError, Manifest
from laplacian_metric.retrieval.calibrations import Calibrations
from laplacian_metric.retrieval.engines.addresses import open_engine
from laplacian_metric.retrieval.engines.arrays import ArrayEngine
from laplacian_metric.retrieval.engines.collection import Collection
from laplacian_metric.retrieval.engines.engine import (
    EMBEDDING,
    FEATURES,
    ChangedCollectionError,
    Engine,
    Records,
)
from laplacian_metric.retrieval.engines.fingerprint import Fingerprint
from laplacian_metric.retrieval.gallery import kind_from_dict, kind_to_dict
from laplacian_metric.trust.storage import Stored, TrustEntry, from_payloads, to_payloads

LOGGER = logging.getLogger(__name__)

OF_TRUST, OF_ITEMS = "trust.", "items."  # what the names of their files begin with


class CollectionManifest(Manifest):
    """What the folder of a collection says about itself."""

    FORMAT: ClassVar[str] = "laplacian_metric collection"

    engine: str = Field(min_length=1)
    collection: str | None
    kind: dict[str, Any] | None
    source: str = Field(min_length=1)
    labelled: bool
    count: int = Field(ge=1)
    fingerprint: str = Field(pattern="^[0-9a-f]{32}$")
    largest: dict[str, float]
    calibrations: dict[str, Any]
    trust: TrustEntry | None = None
    items: dict[str, Stored]

    def payloads(self) -> set[str]:
        """Return the names of the files that have to be there."""
        of_trust = () if self.trust is None else self.trust.files(OF_TRUST).values()
        return {*of_trust, *(f"{OF_ITEMS}{name}.npy" for name in self.items)}


def save(collection: Collection, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write what was calibrated into a folder of its own, which is there whole or not at all.

    Items in Qdrant or Milvus stay there, items in memory are written too. Passwords and tokens are not.

    Args:
        collection: with its calibrations.
        folder: to be written.
        overwrite: replace a collection that is there; any other folder is left alone.
    """
    engine = collection.engine
    trust = collection.trust
    entry, of_trust = (None, {}) if trust is None else to_payloads(trust, OF_TRUST)
    arrays = _arrays(engine.records) if isinstance(engine, ArrayEngine) else {}
    manifest = CollectionManifest(
        engine=engine.address,
        collection=getattr(engine, "collection", None),
        kind=kind_to_dict(engine.kind) if isinstance(engine, ArrayEngine) else None,
        source=collection.source,
        labelled=collection.labelled,
        count=collection.fingerprint.count,
        fingerprint=collection.fingerprint.text,
        largest=dict(collection.gallery.largest),
        calibrations=collection.calibrations.to_dict(),
        trust=entry,
        items={
            name: Stored(shape=list(array.shape), dtype=array.dtype.str) for name, array in arrays.items()
        },
    )
    payloads: dict[str, artifact.Payload] = {f"{OF_ITEMS}{name}.npy": array for name, array in arrays.items()}
    artifact.save(folder, manifest, {**payloads, **of_trust}, overwrite=overwrite)


def load(
    folder: str | os.PathLike[str],
    *,
    engine: str | Engine | None = None,
    check: Literal["count", "items", "vectors"] = "items",
    changed: Literal["refuse", "withdraw"] = "refuse",
    mmap: bool = True,
    **options: Any,
) -> Collection:
    """Read what `save` wrote, connect to the engine, and see that the items are those that were calibrated on.

    Args:
        folder: what `save` wrote.
        engine: where the collection is now, if it has moved: an address, or an engine that is open.
        check: look at the number of items only, at what is kept beside the vectors of each, or at the vectors too.
        changed: what happens where the items have changed: refuse, or withdraw threshold, caps and match
            probabilities and forget all local scales, but keep the weights of `Trust`.
        mmap: leave items in memory-mapped files where the folder has them.
        options: passed on to the engine's client, for instance ``api_key`` or ``token``.

    Raises:
        ChangedCollectionError: the items have changed.
    """
    with artifact.load(folder, CollectionManifest) as opened:
        manifest = opened.manifest
        try:
            calibrations = Calibrations.from_dict(manifest.calibrations)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(
                f"the calibrations in {artifact.MANIFEST} of {opened.folder} cannot be read ({error!r}): copy the folder "
                "again"
            ) from error
        if manifest.kind is not None:
            used: Engine = ArrayEngine(_records(opened, mmap), kind_from_dict(manifest.kind))
        elif isinstance(engine, Engine):
            used = engine
        else:
            used = open_engine(engine or manifest.engine, manifest.collection or "", **options)
        fingerprint = Fingerprint(manifest.count, int(manifest.fingerprint, 16))
        collection = Collection(
            used,
            manifest.source,
            manifest.labelled,
            fingerprint,
            calibrations=calibrations,
            largest=dict(manifest.largest),
        )
        if manifest.trust is not None:
            collection.trust = from_payloads(manifest.trust, opened, OF_TRUST, gallery=collection.gallery)
    _bind(collection, check, changed)
    return collection


def _bind(collection: Collection, check: str, changed: str) -> None:
    """Compare the items with those that were calibrated on."""
    try:
        if check != "count":
            collection.check(vectors=check == "vectors")
        elif (count := len(collection)) != collection.fingerprint.count:
            raise ChangedCollectionError(
                f"the collection in {collection.engine.address} has {count} items, and {collection.fingerprint.count} "
                'were calibrated on: calibrate again, or open it with changed="withdraw"'
            )
    except ChangedCollectionError as error:
        if changed == "refuse":
            collection.close()
            raise
        LOGGER.warning("%s: its threshold is withdrawn", error)
        collection.adopt()


def _arrays(records: Records) -> dict[str, Any]:
    columns = {f"column.{name}": np.asarray(values) for name, values in records.payload.items()}
    return {"ids": records.ids, **records.vectors, **columns}


def _records(opened: artifact.Artifact[CollectionManifest], mmap: bool) -> Records:
    arrays = {
        name: opened.array(f"{OF_ITEMS}{name}.npy", shape=tuple(stored.shape), dtype=stored.dtype, mmap=mmap)
        for name, stored in opened.manifest.items.items()
    }
    columns = {
        name.removeprefix("column."): np.array(values)
        for name, values in arrays.items()
        if name.startswith("column.")
    }
    vectors = {space: arrays[space] for space in (EMBEDDING, FEATURES) if space in arrays}
    return Records(np.array(arrays["ids"]), vectors, columns)
