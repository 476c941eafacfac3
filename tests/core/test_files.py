"""Files: the old one or the new one, whatever happens in between; nothing that is announced and not there is read."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from laplacian_metric.core import files
from laplacian_metric.core.array_files import ArrayFileError, read_arrays
from laplacian_metric.core.artifact import ArtifactError, MissingArtifactError
from laplacian_metric.core.files import OutputFolderError, atomic_write, output_folder
from laplacian_metric.core.tensor_file import load as load_tensors
from laplacian_metric.core.tensor_file import save as save_tensors
from tests.core.test_artifact import announced


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("old", [None, "old"])
def test_a_file_appears_whole_and_alone(tmp_path: Path, old: str | None) -> None:
    target = tmp_path / "a.txt"
    if old is not None:
        target.write_text(old)
    with atomic_write(str(target)) as temporary:
        assert temporary.parent == tmp_path
        temporary.write_text("new")
        assert target.exists() == (old is not None)
        assert old is None or target.read_text() == old
    assert target.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_error_leaves_the_folder_as_it_was(
    tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OSError is that of a disk that is full when the file is flushed."""
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail(*_: object) -> None:
        raise error

    def write_half() -> None:
        with atomic_write(target) as temporary:
            temporary.write_text("half")
            if error is not OSError:
                fail()

    if error is OSError:
        monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(error):
        write_half()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_folder_that_cannot_be_flushed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def no_folders(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.EINVAL, "invalid argument")

    monkeypatch.setattr(files.os, "fsync", no_folders)
    with atomic_write(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
    assert len(calls) == 2
    assert names(tmp_path) == ["a.txt"]


def test_a_process_that_is_stopped_leaves_the_old_file(tmp_path: Path) -> None:
    """SIGTERM's default ends the process without a chance to clean up: the old file is whole all the same."""
    target = tmp_path / "a.txt"
    target.write_text("old")
    code = (
        "import sys, time\nfrom laplacian_metric.core.files import atomic_write\n"
        f"with atomic_write({str(target)!r}) as temporary:\n"
        "    temporary.write_text('half')\n    print('ready', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        process.wait(timeout=30)
        assert time.monotonic() - start < 30
    assert target.read_text() == "old"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX systems")
def test_permissions(tmp_path: Path) -> None:
    """A new file has those that any new file gets; a replaced one hands on its own, whatever the writer did."""
    plain = tmp_path / "plain"
    plain.write_text("")
    target = tmp_path / "a.txt"
    with atomic_write(target) as temporary:
        temporary.write_text("new")
    assert target.stat().st_mode == plain.stat().st_mode
    target.chmod(0o640)
    with atomic_write(target) as temporary:
        temporary.unlink()
        temporary.write_text("newer")
        temporary.chmod(0o600)
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.name != "posix", reason="links need rights on other systems")
def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to("real.txt")
    with atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_long_names(tmp_path: Path) -> None:
    name = "n" * 250
    with atomic_write(tmp_path / name) as temporary:
        temporary.write_text("new")
    assert names(tmp_path) == [name]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder .*absent to write a\.txt into: make it first"):
        atomic_write(tmp_path / "absent" / "a.txt").__enter__()
    with pytest.raises(IsADirectoryError, match="is a folder: name a file"):
        atomic_write(tmp_path).__enter__()
    with (
        pytest.raises(FileNotFoundError, match=r"a\.txt was not written"),
        atomic_write(tmp_path / "a.txt") as temporary,
    ):
        temporary.unlink()
    assert names(tmp_path) == []


@pytest.mark.parametrize("existing", [False, True])
def test_results_appear_when_all_is_done(tmp_path: Path, existing: bool) -> None:
    out = tmp_path / "deep" / "out"
    if existing:
        out.mkdir(parents=True)
    with output_folder(out) as folder:
        (folder / "a.txt").write_text("a")
        assert not (out / "a.txt").exists()
    assert names(out) == ["a.txt"]
    assert names(out.parent) == ["out"]


def interrupted(out: Path) -> None:
    with output_folder(out, force=True) as folder:
        (folder / "a.txt").write_text("new")
        raise KeyboardInterrupt


@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, existing: bool) -> None:
    out = tmp_path / "out"
    if existing:
        out.mkdir()
        (out / "a.txt").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        interrupted(out)
    assert names(tmp_path) == (["out"] if existing else [])
    if existing:
        assert (out / "a.txt").read_text() == "old"


def test_a_folder_with_files_needs_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    (out / "a.txt").write_text("old")
    with pytest.raises(OutputFolderError, match="--force"), output_folder(out):
        pytest.fail("the block must not be entered")
    with output_folder(out, force=True) as folder:
        (folder / "a.txt").write_text("new")
    assert (out / "mine.txt").read_text() == "mine"
    assert (out / "a.txt").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputFolderError, match="out"), output_folder(tmp_path / "out", force=True):
        pytest.fail("the block must not be entered")
    with pytest.raises(OutputFolderError, match="deeper"), output_folder(tmp_path / "out" / "deeper"):
        pytest.fail("the block must not be entered")


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
    ("content", "size"),
    [
        (announced((23 << 27,), "<f8"), None),
        (announced((-8, -1), "<f8"), None),
        (announced((9,), "<f8"), None),
        (npy(np.array([{}])), None),  # objects would have to be unpickled
        (npy(np.ones(8)), 2**32 - 2),  # a size that no compression gives
    ],
)
def test_damaged_and_hostile_files_are_refused(tmp_path: Path, content: bytes, size: int | None) -> None:
    archive(tmp_path / "a.npz", content, size)
    (tmp_path / "a.npy").write_bytes(content)
    for name in ("a.npz", "a.npy")[: 1 if size else 2]:
        with pytest.raises(ArrayFileError, match=name):
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


DTYPES = [
    torch.complex64, torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def tensors_of_all_kinds() -> dict[str, Tensor]:
    """Every dtype, tensors that share memory, views, and the smallest ones."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(6, 5, generator=generator, dtype=torch.float64) * 10
    every = {str(dtype): numbers.to(dtype) for dtype in DTYPES}
    views = {"transposed": numbers.T, "part": numbers[::2, 1:], "same": numbers, "tied": numbers.view(-1)}
    small = {"empty": torch.empty(0, 3), "number": torch.tensor(3.5), "ä": torch.ones(1, dtype=torch.int8)}
    return {**every, **views, **small, "parameter": torch.nn.Parameter(torch.ones(2))}


def test_what_is_written_is_read_by_safetensors_and_here(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, tensors_of_all_kinds(), {"note": "ü"})
    ours, notes = load_tensors(path)
    theirs = load_file(path)
    assert notes == {"note": "ü"}
    assert set(ours) == set(theirs) == set(tensors_of_all_kinds())
    for name, tensor in tensors_of_all_kinds().items():
        for again in (ours[name], theirs[name]):
            assert torch.equal(again, tensor.detach())
            assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_files_that_are_none(tmp_path: Path) -> None:
    save_tensors(tmp_path / "whole", {"a": torch.ones(4)})
    whole = (tmp_path / "whole").read_bytes()
    entry = {"a": {"dtype": "F32", "shape": [23 << 28], "data_offsets": [0, 23 << 30]}}
    header = json.dumps(entry).encode()
    for content in (
        b"", whole[:7], whole[:-1], whole + b"0", b"{" * 100, (23 << 30).to_bytes(8, "little") + b"{}",
        len(header).to_bytes(8, "little") + header + bytes(64),
    ):  # fmt: skip
        (tmp_path / "part").write_bytes(content)
        with pytest.raises(ArtifactError, match="part"):
            load_tensors(tmp_path / "part")
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "nothing"):
        with pytest.raises(MissingArtifactError, match=name):
            load_tensors(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        load_tensors(tmp_path)
