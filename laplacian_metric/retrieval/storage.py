"""Indexes in folders: arrays that are mapped, FAISS' index, and a manifest that holds what was calibrated.

A folder is an `laplacian_metric.core.artifact`: ``manifest.json``, ``mean.npy``, ``kappa.npy``, ``uncertainty.npy``,
``ids.npy``, where there is a variance ``variance.npy``, and ``index.faiss`` for kinds that have one;
the files of a `Trust`, where the index has one, begin with ``trust.``.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from laplacian_metric.core import artifact
from laplacian_metric.core.artifact import ArtifactError, Manifest, MissingArtifactError
from laplacian_metric.retrieval.calibrations import Calibrations
from laplacian_metric.retrieval.gallery import Flat, Kind, faiss, kind_from_dict, kind_to_dict
from laplacian_metric.retrieval.index import Index
from laplacian_metric.retrieval.items import Items
from laplacian_metric.trust.storage import TrustEntry, from_payloads, to_payloads

if TYPE_CHECKING:
    from laplacian_metric.retrieval.engines.collection import Collection

LOGGER = logging.getLogger(__name__)

FAISS = "index.faiss"
OF_TRUST = "trust."  # what the names of its files begin with
FAISS_CLASSES = {"ivf": "IndexIVFFlat", "hnsw": "IndexHNSWFlat"}
DTYPES: dict[str, tuple[type[np.floating[Any]], int]] = {
    "mean": (np.float32, 2),
    "kappa": (np.float32, 1),
    "uncertainty": (np.float64, 1),
    "variance": (np.float32, 2),
}
DamagedIndexError = ArtifactError


class IndexManifest(Manifest):
    """What the folder of an index says about itself."""

    FORMAT: ClassVar[str] = "laplacian_metric index"

    kind: dict[str, Any]
    source: str = Field(min_length=1)
    count: int = Field(ge=0)
    dim: int = Field(ge=0)
    variance: bool
    calibrations: dict[str, Any]
    trust: TrustEntry | None = None

    def arrays(self) -> dict[str, tuple[type[np.floating[Any]], tuple[int, ...]]]:
        """Return the dtype and the shape of the items' arrays, by name."""
        shapes = {1: (self.count,), 2: (self.count, self.dim)}
        return {
            name: (dtype, shapes[ndim])
            for name, (dtype, ndim) in DTYPES.items()
            if self.variance or name != "variance"
        }

    def payloads(self) -> set[str]:
        """Return the names of the files that have to be there."""
        searched = [] if self.kind.get("name") == Flat.name else [FAISS]
        of_trust = () if self.trust is None else self.trust.files(OF_TRUST).values()
        return {*(f"{name}.npy" for name in self.arrays()), "ids.npy", *searched, *of_trust}


def save(index: Index, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write an index into a folder of its own, which is there whole or not at all.

    Args:
        index: with its calibrations.
        folder: to be written.
        overwrite: replace an index that is there; any other folder is left alone. Whoever has loaded the old index
            keeps it.
    """
    state = index.state
    items, built = state.gallery.parts[0], state.gallery.built
    entry, of_trust = (None, {}) if state.trust is None else to_payloads(state.trust, OF_TRUST)
    manifest = IndexManifest(
        kind=kind_to_dict(index.kind),
        source=items.source,
        count=len(items),
        dim=items.dim,
        variance=items.variance is not None,
        calibrations=state.calibrations.to_dict(),
        trust=entry,
    )
    payloads: dict[str, artifact.Payload] = {
        f"{name}.npy": getattr(items, name) for name in manifest.arrays()
    }
    payloads |= {"ids.npy": state.gallery.ids, **of_trust}
    if built is not None:
        payloads[FAISS] = lambda path: _write_faiss(built, path)
    artifact.save(folder, manifest, payloads, overwrite=overwrite)


def load(folder: str | os.PathLike[str], *, mmap: bool = True) -> Index:
    """Read an index after its files were found to be as they were written.

    Args:
        folder: what `save` wrote.
        mmap: leave the arrays in their files, from which the parts that a query needs are read; otherwise read all
            into memory. FAISS' own index, of kinds that have one, is always read into memory.
    """
    with artifact.load(folder, IndexManifest) as opened:
        manifest = opened.manifest
        try:
            kind, calibrations = (
                kind_from_dict(manifest.kind),
                Calibrations.from_dict(manifest.calibrations),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedIndexError(
                f"the kind or the calibrations in {artifact.MANIFEST} of {opened.folder} cannot be read ({error!r}): copy "
                "the folder again"
            ) from error
        arrays = {
            name: opened.array(f"{name}.npy", shape=shape, dtype=dtype, mmap=mmap)
            for name, (dtype, shape) in manifest.arrays().items()
        }
        ids = opened.array("ids.npy", shape=(manifest.count,), mmap=mmap)
        if ids.dtype != np.int64 and ids.dtype.kind != "U":
            raise DamagedIndexError(
                f"ids.npy in {opened.folder} is not the array of an index: it is of {ids.dtype}"
            )
        built = None if isinstance(kind, Flat) else _read_faiss(opened, kind)
        trust = None
        if manifest.trust is not None:
            trust = from_payloads(manifest.trust, opened, OF_TRUST, mmap=mmap)
    items = Items.trusted(
        arrays["mean"], arrays["kappa"], arrays["uncertainty"], arrays.get("variance"), manifest.source
    )
    return Index.stored(items, ids, kind, built, calibrations, trust)


def _write_faiss(built: Any, path: Path) -> None:
    try:
        faiss().write_index(built, str(path))
    except RuntimeError as error:
        raise OSError(f"FAISS cannot write {path.name}: {error}") from error


def _read_faiss(opened: artifact.Artifact[IndexManifest], kind: Kind) -> Any:
    """Return FAISS' index; an array in it that is announced larger than the file is refused before it is read."""
    module, manifest = faiss(), opened.manifest
    size = opened.path(FAISS).stat().st_size
    LOGGER.info(
        "reading the %s index of %s: it takes %.3g GiB of memory", kind.name, opened.folder.name, size / 2**30
    )
    limit = getattr(module, "set_deserialization_vector_byte_limit", None)
    before = module.get_deserialization_vector_byte_limit() if limit else 0
    try:
        if limit:
            limit(size)
        built = module.read_index(str(opened.path(FAISS)))
    except (RuntimeError, MemoryError) as error:
        raise DamagedIndexError(f"{FAISS} in {opened.folder} cannot be read: {error}") from error
    finally:
        if limit:
            limit(before)
    if (type(built).__name__, built.ntotal, built.d) != (
        FAISS_CLASSES[kind.name],
        manifest.count,
        manifest.dim,
    ):
        raise DamagedIndexError(
            f"{FAISS} in {opened.folder} is not the one that the manifest describes: it holds {built.ntotal} vectors "
            f"of {built.d} dimensions as {type(built).__name__}"
        )
    if not np.array_equal(np.sort(_rows_of(module, built)), np.arange(manifest.count)):
        raise DamagedIndexError(
            f"{FAISS} in {opened.folder} does not lead to each item once: build the index again"
        )
    return built


def _rows_of(module: Any, built: Any) -> NDArray[np.int64]:
    """Return the items that FAISS' lists lead to; of a graph all of them, or none if a link leads elsewhere."""
    if hasattr(built, "hnsw"):
        graph, rows = built.hnsw, np.arange(built.ntotal)
        links, offsets = module.vector_to_array(graph.neighbors), module.vector_to_array(graph.offsets)
        whole = (
            len(module.vector_to_array(graph.levels)) == built.ntotal == len(offsets) - 1
            and offsets[0] == 0
            and offsets[-1] == len(links)
            and bool((np.diff(offsets.astype(np.int64)) >= 0).all())
            and (not len(links) or -1 <= links.min() <= links.max() < built.ntotal)
            and -1 <= graph.entry_point < built.ntotal
        )
        return rows if whole else rows[:0]
    lists = built.invlists
    sizes = [lists.list_size(number) for number in range(lists.nlist)]
    parts = [module.rev_swig_ptr(lists.get_ids(number), size) for number, size in enumerate(sizes) if size]
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def open_saved(folder: str | os.PathLike[str]) -> Index | Collection:
    """Load an index, or a collection whose items are in an engine.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from laplacian_metric.retrieval import Items
        >>> items = Items(np.eye(2), kappa=[10, 20], uncertainty=[0.1, 0.05], variance=None, source="a4f0")
        >>> with tempfile.TemporaryDirectory() as place:
        ...     save(Index(items), place + "/index")
        ...     len(open_saved(place + "/index"))
        2
    """
    from laplacian_metric.retrieval.engines import storage as engines_storage

    try:
        artifact.read_manifest(folder, engines_storage.CollectionManifest)
    except ArtifactError:
        return load(folder)  # an index then, or nothing
    return engines_storage.load(folder)
