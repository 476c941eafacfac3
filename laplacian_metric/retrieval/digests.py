"""Digests of files, and files that are written with theirs."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 22
THREADS = 4


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, a few MiB at a time."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def digests_of(paths: Iterable[Path]) -> list[str]:
    """Of several files at once: hashing leaves Python's lock to others."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(digest_of, paths))


def digest_of_dict(values: dict[str, Any]) -> str:
    """The SHA-256 of values of JSON, however they are laid out in a file."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_array(path: Path, array: NDArray[Any]) -> str:
    """Write an .npy file through to the disk and return its SHA-256, without reading it again."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    content = np.ascontiguousarray(array).view(np.uint8).reshape(-1).data
    parts = (content[start : start + CHUNK] for start in range(0, len(content), CHUNK))
    digest = hashlib.sha256()
    with path.open("wb") as stream:
        for part in (header.getbuffer(), *parts):
            digest.update(part)
            stream.write(part)
        stream.flush()
        os.fsync(stream.fileno())
    return digest.hexdigest()
