"""Arrays in .npy, .npz and .safetensors files, read with numpy alone and checked. Nothing is unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.artifact import npy_header

SUFFIXES = (".npy", ".npz", ".safetensors")
LARGEST_RATIO = 1040  # of what deflated bytes become


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
        return read_with_notes(path)[0]
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


def read_with_notes(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays of a .safetensors file and the notes in its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, dict(opened.metadata() or {})  # noqa: SIM118
    except (SafetensorError, TypeError) as error:
        raise ArrayFileError(f"{path} is no safetensors file that numpy can read ({error})") from error


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
