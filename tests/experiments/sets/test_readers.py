"""Readers of binary formats: what they return, and what they say about files that are damaged."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from experiments.sets import readers
from experiments.sets.readers import CorruptFileError
from laplacian_metric import data
from tests.experiments.sets import miniatures


class Trap:
    """Something that makes a noise when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("something was unpickled",))


SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, max_side=6)


@given(values=arrays.arrays(np.uint8, SHAPES), zipped=st.booleans())
def test_idx_comes_back(values: np.ndarray, zipped: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("idx") / "some-ubyte"
    miniatures.write_idx(path, values, zipped)
    array = readers.read_idx(path)
    assert array.shape == values.shape
    assert np.array_equal(array, values)


@given(values=arrays.arrays(np.uint8, SHAPES), cut=st.integers(1, 40), zipped=st.booleans())
def test_idx_cut_anywhere_is_named(
    values: np.ndarray, cut: int, zipped: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("idx") / "some-ubyte"
    miniatures.write_idx(path, values, zipped)
    file = path.with_name("some-ubyte.gz") if zipped else path
    file.write_bytes(file.read_bytes()[:-cut])
    with pytest.raises(CorruptFileError, match="some-ubyte"):
        readers.read_idx(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00\x00\x08\x01\x00\x00\x00\x05abc", r"announces the shape \(5,\) but holds 3 values"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x02abc", r"announces the shape \(2,\) but holds more"),
        (b"PK12", "not an IDX file"),
        (b"\x00\x00\x08\x02\x00\x00", "ends within its header"),
        (b"\x00\x00\x08\x03" + b"\xff" * 12, "which is more than"),
        (b"", "not an IDX file"),
    ],
)
def test_what_is_no_idx_file(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=message):
        readers.read_idx(path)


def test_idx_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"\x00\x00\x08\x01\x00\x00\x00\x02" + bytes(10_000_000)))
    with pytest.raises(CorruptFileError, match="holds more"):
        readers.read_idx(path)
    with pytest.raises(FileNotFoundError, match=r"neither .*absent nor absent.gz beside it exists"):
        readers.read_idx(tmp_path / "absent")


def test_images_and_labels_must_be_as_many(tmp_path: Path) -> None:
    raw = tmp_path / "FashionMNIST" / "raw"
    miniatures.idx_set(raw)
    miniatures.write_idx(raw / "t10k-labels-idx1-ubyte", np.zeros(29, dtype=np.uint8))
    with pytest.raises(CorruptFileError, match=r"has 30 t10k images but 29 labels"):
        data.load("fashion-mnist", split="test", data_dir=tmp_path)
    miniatures.write_idx(raw / "t10k-labels-idx1-ubyte", np.zeros((30, 1), dtype=np.uint8))
    with pytest.raises(CorruptFileError, match="three dimensions and one are expected"):
        data.load("fashion-mnist", split="test", data_dir=tmp_path)


def test_a_cifar_file_that_is_cut_off(tmp_path: Path) -> None:
    miniatures.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(
        CorruptFileError, match=r"data_batch_3.bin has 122919 bytes, which is no multiple of 3073"
    ):
        data.load("cifar-10", data_dir=tmp_path, held_out=20)
    path.write_bytes(b"\x0b" + whole[1:])
    with pytest.raises(CorruptFileError, match=r"data_batch_3.bin has the label 11"):
        data.load("cifar-10", data_dir=tmp_path, held_out=20)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    objects = np.array([Trap()], dtype=object)
    np.savez(tmp_path / "a.npz", x=objects)
    np.save(tmp_path / "a.npy", objects)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CorruptFileError, match=r"a\.npz cannot be read"):
        readers.read_npz(tmp_path / "a.npz", ("x",))
    for name in ("a.npy", "b.npy"):
        with pytest.raises(CorruptFileError, match=rf"{name} cannot be read"):
            readers.read_npy(tmp_path / name)


def test_npz_files_that_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(1000), y=np.arange(3))
    with pytest.raises(CorruptFileError, match=r"has no array 'z'; it has: x, y"):
        readers.read_npz(path, ("x", "z"))
    with pytest.raises(CorruptFileError, match="is an archive of arrays"):
        readers.read_npy(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(CorruptFileError, match=r"a\.npz cannot be read"):
        readers.read_npz(path, ("x",))
    path.write_bytes(whole)
    monkeypatch.setattr(readers, "MAX_BYTES", 1000)
    with pytest.raises(CorruptFileError, match="more than the 1000 allowed"):
        readers.read_npz(path, ("x",))
    for reader in (readers.read_npy, lambda absent: readers.read_npz(absent, ())):
        with pytest.raises(FileNotFoundError):
            reader(tmp_path / "absent")


def test_matlab_files_that_are_wrong(tmp_path: Path) -> None:
    from scipy.io import savemat

    path = tmp_path / "a.mat"
    savemat(path, {"X": np.arange(10_000)})
    assert readers.read_mat(path, ("X",))["X"].shape == (10_000,)
    with pytest.raises(CorruptFileError, match=r"a\.mat has no variable 'y'"):
        readers.read_mat(path, ("X", "y"))
    whole = path.read_bytes()
    for content in (
        whole[:-500],
        whole[:60],
        b"",
        b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(100),
    ):
        path.write_bytes(content)
        with pytest.raises(CorruptFileError, match=r"a\.mat"):
            readers.read_mat(path, ("X",))
    with pytest.raises(FileNotFoundError, match=r"absent\.mat does not exist"):
        readers.read_mat(tmp_path / "absent.mat", ())


def test_matlab_bombs_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat

    path = tmp_path / "a.mat"
    savemat(path, {"X": np.zeros(1_000_000, dtype=np.uint8)}, do_compression=True)
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(readers, "MAX_BYTES", 999_999)
    with pytest.raises(CorruptFileError, match="announces 1000000 bytes, more than the 999999 allowed"):
        readers.read_mat(path, ("X",))
    monkeypatch.setattr(readers, "MAX_BYTES", 1_000_000)
    assert readers.read_mat(path, ("X",))["X"].size == 1_000_000


def test_svhn_files_that_are_wrong(tmp_path: Path) -> None:
    from scipy.io import savemat

    images = np.zeros((32, 32, 3, 4), dtype=np.uint8)
    for content, message in (
        ({"X": images, "y": np.ones(3)}, "has 4 images but 3 labels"),
        ({"X": images, "y": np.arange(4)}, "labels from 0 to 3"),
        ({"X": images[:16], "y": np.ones(4)}, r"X must be uint8 \(32, 32, 3, N\)"),
    ):
        savemat(tmp_path / "test_32x32.mat", content)
        with pytest.raises(CorruptFileError, match=message):
            data.load("svhn", split="test", data_dir=tmp_path)
