"""Files of arrays: what is announced and not there is refused before it is read."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from laplacian_metric.core.array_files import ArrayFileError, read_arrays
from tests.core.test_artifact import announced


def archive(path: Path, content: bytes, size: int | None = None) -> Path:
    """An .npz file with one array, which may claim to be larger."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("a.npy", content)
    if size is not None:
        whole = bytearray(path.read_bytes())
        place = whole.index(b"PK\x01\x02") + 24  # of the size in the central directory
        whole[place : place + 4] = size.to_bytes(4, "little")
        path.write_bytes(whole)
    return path


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


@pytest.mark.parametrize(
    "content", [announced((23 << 27,), "<f8"), announced((-8, -1), "<f8"), announced((9,), "<f8")]
)
def test_more_than_there_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    archive(tmp_path / "a.npz", content)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(ArrayFileError, match=rf"{name} is damaged .*announces"):
            read_arrays(tmp_path / name)


def test_a_size_that_no_compression_gives(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", npy(np.ones(8)), size=2**32 - 2)
    with pytest.raises(ArrayFileError, match=r"a\.npz is damaged .*announces"):
        read_arrays(path)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy(np.array([{}])))
    archive(tmp_path / "a.npz", npy(np.array([{}])))
    for name in ("a.npy", "a.npz"):
        with pytest.raises(ArrayFileError, match="objects of Python"):
            read_arrays(tmp_path / name)


def test_what_is_well_is_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", zeros=np.zeros(10**6), text=np.array(["ä"]), number=np.float32(3))
    arrays = read_arrays(tmp_path / "a.npz")
    assert arrays["zeros"].shape == (10**6,)
    assert arrays["text"].tolist() == ["ä"]
    assert arrays["number"] == 3
    np.save(tmp_path / "f.npy", np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    assert read_arrays(tmp_path / "f.npy")[""][1, 2] == 5


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(FileNotFoundError, match=r"a\.npy"):
        read_arrays(tmp_path / "a.npy")
