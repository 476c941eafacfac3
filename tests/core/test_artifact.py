"""Artifacts: one version or the other, whatever happens to writers, and nothing is parsed that was not checked."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from laplacian_metric.core import artifact, files
from laplacian_metric.core.artifact import check_target, load, read_manifest, save
from laplacian_metric.core.checked import (
    ArtifactBusyError,
    ArtifactError,
    ArtifactExistsError,
    ArtifactWriteError,
    DamagedArtifactError,
    ForeignArtifactError,
    MissingArtifactError,
    NewerArtifactError,
    NotAFolderError,
)
from tests.core.numbers_artifact import Numbers, write
from tests.manifests import rewrite


class Card(Numbers):
    """The same beside a file that anybody may edit."""

    EDITABLE: ClassVar[tuple[str, ...]] = ("README.md",)


def read(folder: Path) -> int:
    """The number, once all payloads agree with it."""
    with load(folder, Numbers) as opened:
        manifest = opened.manifest
        a = opened.array("a.npy", shape=(manifest.length,), dtype=np.int64)
        b = opened.array("b.npy", shape=(manifest.length,), dtype=np.int64, mmap=False)
        text = opened.path("c.txt").read_text()
    assert (a == manifest.number).all()
    assert (b == -manifest.number).all()
    assert text == str(manifest.number)
    return manifest.number


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=["exchange", "rename"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to replace a folder."""
    if request.param == "rename":
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    return str(request.param)


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
    payloads = {"a.npy": np.asarray(array), "b.npy": np.ones(2), "c.txt": "ü"}
    save(tmp_path / "n", Numbers(number=1, length=1), payloads)
    with load(tmp_path / "n", Numbers) as opened:
        again = opened.array("a.npy", shape=array.shape, mmap=mmap)
        assert opened.path("c.txt").read_text(encoding="utf-8") == "ü"
    np.testing.assert_array_equal(again, array)
    assert again.dtype == array.dtype
    assert not again.flags.writeable
    np.testing.assert_array_equal(np.load(tmp_path / "n" / "a.npy"), array)


def test_a_manifest_says_what_wrote_it_and_is_json(tmp_path: Path) -> None:
    write(tmp_path / "n", 3)
    content = json.loads((tmp_path / "n" / "manifest.json").read_text())
    assert content["format"] == "laplacian_metric numbers"
    assert {"laplacian_metric", "numpy"} <= set(content["made_with"])
    for name, entry in content["files"].items():
        done = subprocess.run(
            ["sha256sum", tmp_path / "n" / name], capture_output=True, text=True, check=True
        )
        assert done.stdout.split()[0] == entry["sha256"]
    assert read_manifest(tmp_path / "n", Numbers).number == 3


def test_torch_is_not_needed(root: Path) -> None:
    code = "import sys, laplacian_metric.core.artifact; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def test_an_old_version_is_upgraded(tmp_path: Path) -> None:
    class Later(Numbers):
        VERSION: ClassVar[int] = 2
        unit: str

        @classmethod
        def upgraded(cls, values: dict[str, Any], version: int) -> dict[str, Any]:
            return values if version > 1 else {**values, "unit": "none"}

    write(tmp_path / "n", 5)
    assert read_manifest(tmp_path / "n", Later).unit == "none"
    save(tmp_path / "m", Later(number=1, length=1, unit="m"), {})
    with pytest.raises(NewerArtifactError, match="update laplacian_metric"):
        read_manifest(tmp_path / "m", Numbers)


def test_what_was_loaded_stays(tmp_path: Path, way: str) -> None:
    write(tmp_path / "n", 1)
    with load(tmp_path / "n", Numbers) as opened:
        write(tmp_path / "n", 2)
        array = opened.array("a.npy", shape=(100,))
        assert opened.path("c.txt").read_text() == "1"
    assert (array == 1).all()
    assert read(tmp_path / "n") == 2
    assert names(tmp_path) == ["n"]


def test_a_link_is_followed(tmp_path: Path, way: str) -> None:
    write(tmp_path / "n", 1)
    (tmp_path / "latest").symlink_to(tmp_path / "n")
    write(tmp_path / "latest", 2)
    assert (tmp_path / "latest").is_symlink()
    assert read(tmp_path / "n") == read(tmp_path / "latest") == 2


def test_permissions_and_long_names(tmp_path: Path, way: str) -> None:
    target = tmp_path / ("ж" * 120)
    write(target, 1)
    target.chmod(0o750)
    write(target, 2)
    assert target.stat().st_mode & 0o777 == 0o750
    assert names(tmp_path) == [target.name]


def test_other_files_are_kept_where_files_may_be_edited(tmp_path: Path, way: str) -> None:
    def write_card(text: str) -> None:
        array = np.ones(1)
        payloads = {"a.npy": array, "b.npy": array, "c.txt": text, "README.md": text}
        save(tmp_path / "n", Card(number=1, length=1), payloads, overwrite=True)

    (tmp_path / "n" / ".git" / "deep").mkdir(parents=True)
    (tmp_path / "n" / ".git" / "deep" / "object").write_text("kept")
    (tmp_path / "n" / "link").symlink_to("nowhere")
    write_card("first")
    write_card("second")
    (tmp_path / "n" / "README.md").write_text("edited")
    assert read_manifest(tmp_path / "n", Card).number == 1
    assert names(tmp_path / "n") == sorted([*Card.PAYLOADS, "README.md", "manifest.json", ".git", "link"])
    assert (tmp_path / "n" / ".git" / "deep" / "object").read_text() == "kept"
    assert os.readlink(tmp_path / "n" / "link") == "nowhere"
    with load(tmp_path / "n", Card) as opened:
        assert opened.path("c.txt").read_text() == "second"


# --- targets ---


def test_only_an_artifact_of_the_kind_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "n", 1)
    with pytest.raises(ArtifactExistsError, match="overwrite=True"):
        write(tmp_path / "n", 2, overwrite=False)
    other = tmp_path / "photos"
    other.mkdir()
    write(other, 3)  # an empty folder is no loss
    assert read(other) == 3
    (other / "manifest.json").write_text('{"format": "a browser\'s extension"}')
    (tmp_path / "file").write_text("x")
    for target in (other, tmp_path / "file"):
        with pytest.raises(FileExistsError, match=target.name):
            write(target, 2)
    with pytest.raises(NotAFolderError, match="is a file"):
        write(tmp_path / "file" / "below", 2)
    assert read(tmp_path / "n") == 1
    assert names(tmp_path) == ["file", "n", "photos"]


def test_targets_are_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("", ".", ".."):
        with pytest.raises(ArtifactExistsError, match="name a folder"):
            check_target(name, Numbers, overwrite=True)
    check_target("n", Numbers)
    (tmp_path / "mount").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os.path, "ismount", lambda path: Path(path).name == "mount")
        with pytest.raises(ArtifactExistsError, match="mount point"):
            check_target("mount", Numbers)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ArtifactWriteError, match="read-only"):
        check_target("n", Numbers)
    assert names(tmp_path) == ["mount"]


# --- what is refused ---


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", DamagedArtifactError),
        ("{", DamagedArtifactError),
        ("[" * 100_000, DamagedArtifactError),
        ('{"format": NaN}', DamagedArtifactError),
        ("\ud800".encode("utf-16", "surrogatepass").decode("latin1"), DamagedArtifactError),
        ("[]", DamagedArtifactError),
        ("null", DamagedArtifactError),
        ("1", DamagedArtifactError),
        ("{}", ForeignArtifactError),
        ('{"format": ["laplacian_metric numbers"]}', ForeignArtifactError),
        ('{"format": "laplacian_metric numbers"}', ForeignArtifactError),
        ('{"format": "laplacian_metric numbers", "version": true}', NewerArtifactError),
        ('{"format": "laplacian_metric numbers", "version": 99}', NewerArtifactError),
        ('{"format": "laplacian_metric numbers", "version": 1}', DamagedArtifactError),
    ],
)  # fmt: skip
def test_manifests_that_are_none(tmp_path: Path, text: str, error: type[ArtifactError]) -> None:
    write(tmp_path / "n")
    (tmp_path / "n" / "manifest.json").write_text(text, encoding="utf-8")
    for function in (read_manifest, lambda *arguments: load(*arguments).__enter__()):
        with pytest.raises(error, match=r"manifest.json|update"):
            function(tmp_path / "n", Numbers)


ENTRY = {"bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"number": "3"}, "number"),
        ({"number": None}, "number"),
        ({"number": ...}, "number"),
        ({"number": 1.5}, "number"),
        ({"more": 1}, "more"),
        ({"files": ...}, "no files"),
        ({"files": {}}, "a.npy, b.npy, c.txt are needed"),
        ({"files": []}, "files"),
        ({"files": None}, "files"),
        ({"files": {"a.npy": ENTRY, "b.npy": ENTRY, "c.txt": {}}}, r"files.c.txt.bytes"),
        ({"files": {"a.npy": ENTRY, "b.npy": ENTRY, "c.txt": {"bytes": -1, "sha256": "0" * 64}}}, r"files.c.txt.bytes"),
        ({"files": {"a.npy": ENTRY, "b.npy": ENTRY, "c.txt": {"bytes": 1, "sha256": ""}}}, r"files.c.txt.sha256"),
        ({"files": {"a.npy": ENTRY, "b.npy": ENTRY, "c.txt": None}}, r"files.c.txt"),
        ({"files": {"a.npy": ENTRY, "b.npy": ENTRY, "../c.txt": ENTRY}}, "are needed"),
        ({"files": {"a.npy": {**ENTRY, "bytes": 23 << 30}, "b.npy": ENTRY, "c.txt": ENTRY}}, "a.npy .*bytes"),
        ({"files": {"a.npy": {**ENTRY, "bytes": 10**400}, "b.npy": ENTRY, "c.txt": ENTRY}}, "a.npy"),
        ({"made_with": []}, "made_with"),
    ],
)  # fmt: skip
def test_entries_that_are_wrong(
    tmp_path: Path, changes: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right digests of a manifest do not make it right, and no payload is read for it."""
    write(tmp_path / "n")
    rewrite(tmp_path / "n" / "manifest.json", **changes)
    monkeypatch.setattr(artifact, "_digest", lambda handle: pytest.fail("read"))
    with pytest.raises(DamagedArtifactError, match=named):
        read(tmp_path / "n")


def test_an_altered_manifest_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "n")
    rewrite(tmp_path / "n" / "manifest.json")  # laid out otherwise, and saying the same
    assert read(tmp_path / "n") == 0
    rewrite(tmp_path / "n" / "manifest.json", sign=False, number=1)
    with pytest.raises(DamagedArtifactError, match=r"manifest.json .* was altered"):
        read(tmp_path / "n")
    rewrite(tmp_path / "n" / "manifest.json", digest=...)
    rewrite(tmp_path / "n" / "manifest.json", sign=False, digest=...)
    with pytest.raises(DamagedArtifactError, match="altered"):
        read(tmp_path / "n")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_to_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("name", Numbers.PAYLOADS)
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flip, "was altered"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "were written"),
        (lambda path: path.write_bytes(path.read_bytes() + b"0"), "were written"),
        (Path.unlink, "lacks"),
        (pipe, "no regular file"),
        (folder, "no regular file"),
        (link_to_device, "no regular file"),
    ],
)
def test_damaged_payloads_are_refused(
    tmp_path: Path, name: str, damage: Callable[[Path], None], said: str
) -> None:
    damage(write(tmp_path / "n") / name)
    with pytest.raises(DamagedArtifactError, match=said) as caught:
        read(tmp_path / "n")
    assert name in str(caught.value)


@pytest.mark.parametrize("damage", [pipe, folder, link_to_device, Path.unlink])
def test_a_manifest_that_is_no_file_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(write(tmp_path / "n") / "manifest.json")
    with pytest.raises(MissingArtifactError, match=r"holds no numbers: .*manifest.json"):
        read(tmp_path / "n")


def test_payloads_may_be_links(tmp_path: Path) -> None:
    """Caches of model hubs store files elsewhere."""
    target = write(tmp_path / "n", 4)
    (target / "a.npy").rename(tmp_path / "blob")
    (target / "a.npy").symlink_to(tmp_path / "blob")
    assert read(target) == 4


def test_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(MissingArtifactError, match=r"there is no numbers folder .*nothing"):
        read(tmp_path / "nothing")
    with pytest.raises(MissingArtifactError, match=r"holds no numbers"):
        read(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotAFolderError, match="file is a file"):
        read(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="file"):
        read(tmp_path / "file" / "below")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ArtifactError):
        read(tmp_path / "loop")


def announced(shape: tuple[int, ...], descr: str) -> bytes:
    """An .npy file that announces more than it holds."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(
    ("content", "shape", "said"),
    [
        (announced((23 << 27,), "<f8"), (23 << 27,), "announces"),
        (announced((2**62, 8), "<f8"), (2**62, 8), "announces"),
        (announced((9,), "<f8"), (9,), "announces"),
        (announced((8,), "<f8"), (7,), "is needed"),
        (announced((8,), "|O"), (8,), "objects"),
        (announced((8,), "<x9"), (8,), "no array"),
        (announced((-8, -1), "<f8"), (8,), "no array|announces"),
        (b"", (8,), "no array"),
        (b"\x93NUMPY\x07\x00 ", (8,), "no array"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"{" * 70_000, (8,), "no array"),
        (b"\x93NUMPY\x01\x00\x40\x00" + b"__import__('os').abort()" + b" " * 40, (8,), "no array"),
    ],
)
def test_arrays_that_are_none_are_refused_before_they_are_read(
    tmp_path: Path, content: bytes, shape: tuple[int, ...], said: str, mmap: bool
) -> None:
    payloads = {"a.npy": lambda path: path.write_bytes(content), "b.npy": "", "c.txt": ""}
    save(tmp_path / "n", Numbers(number=1, length=1), payloads)
    with load(tmp_path / "n", Numbers) as opened, pytest.raises(DamagedArtifactError, match=said):
        opened.array("a.npy", shape=shape, mmap=mmap)


# --- writers that fail, die, or meet ---


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "no space left"), KeyboardInterrupt(), ValueError("no")]
)
@pytest.mark.parametrize("step", ["payload", "os.fsync", "_replace", "rename"])
def test_a_writer_that_fails_leaves_what_was_there(
    tmp_path: Path, step: str, error: BaseException, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if exists:
        write(tmp_path / "n", 1)

    def fail(*arguments: object, **options: object) -> None:
        raise error

    payloads: dict[str, Any] = {"a.npy": np.ones(3), "b.npy": np.ones(3), "c.txt": "x"}
    if step == "payload":
        payloads["c.txt"] = fail
    elif step == "rename":
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
        rename = Path.rename
        monkeypatch.setattr(
            Path, "rename", lambda path, to: fail() if path.suffix == ".tmp" else rename(path, to)
        )
    else:
        place, _, name = step.rpartition(".")
        monkeypatch.setattr(os if place else files, name, fail)
    expected: type[BaseException] = ArtifactWriteError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as caught:
        save(tmp_path / "n", Numbers(number=2, length=3), payloads, overwrite=True)
    monkeypatch.undo()
    if isinstance(caught.value, OSError):
        assert caught.value.errno == errno.ENOSPC
        assert "no space left" in str(caught.value)
    assert names(tmp_path) == (["n"] if exists else [])
    assert not exists or read(tmp_path / "n") == 1


PROLOGUE = """
import sys, time
from pathlib import Path
from laplacian_metric.core import files
from tests.core.numbers_artifact import write
target, way = Path(sys.argv[1]), sys.argv[2]
if way == "rename":
    files._exchange = lambda one, other: False
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


def test_a_file_system_that_takes_no_more(tmp_path: Path, root: Path, way: str) -> None:
    """For real: the process may write no file beyond 600 bytes."""
    write(tmp_path / "n", 1)
    with running(LIMITED, root, tmp_path / "n", way) as process:
        assert "refused: ArtifactWriteError" in process.communicate()[1]
    assert read(tmp_path / "n") == 1
    assert names(tmp_path) == ["n"]


@pytest.mark.slow
def test_loads_beside_a_writer(tmp_path: Path, root: Path, way: str, long_form: bool) -> None:
    """No mixture, no false alarm; the writer goes on meanwhile."""
    write(tmp_path / "n", 0)
    loads = 10_000 if long_form else 300
    seen: list[int] = []
    with running(LOOP, root, tmp_path / "n", way) as process:
        assert process.stdout.readline() == "ready\n"
        while len(seen) < loads or len(set(seen)) < 5:
            seen.append(read(tmp_path / "n"))
        assert process.poll() is None
    assert seen == sorted(seen)
    write(tmp_path / "n", 0)
    assert names(tmp_path) == ["n"]


@pytest.mark.slow
def test_killed_writers(tmp_path: Path, root: Path, way: str, long_form: bool) -> None:
    """After each kill the folder can be loaded, and the next writer cleans up."""
    write(tmp_path / "n", 0)
    generator = random.Random(0)
    for _ in range(20 if long_form else 4):
        with running(LOOP, root, tmp_path / "n", way) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.3 * generator.random())
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert read(tmp_path / "n") > 0
        write(tmp_path / "n", 0)
        assert names(tmp_path) == ["n"]
        assert read(tmp_path / "n") == 0


@pytest.mark.parametrize("point", ["payload", "before", "between", "after"])
def test_a_writer_killed_at_a_point(tmp_path: Path, root: Path, way: str, point: str) -> None:
    """Where nothing can be cleaned up any more, a reader still finds one version, and the next writer cleans up."""
    patch = {
        "payload": "import laplacian_metric.core.artifact as a\na._write = lambda *x: die()",
        "before": "files._replace = lambda *x: die()",
        "between": "from pathlib import Path as P\nr = P.rename\n"
        "P.rename = lambda p, to: die() if p.suffix == '.tmp' else r(p, to)",
        "after": "files.shutil.rmtree = lambda *x, **y: die()",
    }[point]
    code = f"{PROLOGUE}\nimport os\ndef die():\n    os.kill(os.getpid(), 9)\n{patch}\nwrite(target, 2)\n"
    write(tmp_path / "n", 1)
    with running(code, root, tmp_path / "n", way) as process:
        assert (process.wait() == -signal.SIGKILL) or (point, way) == ("between", "exchange")
    if (point, way) == ("between", "rename"):
        assert not (tmp_path / "n").exists()
        with pytest.raises(ArtifactExistsError, match="overwrite=True"):
            check_target(tmp_path / "n", Numbers)
    assert read(tmp_path / "n") == (2 if point == "after" or (point, way) == ("between", "exchange") else 1)
    with pytest.raises(ArtifactExistsError):
        write(tmp_path / "n", 3, overwrite=False)
    write(tmp_path / "n", 3)
    assert read(tmp_path / "n") == 3
    assert names(tmp_path) == ["n"]


def test_what_earlier_versions_set_aside_is_recovered(tmp_path: Path) -> None:
    old = tmp_path / ".n.0123456789abcdef.old"
    write(tmp_path / "n", 1).rename(old)
    write(tmp_path / "m", 2).rename(tmp_path / ".n.0123456789abcdef.tmp")
    (tmp_path / ".n.mine.tmp").mkdir()
    assert read(tmp_path / "n") == 1
    with pytest.raises(ArtifactExistsError):
        write(tmp_path / "n", 3, overwrite=False)
    assert not old.exists() or not (tmp_path / "n").exists()
    write(tmp_path / "n", 3)
    assert names(tmp_path) == [".n.mine.tmp", "n"]


def test_the_second_of_two_writers_is_told(tmp_path: Path, root: Path) -> None:
    code = PROLOGUE + (
        "import laplacian_metric.core.artifact as a\n"
        "def wait(*x):\n    print('ready', flush=True)\n    time.sleep(600)\n"
        "a._write = wait\nwrite(target, 2)\n"
    )
    write(tmp_path / "n", 1)
    with running(code, root, tmp_path / "n", "exchange") as process:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(ArtifactBusyError, match=f"process {process.pid}"):
            write(tmp_path / "n", 3)
        assert read(tmp_path / "n") == 1
        write(tmp_path / "m", 3)  # another one is nobody's business
        process.kill()
        process.wait()
        # Its lock goes with it.
        write(tmp_path / "n", 4)
    assert read(tmp_path / "n") == 4
    assert names(tmp_path) == ["m", "n"]


def test_two_threads_are_two_writers(tmp_path: Path) -> None:
    def inner(path: Path) -> None:
        with pytest.raises(ArtifactBusyError, match=f"process {os.getpid()}"):
            write(tmp_path / "n", 2)
        path.write_text("x")

    payloads = {"a.npy": np.ones(1), "b.npy": np.ones(1), "c.txt": inner}
    save(tmp_path / "n", Numbers(number=1, length=1), payloads)
    assert names(tmp_path) == ["n"]


def test_without_locks_nothing_of_others_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_FCNTL", None)
    (tmp_path / ".n.0123456789abcdef.tmp").mkdir()
    write(tmp_path / "n", 1)
    assert read(tmp_path / "n") == 1
    assert names(tmp_path) == [".n.0123456789abcdef.tmp", "n"]


def test_a_folder_that_is_replaced_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "n", 1)
    (tmp_path / "n" / "a.npy").unlink()
    monkeypatch.setattr(artifact.os.path, "samestat", lambda *arguments: False)
    with pytest.raises(ArtifactBusyError, match="try again"):
        read(tmp_path / "n")


def test_digests_do_not_depend_on_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "CHUNK", 7)
    write(tmp_path / "n", 1)
    monkeypatch.undo()
    assert read(tmp_path / "n") == 1
