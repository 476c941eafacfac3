"""Readers of the binary formats that data sets come in. Nothing is unpickled, and sizes are checked first."""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

# The largest array that a file may announce: more than any data set here needs, and less than fills a machine.
MAX_BYTES = 4 * 2**30

# Bytes for each entry of those kinds of MATLAB's arrays that have fewer than 8.
_MAT_BYTES = {
    "uint8": 1,
    "int8": 1,
    "logical": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "single": 4,
}

_CIFAR_IMAGE = 3 * 32 * 32


class CorruptFileError(ValueError):
    """A file is damaged, incomplete, or is not what its name says."""


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, plain or (with .gz added to its name) gzipped.

    Raises:
        FileNotFoundError: neither the file nor its gzipped form exists.
        CorruptFileError: it is something else, is cut off, or has bytes too many.
    """
    zipped = path if path.suffix == ".gz" else path.with_name(path.name + ".gz")
    plain = path.is_file() and path != zipped
    if not plain and not zipped.is_file():
        raise FileNotFoundError(f"neither {path} nor {zipped.name} beside it exists")
    source = path if plain else zipped
    try:
        with source.open("rb") if plain else gzip.open(source, "rb") as stream:
            return _read_idx_stream(stream, source)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorruptFileError(f"{source} cannot be unpacked ({error}); get it again") from error


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _read_idx_stream(stream: _Readable, path: Path) -> npt.NDArray[np.uint8]:
    start = stream.read(4)
    if len(start) < 4 or start[:3] != b"\x00\x00\x08":
        raise CorruptFileError(f"{path} is not an IDX file of unsigned bytes: it starts with {start.hex()!r}")
    rank = start[3]
    sizes = stream.read(4 * rank)
    if len(sizes) < 4 * rank:
        raise CorruptFileError(f"{path} ends within its header")
    shape = tuple(int(size) for size in np.frombuffer(sizes, dtype=">u4"))
    expected = math.prod(shape)
    if expected > MAX_BYTES:
        raise CorruptFileError(f"{path} announces the shape {shape}, which is more than {MAX_BYTES} bytes")
    # One byte more than announced is asked for, to notice what should not be there.
    content = stream.read(expected + 1)
    if len(content) != expected:
        content_size = f"{len(content)} values" if len(content) < expected else "more"
        raise CorruptFileError(f"{path} announces the shape {shape} but holds {content_size}; get it again")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def read_cifar_batch(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Read a file of CIFAR-10's binary version: a label byte and 3072 image bytes for each image.

    Returns:
        images (N, 3, 32, 32), uint8, and labels (N,).
    """
    content = np.fromfile(path, dtype=np.uint8)
    record = 1 + _CIFAR_IMAGE
    if content.size == 0 or content.size % record:
        raise CorruptFileError(
            f"{path} has {content.size} bytes, which is no multiple of {record}; it is cut off or not CIFAR-10's "
            "binary version: get it again"
        )
    rows = content.reshape(-1, record)
    labels = rows[:, 0].astype(np.int64)
    if labels.max() > 9:
        raise CorruptFileError(f"{path} has the label {labels.max()}, but CIFAR-10 has the labels 0 to 9")
    return rows[:, 1:].reshape(-1, 3, 32, 32), labels


def read_npz(path: Path, keys: tuple[str, ...]) -> dict[str, npt.NDArray[Any]]:
    """Read arrays out of an .npz file; objects, which would have to be unpickled, are refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(member.file_size for member in archive.infolist())
        if total > MAX_BYTES:
            raise CorruptFileError(f"{path} unpacks to {total} bytes, more than the {MAX_BYTES} allowed")
        with np.load(path, allow_pickle=False) as arrays:
            missing = [key for key in keys if key not in arrays.files]
            if missing:
                raise CorruptFileError(
                    f"{path} has no array {missing[0]!r}; it has: {', '.join(arrays.files)}"
                )
            return {key: arrays[key] for key in keys}
    except CorruptFileError:
        raise
    except (ValueError, EOFError, OSError, zlib.error, zipfile.BadZipFile) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise CorruptFileError(f"{path} cannot be read as an .npz file of plain arrays: {error}") from error


def read_npy(path: Path, mapped: bool = False) -> npt.NDArray[Any]:
    """Read an .npy file, with `mapped` only those pages of it that are looked at; objects are refused."""
    try:
        array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except FileNotFoundError:
        raise
    except (ValueError, EOFError, OSError) as error:
        raise CorruptFileError(f"{path} cannot be read as an .npy file of plain numbers: {error}") from error
    if not isinstance(array, np.ndarray):
        raise CorruptFileError(f"{path} is an archive of arrays, not an .npy file")
    return array


def read_mat(path: Path, keys: tuple[str, ...]) -> dict[str, npt.NDArray[Any]]:
    """Read variables out of a MATLAB file, of any version before 7.3."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        from scipy.io import loadmat, whosmat
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise ImportError(
            f"{path.name} is a MATLAB file, and scipy, which reads it, is not installed: pip install scipy"
        ) from error
    # What scipy raises depends on where a damaged file stops making sense.
    damaged = (MatReadError, ValueError, TypeError, OSError, EOFError, KeyError, IndexError, zlib.error)
    try:
        # Variables may be compressed; their sizes are in the headers.
        announced = sum(math.prod(shape) * _MAT_BYTES.get(kind, 8) for _, shape, kind in whosmat(path))
        if announced > MAX_BYTES:
            raise CorruptFileError(f"{path} announces {announced} bytes, more than the {MAX_BYTES} allowed")
        variables = loadmat(path, squeeze_me=True, variable_names=list(keys))
    except CorruptFileError:
        raise
    except (*damaged, NotImplementedError) as error:
        raise CorruptFileError(f"{path} cannot be read as a MATLAB file: {error}; get it again") from error
    missing = [key for key in keys if key not in variables]
    if missing:
        raise CorruptFileError(f"{path} has no variable {missing[0]!r}")
    return {key: np.asarray(variables[key]) for key in keys}
