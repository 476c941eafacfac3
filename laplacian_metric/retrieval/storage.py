"""Indexes in folders: a manifest with the digest of every file, arrays that are mapped, and FAISS' index.

A folder holds ``manifest.json``, ``mean.npy``, ``kappa.npy``, ``uncertainty.npy``, ``ids.npy``, where there is a
variance ``variance.npy``, and ``index.faiss`` for kinds that have one. Nothing in it is code, and nothing is
parsed before its digest was found right. The digests tell damage and mix-ups; they are no signature.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import laplacian_metric
from laplacian_metric.core.files import atomic_write, replace_folder
from laplacian_metric.retrieval.calibrations import Calibrations
from laplacian_metric.retrieval.digests import digest_of, digest_of_dict, digests_of, write_array
from laplacian_metric.retrieval.gallery import built_of
from laplacian_metric.retrieval.index import Index
from laplacian_metric.retrieval.items import Items
from laplacian_metric.retrieval.kinds import Flat, faiss, kind_from_dict, kind_to_dict

LOGGER = logging.getLogger(__name__)

FORMAT, VERSION = "laplacian_metric index", 1
MANIFEST, FAISS = "manifest.json", "index.faiss"
DTYPES = {
    "mean": (np.float32, 2),
    "kappa": (np.float32, 1),
    "uncertainty": (np.float64, 1),
    "variance": (np.float32, 2),
}
FIELDS = {
    "format", "version", "made_with", "kind", "source", "count", "dim", "variance", "calibrations", "files", "digest"
}  # fmt: skip


class DamagedIndexError(ValueError):
    """A saved index is not as it was written."""


def save(index: Index, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write an index into a folder of its own, which is there whole or not at all.

    Args:
        index: with its calibrations.
        folder: to be made. Its parent has to be there.
        overwrite: replace an index that is there; any other folder is left alone. Whoever has loaded the old index
            keeps it. Should the process be killed just then, the old one is beside it, as a hidden folder "*.old".
    """
    target = Path(folder)
    _check_target(target, overwrite)
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    temporary.mkdir()
    try:
        _write(index, temporary)
        replace_folder(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def load(folder: str | os.PathLike[str], *, mmap: bool = True) -> Index:
    """Read an index after its files were found to be as they were written.

    Args:
        folder: what `save` wrote.
        mmap: leave the arrays in their files, from which the parts that a query needs are read; otherwise read all
            into memory. FAISS' own index, of kinds that have one, is always read into memory.
    """
    place = Path(folder)
    manifest = read_manifest(place)
    _verify(place, manifest)
    return _index(place, manifest, mmap)


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What a folder says about its index: checked against its own digest, without reading the other files."""
    place = Path(folder)
    if not place.is_dir():
        if place.exists():
            raise NotADirectoryError(f"{place} is a file: pass the folder that save wrote")
        raise FileNotFoundError(f"there is no folder {place}")
    path = place / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"{place} holds no saved index: it has no {MANIFEST}. Pass the folder that save wrote"
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedIndexError(
            f"{MANIFEST} in {place} is no JSON ({error}): copy the folder again"
        ) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{MANIFEST} in {place} was not written by save: it is something else's")
    version = manifest.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise ValueError(
            f"{place} is in format {version!r}, which is newer than {VERSION}, the newest that this version of "
            "laplacian_metric reads: upgrade it, or save the index again with this one"
        )
    told = manifest.get("digest")
    if told != digest_of_dict({name: value for name, value in manifest.items() if name != "digest"}):
        raise DamagedIndexError(
            f"{MANIFEST} in {place} was altered after it was written: copy the folder again"
        )
    if set(manifest) != FIELDS:
        raise DamagedIndexError(f"{MANIFEST} in {place} lacks what it needs: copy the folder again")
    return manifest


# --- writing ---


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} to make {target.name} in: make it first")
    if not target.exists() and not target.is_symlink():
        return
    if not (target / MANIFEST).is_file() or not _is_own(target / MANIFEST):
        raise FileExistsError(f"{target} is there already and holds no index: name another folder")
    if not overwrite:
        raise FileExistsError(f"{target} holds an index already: pass overwrite=True to replace it")


def _is_own(manifest: Path) -> bool:
    try:
        told = json.loads(manifest.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and told.get("format") == FORMAT


def _write(index: Index, folder: Path) -> None:
    """All files; the manifest is the last."""
    state = index.state
    items, ids, built = state.gallery.parts[0], state.gallery.ids, built_of(state.gallery)
    arrays = {name: getattr(items, name) for name in DTYPES if getattr(items, name) is not None}
    digests = {f"{name}.npy": write_array(folder / f"{name}.npy", array) for name, array in arrays.items()}
    digests["ids.npy"] = write_array(folder / "ids.npy", ids)
    if built is not None:
        faiss().write_index(built, str(folder / FAISS))
        with (folder / FAISS).open("rb+") as stream:
            os.fsync(stream.fileno())
        digests[FAISS] = digest_of(folder / FAISS)
    files = {
        name: {"sha256": digest, "bytes": (folder / name).stat().st_size} for name, digest in digests.items()
    }
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "made_with": {"laplacian_metric": laplacian_metric.__version__, "numpy": np.__version__},
        "kind": kind_to_dict(index.kind),
        "source": items.source,
        "count": len(items),
        "dim": items.dim,
        "variance": items.variance is not None,
        "calibrations": state.calibrations.to_dict(),
        "files": files,
    }
    manifest["digest"] = digest_of_dict(manifest)
    with atomic_write(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n", encoding="utf-8")


# --- reading ---


def _verify(folder: Path, manifest: dict[str, Any]) -> None:
    """Refuse files that are not as they were written."""
    needed = {"mean.npy", "kappa.npy", "uncertainty.npy", "ids.npy"}
    needed |= {"variance.npy"} if manifest["variance"] else set()
    needed |= set() if manifest["kind"]["name"] == Flat.name else {FAISS}
    files = manifest["files"]
    if set(files) != needed:
        raise DamagedIndexError(
            f"{MANIFEST} in {folder} names {', '.join(sorted(files))}, {', '.join(sorted(needed))} are needed"
        )
    for name, told in files.items():
        if not (folder / name).is_file():
            raise DamagedIndexError(f"{folder} lacks {name}: copy the folder again")
        size = (folder / name).stat().st_size
        if size != told["bytes"]:
            raise DamagedIndexError(
                f"{name} in {folder} has {size} bytes, {told['bytes']} were written: copy the folder again"
            )
    for name, digest in zip(files, digests_of(folder / name for name in files), strict=True):
        if digest != files[name]["sha256"]:
            raise DamagedIndexError(
                f"{name} in {folder} was altered after it was written, its digest is another: copy the folder again"
            )


def _index(folder: Path, manifest: dict[str, Any], mmap: bool) -> Index:
    count, dim = manifest["count"], manifest["dim"]
    found = {}
    for name, (dtype, ndim) in DTYPES.items():
        if name == "variance" and not manifest["variance"]:
            continue
        shape = (count, dim) if ndim == 2 else (count,)
        found[name] = _array(folder / f"{name}.npy", mmap)
        if found[name].dtype != dtype or found[name].shape != shape or not found[name].flags.c_contiguous:
            raise DamagedIndexError(f"{name}.npy in {folder} is not the array that the manifest tells of")
    ids = _array(folder / "ids.npy", mmap)
    if ids.shape != (count,) or (ids.dtype != np.int64 and ids.dtype.kind != "U"):
        raise DamagedIndexError(f"ids.npy in {folder} is not the array that the manifest tells of")
    items = Items.trusted(
        found["mean"], found["kappa"], found["uncertainty"], found.get("variance"), manifest["source"]
    )
    kind = kind_from_dict(manifest["kind"])
    built = None
    if not isinstance(kind, Flat):
        size = manifest["files"][FAISS]["bytes"]
        LOGGER.info(
            "reading the %s index of %s: it takes %.3g GiB of memory", kind.name, folder.name, size / 2**30
        )
        built = faiss().read_index(str(folder / FAISS))
        if (built.ntotal, built.d) != (count, dim):
            raise DamagedIndexError(
                f"{FAISS} in {folder} holds {built.ntotal} vectors of {built.d} dimensions"
            )
    return Index.stored(items, ids, kind, built, Calibrations.from_dict(manifest["calibrations"]))


def _array(path: Path, mmap: bool) -> Any:
    read = np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    array = np.asarray(read)
    array.flags.writeable = False
    return array
