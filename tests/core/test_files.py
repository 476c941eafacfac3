"""Atomic writes: the old file or the new one, whatever happens in between."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from laplacian_metric.core import files
from laplacian_metric.core.files import atomic_write


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_appears_whole_and_alone(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a.bin") as temporary:
        assert temporary.parent == tmp_path
        assert temporary.read_bytes() == b""
        temporary.write_bytes(b"12345")
        assert not (tmp_path / "a.bin").exists()
    assert (tmp_path / "a.bin").read_bytes() == b"12345"
    assert names(tmp_path) == ["a.bin"]


def test_the_old_file_is_there_until_the_end(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with atomic_write(str(target)) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_error_leaves_the_folder_as_it_was(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def write_half() -> None:
        with atomic_write(target) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_failing_disk_leaves_the_folder_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="no space left"), atomic_write(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_file_and_folder_are_flushed_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[bool] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        flushed.append(
            os.path.isdir(f"/proc/self/fd/{descriptor}") if os.path.isdir("/proc/self/fd") else False
        )
        fsync(descriptor)

    monkeypatch.setattr(files.os, "fsync", recorded)
    with atomic_write(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
    assert flushed in ([False, True], [False, False])


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
