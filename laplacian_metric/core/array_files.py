"""Arrays in .npy, .npz and .safetensors files, read with numpy alone and checked. Nothing is unpickled."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.artifact import npy_header
from laplacian_metric.core.files import atomic_write

SUFFIXES = (".npy", ".npz", ".safetensors")
WRITTEN = (".npz", ".safetensors")
TEXTS = ("ids", "labels")  # arrays that may be texts
LARGEST_RATIO = 1040  # of what deflated bytes become


class Features(NamedTuple):
    """Features (N, H), ids (N,), and labels (N,), or None where they are not known."""

    rows: NDArray[np.float32]
    ids: NDArray[Any]
    labels: NDArray[Any] | None


class ArrayFileError(ValueError):
    """A file of arrays cannot be read, or does not hold what is needed."""


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file by name; the one of an .npy file is called "".

    Raises:
        FileNotFoundError: there is no such file.
        ArrayFileError: it is damaged, or of no kind that is known.
    """
    if path.is_dir():
        raise ArrayFileError(f"{path} is a folder, a file of arrays ({', '.join(SUFFIXES)}) is needed")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ArrayFileError(f"{path} is none of {', '.join(SUFFIXES)}: save the arrays as one of these")
    if suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        if suffix == ".npy":
            with path.open("rb") as handle:
                npy_header(handle, path.stat().st_size)
            return {"": np.load(path, mmap_mode="r", allow_pickle=False)}
        with zipfile.ZipFile(path) as archive:
            for info in (each for each in archive.infolist() if each.filename.endswith(".npy")):
                if info.file_size > LARGEST_RATIO * max(info.compress_size, 1):
                    raise ValueError(f"{info.filename} in it announces {info.file_size} bytes")
                with archive.open(info) as member:
                    npy_header(cast(BinaryIO, member), info.file_size)
        with np.load(path, allow_pickle=False) as opened:
            return {name: opened[name] for name in opened.files}
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ArrayFileError(
            f"{path} is damaged or no {suffix} file ({error}): save or copy it again"
        ) from error


def _read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a .safetensors file; those of texts are lists of JSON in its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as opened:
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            notes = opened.metadata() or {}
        return arrays | {name: np.array(json.loads(notes[name])) for name in TEXTS if name in notes}
    except (SafetensorError, TypeError, ValueError, RecursionError) as error:
        raise ArrayFileError(f"{path} is no safetensors file that numpy can read ({error})") from error


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to an .npz or a .safetensors file, whole or not at all; ids and labels may be texts.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_arrays(Path(folder) / "two.safetensors", {"features": np.eye(2), "ids": np.array(["a", "b"])})
        ...     read_features(Path(folder) / "two.safetensors").ids.tolist()
        ['a', 'b']
    """
    check_suffix(path)
    with atomic_write(path) as temporary:
        if path.suffix.lower() == ".npz":
            with temporary.open("wb") as opened:
                np.savez(opened, **dict[str, Any](arrays))
            return
        from safetensors.numpy import save

        texts = {name: json.dumps(arrays[name].tolist()) for name in TEXTS if name in arrays}
        numbers = {name: np.ascontiguousarray(array) for name, array in arrays.items() if name not in texts}
        temporary.write_bytes(save(numbers, metadata=texts))


def check_suffix(path: Path) -> None:
    """Refuse a file that `write_arrays` does not write."""
    if path.suffix.lower() not in WRITTEN:
        raise ArrayFileError(f"{path.name} does not end with {' or '.join(WRITTEN)}: name such a file")


def read_features(path: Path, labels: Path | None = None) -> Features:
    """Return the arrays "features", "ids" and "labels" of a file; without ids rows are numbered.

    Args:
        path: of the file; an .npy file has features alone.
        labels: of the file that has the labels.
    """
    arrays = read_arrays(path)
    rows = as_features(pick(arrays, "features", path, ": call the features so"), path)
    ids = arrays.get("ids", np.arange(len(rows)))
    classes = arrays.get("labels") if labels is None else pick(read_arrays(labels), "labels", labels)
    for name, column in (("ids", ids), ("labels", classes)):
        if column is not None and (column.shape != (len(rows),) or column.dtype.kind not in "iuU"):
            raise ArrayFileError(
                f"the {name} in {path} have shape {column.shape} and dtype {column.dtype}: a text or a whole number "
                f"for each of the {len(rows)} rows is needed"
            )
    return Features(rows, ids, classes)


def pick(arrays: Mapping[str, NDArray[Any]], name: str, path: Path, remedy: str = "") -> NDArray[Any]:
    """One of a file's arrays; where it holds only one, that one.

    Example:
        >>> pick({"": np.arange(2)}, "features", Path("f.npy"))
        array([0, 1])
    """
    if name in arrays:
        return arrays[name]
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    names = ", ".join(arrays) or "nothing"
    raise ArrayFileError(f"{path} has no array {name!r}, it has: {names}{remedy}")


def as_features(array: NDArray[Any], path: Path) -> NDArray[np.float32]:
    """Features (N, H) in float32; anything else, and NaN, is refused."""
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise ArrayFileError(
            f"the features in {path} have shape {array.shape} and dtype {array.dtype}, a row of numbers for each "
            "image is needed: (N, H)"
        )
    if 0 in array.shape:
        raise ArrayFileError(f"the features in {path} have shape {array.shape}: there is nothing in it")
    with np.errstate(over="ignore"):
        features = np.ascontiguousarray(array, dtype=np.float32)
    wrong = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(wrong):
        raise ArrayFileError(
            f"{len(wrong)} of {len(features)} rows of the features in {path} have NaN or infinite entries, the "
            f"first is row {wrong[0]}: leave them out, or compute them again"
        )
    return features


def as_classes(array: NDArray[Any], path: Path, count: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels (N,) of whole numbers or text, as numbers from 0 in the order of the classes, and the classes' names."""
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise ArrayFileError(
            f"the labels in {path} have shape {array.shape} and dtype {array.dtype}, a whole number or a text for "
            "each image is needed: (N,)"
        )
    if len(array) != count:
        raise ArrayFileError(f"the labels in {path} have {len(array)} entries for {count} images")
    classes, labels = np.unique(array, return_inverse=True)
    return labels.astype(np.int64), tuple(str(one) for one in classes.tolist())
