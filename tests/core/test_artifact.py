"""Artifacts: one version or the other, whatever happens to writers, and nothing is parsed that was not checked."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from laplacian_metric.core import artifact, files
from laplacian_metric.core.artifact import (
    ArtifactBusyError,
    ArtifactError,
    ArtifactExistsError,
    Manifest,
    MissingArtifactError,
    check_target,
    load,
    read_manifest,
    save,
)
from tests.core.numbers_artifact import Numbers, write
from tests.manifests import content, replace, rewrite, version


def read(folder: Path, verify: bool = False) -> int:
    """The number, once all payloads agree with it."""
    with load(folder, Numbers, verify=verify) as opened:
        manifest = opened.manifest
        a = opened.array("a.npy", shape=(manifest.length,), dtype=np.int64)
        b = opened.array("b.npy", mmap=False)
        text = opened.path("c.txt").read_text()
    assert (a == manifest.number).all()
    assert (b == -manifest.number).all()
    assert text == str(manifest.number)
    return manifest.number


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def whole(folder: Path) -> bool:
    """Whether a folder holds one version and nothing else."""
    return names(folder) == sorted([artifact.POINTER, artifact.LOCK, version(folder).name])


# --- reading and writing ---


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.zeros((0, 5), np.float32),
        np.array(["ä", "bc"]),
        np.arange(8)[::2],
        np.float64(3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ],
)
def test_an_array_comes_back(tmp_path: Path, array: Any, mmap: bool) -> None:
    save(tmp_path / "n", Numbers(number=1, length=1), {"a.npy": array, "b.npy": np.ones(2), "c.txt": "ü"})
    with load(tmp_path / "n", Numbers, verify=True) as opened:
        again = opened.array("a.npy", mmap=mmap)
        assert opened.path("c.txt").read_text(encoding="utf-8") == "ü"
    np.testing.assert_array_equal(again, array)
    assert again.dtype == array.dtype
    assert not again.flags.writeable


def test_tensors_come_back_as_they_lie_in_memory(tmp_path: Path) -> None:
    class Weights(Manifest):
        FORMAT: ClassVar[str] = "laplacian_metric weights"
        PAYLOADS: ClassVar[tuple[str, ...]] = ("w.safetensors",)

    tensors = {"turned": torch.randn(3, 4).T, "plain": torch.randn(2, 3, 4), "number": torch.tensor(3)}
    save(tmp_path / "w", Weights(), {"w.safetensors": tensors})
    with load(tmp_path / "w", Weights) as opened:
        again = opened.tensors("w.safetensors")
    for name, tensor in tensors.items():
        assert torch.equal(again[name], tensor)
        assert again[name].stride() == tensor.stride()


def test_artifacts_in_artifacts(tmp_path: Path) -> None:
    class Pair(Manifest):
        FORMAT: ClassVar[str] = "laplacian_metric pair"
        PAYLOADS: ClassVar[tuple[str, ...]] = ("one",)
        OPTIONAL: ClassVar[tuple[str, ...]] = ("two",)

    def number(value: int) -> Callable[[Path], object]:
        return lambda path: write(path, value)

    save(tmp_path / "p", Pair(), {"one": number(1)})
    save(tmp_path / "p", Pair(), {"one": number(3), "two": number(4)}, overwrite=True)
    with load(tmp_path / "p", Pair, verify=True) as opened:
        assert [read(opened.path(name)) for name in opened.manifest.files] == [3, 4]
    flip(version(version(tmp_path / "p") / "one") / "a.npy")
    with pytest.raises(ArtifactError, match=r"a\.npy"):
        load(tmp_path / "p", Pair, verify=True).__enter__()
    (version(tmp_path / "p") / "one" / artifact.POINTER).unlink()
    with pytest.raises(ArtifactError, match="one"):
        load(tmp_path / "p", Pair).__enter__()


def test_a_manifest_says_what_wrote_it(tmp_path: Path) -> None:
    write(tmp_path / "n", 3)
    stored = content(tmp_path / "n")
    assert stored["format"] == artifact.format_of(tmp_path / "n") == "laplacian_metric numbers"
    assert {"laplacian_metric", "numpy"} <= set(stored["made_with"])
    assert read_manifest(tmp_path / "n", Numbers).number == 3
    assert whole(tmp_path / "n")


def test_what_is_read_stays(tmp_path: Path) -> None:
    write(tmp_path / "n", 1)
    with load(tmp_path / "n", Numbers) as opened:
        for number in (2, 3):
            write(tmp_path / "n", number)
            assert read(tmp_path / "n") == number
        array = opened.array("a.npy")
        assert opened.path("c.txt").read_text() == "1"
    write(tmp_path / "n", 4)
    assert whole(tmp_path / "n")
    assert (array == 1).all()


def test_a_link_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "n", 1)
    (tmp_path / "latest").symlink_to(tmp_path / "n")
    write(tmp_path / "latest", 2)
    assert (tmp_path / "latest").is_symlink()
    assert read(tmp_path / "n") == read(tmp_path / "latest") == 2


def test_payloads_may_be_links(tmp_path: Path) -> None:
    """Caches of model hubs store files elsewhere."""
    place = version(write(tmp_path / "n", 4))
    (place / "a.npy").rename(tmp_path / "blob")
    (place / "a.npy").symlink_to(tmp_path / "blob")
    assert read(tmp_path / "n", verify=True) == 4


# --- targets ---


def test_only_an_artifact_of_the_kind_is_replaced(tmp_path: Path) -> None:
    class Card(Numbers):
        FORMAT: ClassVar[str] = "laplacian_metric card"
        SHARED: ClassVar[bool] = True

    write(tmp_path / "n", 1)
    with pytest.raises(ArtifactExistsError, match="overwrite"):
        write(tmp_path / "n", 2, overwrite=False)
    (tmp_path / "photos").mkdir()
    write(tmp_path / "photos", 3)  # an empty folder is no loss
    assert read(tmp_path / "photos") == 3
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("x")
    for target in (tmp_path / "other", tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ArtifactExistsError, match="file"):
            write(target, 2)
    with pytest.raises(ArtifactExistsError, match="card"):
        save(tmp_path / "n", Card(number=1, length=1), {}, overwrite=True)
    arrays = {"a.npy": np.ones(1), "b.npy": -np.ones(1), "c.txt": "1"}
    for _ in range(2):  # beside other files, which stay
        save(tmp_path / "other", Card(number=1, length=1), arrays, overwrite=True)
        assert (tmp_path / "other" / "mine.txt").read_text() == "mine"
    assert read(tmp_path / "n") == 1
    assert names(tmp_path) == ["file", "n", "other", "photos"]


def test_targets_are_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_target(tmp_path / "n", Numbers)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match=str(tmp_path)):
        check_target(tmp_path / "n", Numbers)
    assert names(tmp_path) == []


# --- what is refused ---

ENTRY = {"bytes": 1, "sha256": "0" * 64}
ENTRIES = {"a.npy": ENTRY, "b.npy": ENTRY, "c.txt": ENTRY}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, '{"format": NaN}', "[]", "null", "1", "{}", '{"format": ["laplacian_metric numbers"]}',
     '{"format": "laplacian_metric model"}', '{"format": "laplacian_metric numbers"}'],
)  # fmt: skip
def test_manifests_that_are_none(tmp_path: Path, text: str) -> None:
    replace(write(tmp_path / "n"), text)
    for function in (read_manifest, lambda *arguments: load(*arguments).__enter__()):
        with pytest.raises(ArtifactError):
            function(tmp_path / "n", Numbers)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"number": "3"}, "number"),
        ({"number": None}, "number"),
        ({"number": ...}, "number"),
        ({"number": 1.5}, "number"),
        ({"more": 1}, "more"),
        ({"files": ...}, "a.npy"),
        ({"files": {}}, "a.npy"),
        ({"files": []}, "files"),
        ({"files": None}, "files"),
        ({"files": {**ENTRIES, "c.txt": {}}}, r"files.c.txt.bytes"),
        ({"files": {**ENTRIES, "c.txt": {"bytes": -1, "sha256": "0" * 64}}}, r"files.c.txt.bytes"),
        ({"files": {**ENTRIES, "c.txt": {"bytes": 1, "sha256": ""}}}, r"files.c.txt.sha256"),
        ({"files": {**ENTRIES, "c.txt": None}}, r"files.c.txt"),
        ({"files": {**ENTRIES, "../d.txt": ENTRY}}, "files"),
        ({"files": {**ENTRIES, "d.txt": ENTRY}}, "d.txt"),
        ({"files": {**ENTRIES, "a.npy": {**ENTRY, "bytes": 23 << 30}}}, "a.npy"),
        ({"made_with": []}, "made_with"),
    ],
)  # fmt: skip
def test_entries_that_are_wrong(
    tmp_path: Path, changes: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right digest of a manifest does not make it right, and no payload is read for it."""
    rewrite(write(tmp_path / "n"), **changes)
    monkeypatch.setattr(artifact, "_digest", lambda path: pytest.fail("read"))
    with pytest.raises(ArtifactError, match=named):
        read(tmp_path / "n", verify=True)


@pytest.mark.parametrize("name", ["manifest.json", "../CURRENT"])
def test_an_altered_manifest_or_pointer_is_refused(tmp_path: Path, name: str) -> None:
    path = version(write(tmp_path / "n")) / name
    before = path.read_bytes()
    for text in (
        before[:-1],
        before + b" ",
        before.replace(b"0", b"1"),
        b"",
        b"../../n " + b"0" * 64,
        b"\xff",
    ):
        path.write_bytes(text)
        with pytest.raises(ArtifactError):
            read(tmp_path / "n")


def flip(path: Path) -> None:
    altered = bytearray(path.read_bytes())
    altered[-1] ^= 1
    path.write_bytes(altered)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_to_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("name", [*Numbers.PAYLOADS, "manifest.json"])
@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"0"),
        Path.unlink,
        pipe,
        folder,
        link_to_device,
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    damage(version(write(tmp_path / "n")) / name)
    with pytest.raises(ArtifactError, match=name):
        read(tmp_path / "n", verify=True)


def test_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for place in ("nothing", "", "file", "file/below", "loop"):
        with pytest.raises(MissingArtifactError):
            read(tmp_path / place)


def announced(shape: tuple[int, ...], descr: str) -> bytes:
    """An .npy file that announces more than it holds."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(
    ("stored", "shape"),
    [
        (announced((23 << 27,), "<f8"), (23 << 27,)),
        (announced((2**62, 8), "<f8"), (2**62, 8)),
        (announced((9,), "<f8"), (9,)),
        (announced((8,), "<f8"), (7,)),
        (announced((8,), "|O"), (8,)),
        (announced((8,), "<x9"), (8,)),
        (announced((-8, -1), "<f8"), (8,)),
        (b"", (8,)),
        (b"\x93NUMPY\x07\x00 ", (8,)),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"{" * 70_000, (8,)),
        (b"not an array", (8,)),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': '''    ", (8,)),
    ],
)  # fmt: skip
def test_arrays_that_are_none(tmp_path: Path, stored: bytes, shape: tuple[int, ...], mmap: bool) -> None:
    payloads = {"a.npy": lambda path: path.write_bytes(stored), "b.npy": np.ones(1), "c.txt": "x"}
    save(tmp_path / "n", Numbers(number=1, length=1), payloads)
    with load(tmp_path / "n", Numbers) as opened, pytest.raises(ArtifactError, match=r"a\.npy"):
        opened.array("a.npy", shape=shape, mmap=mmap)


@pytest.mark.parametrize("change", [{"shape": [1]}, {"dtype": "<f8"}])
def test_an_array_that_is_not_the_one_that_was_saved(tmp_path: Path, change: dict[str, Any]) -> None:
    entries = content(write(tmp_path / "n"))["files"]
    rewrite(tmp_path / "n", files={**entries, "a.npy": {**entries["a.npy"], **change}})
    with load(tmp_path / "n", Numbers) as opened, pytest.raises(ArtifactError, match=r"a\.npy"):
        opened.array("a.npy")


# --- writers that fail, are killed, or are two ---


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("step", ["payload", "os.fsync", "np.save", "os.replace"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "no space left"), KeyboardInterrupt(), ValueError("no")]
)
def test_a_save_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException, exists: bool
) -> None:
    if exists:
        write(tmp_path / "n", 1)

    def fail(*arguments: object, **options: object) -> None:
        raise error

    payloads: dict[str, Any] = {"a.npy": np.ones(3), "b.npy": np.ones(3), "c.txt": "x"}
    if step == "payload":
        payloads["c.txt"] = fail
    elif step == "os.replace":
        monkeypatch.setattr(Path, "replace", fail)
    else:
        monkeypatch.setattr(os if step == "os.fsync" else np, step.split(".")[1], fail)
    with pytest.raises(type(error)) as caught:
        save(tmp_path / "n", Numbers(number=2, length=3), payloads, overwrite=True)
    monkeypatch.undo()
    if isinstance(caught.value, OSError):
        assert caught.value.errno == errno.ENOSPC
        assert "no space left" in str(caught.value)
    assert names(tmp_path) == (["n"] if exists else [])
    assert not exists or (read(tmp_path / "n") == 1 and whole(tmp_path / "n"))


PROLOGUE = """
import os, sys, time
from pathlib import Path
from laplacian_metric.core import artifact, files
from tests.core.numbers_artifact import write
target = Path(sys.argv[1])
def die(*x, **y):
    os.kill(os.getpid(), 9)
"""
LOOP = (
    PROLOGUE
    + """
number = 1
while True:
    write(target, number, length=1 + number % 5000)
    number += 1
    if number == 2:
        print("ready", flush=True)
"""
)
LIMITED = (
    PROLOGUE
    + """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
try:
    write(target, 2, length=1000)
except Exception as error:
    sys.exit(f"refused: {type(error).__name__}")
"""
)


@contextmanager
def running(code: str, root: Path, *arguments: object) -> Any:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_file_system_that_takes_no_more(tmp_path: Path, root: Path) -> None:
    """For real: the process may write no file beyond 600 bytes."""
    write(tmp_path / "n", 1)
    with running(LIMITED, root, tmp_path / "n") as process:
        assert "refused: OSError" in process.communicate()[1]
    assert read(tmp_path / "n") == 1
    assert whole(tmp_path / "n")


@pytest.mark.slow
def test_loads_beside_a_writer(tmp_path: Path, root: Path, long_form: bool) -> None:
    """No mixture, no false alarm; the writer goes on meanwhile."""
    write(tmp_path / "n", 0)
    loads = 10_000 if long_form else 300
    seen: list[int] = []
    with running(LOOP, root, tmp_path / "n") as process:
        assert process.stdout.readline() == "ready\n"
        while len(seen) < loads or len(set(seen)) < 5:
            seen.append(read(tmp_path / "n", verify=len(seen) % 2 == 0))
        assert process.poll() is None
    assert seen == sorted(seen)
    write(tmp_path / "n", 0)
    assert whole(tmp_path / "n")


@pytest.mark.slow
def test_killed_writers(tmp_path: Path, root: Path, long_form: bool) -> None:
    """After each kill the folder can be loaded, and the next writer cleans up."""
    write(tmp_path / "n", 0)
    generator = random.Random(0)
    for _ in range(20 if long_form else 4):
        with running(LOOP, root, tmp_path / "n") as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.3 * generator.random())
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert read(tmp_path / "n", verify=True) > 0
        write(tmp_path / "n", 0)
        assert whole(tmp_path / "n")
        assert read(tmp_path / "n") == 0


@pytest.mark.parametrize(
    ("patch", "number"),
    [
        ("artifact._write = die", 1),
        ("artifact.atomic_write = die", 1),
        ("Path.replace = die", 1),
        ("artifact._clean = die", 2),
        ("artifact.shutil.rmtree = die", 2),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_writer_killed_at_a_point(
    tmp_path: Path, root: Path, patch: str, number: int, exists: bool
) -> None:
    """A reader finds one version, and the next writer cleans up."""
    if exists:
        write(tmp_path / "n", 1)
    with running(f"{PROLOGUE}\n{patch}\nwrite(target, 2)\n", root, tmp_path / "n") as process:
        assert process.wait() == -signal.SIGKILL or (not exists and "rmtree" in patch)
    if exists or number == 2:
        assert read(tmp_path / "n") == number
        with pytest.raises(ArtifactExistsError):
            write(tmp_path / "n", 3, overwrite=False)
    else:
        check_target(tmp_path / "n", Numbers)
        with pytest.raises(MissingArtifactError):
            read(tmp_path / "n")
    write(tmp_path / "n", 3)
    assert read(tmp_path / "n") == 3
    assert whole(tmp_path / "n")


def test_the_second_of_two_writers_is_told(tmp_path: Path, root: Path) -> None:
    code = PROLOGUE + (
        "def wait(*x):\n    print('ready', flush=True)\n    time.sleep(600)\n"
        "artifact._write = wait\nwrite(target, 2)\n"
    )
    write(tmp_path / "n", 1)
    with running(code, root, tmp_path / "n") as process:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(ArtifactBusyError):
            write(tmp_path / "n", 3)
        assert read(tmp_path / "n") == 1
        write(tmp_path / "m", 3)  # another one is nobody's business
        process.kill()
        process.wait()
        # Its lock goes with it.
        write(tmp_path / "n", 4)
    assert read(tmp_path / "n") == 4
    assert whole(tmp_path / "n")


def test_two_threads_are_two_writers(tmp_path: Path) -> None:
    def inner(path: Path) -> None:
        with ThreadPoolExecutor() as pool, pytest.raises(ArtifactBusyError):
            pool.submit(write, tmp_path / "n", 2).result()
        path.write_text("x")

    payloads = {"a.npy": np.ones(1), "b.npy": np.ones(1), "c.txt": inner}
    save(tmp_path / "n", Numbers(number=1, length=1), payloads)
    assert whole(tmp_path / "n")


def test_a_folder_that_is_replaced_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "n", 1)
    monkeypatch.setattr(artifact, "_pointer", lambda root: (root / os.urandom(8).hex(), ""))
    with pytest.raises(ArtifactBusyError):
        read(tmp_path / "n")


class NoLocks:
    """A file system that has none."""

    LOCK_SH, LOCK_EX, LOCK_NB = 1, 2, 4

    @staticmethod
    def flock(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")


@pytest.mark.parametrize("locks", [None, NoLocks])
def test_without_locks_nothing_is_mixed(tmp_path: Path, locks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on systems without ``flock``."""
    monkeypatch.setattr(artifact, "_FCNTL", locks)
    write(tmp_path / "n", 1)
    write(tmp_path / "n", 2)
    assert read(tmp_path / "n") == 2
    assert whole(tmp_path / "n")
    assert files.sync_folder(tmp_path) is None
