"""Archives from elsewhere: what is unpacked, and what is refused without leaving anything behind."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.sets.download import unpack
from laplacian_metric.data import UnsafeArchiveError

Members = dict[str, bytes]


def write_tar(path: Path, members: Members) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_zip(path: Path, members: Members) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


WRITERS = pytest.mark.parametrize(("write", "name"), [(write_tar, "a.tgz"), (write_zip, "a.zip")])
Writer = Callable[[Path, Members], Path]


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


@WRITERS
def test_the_expected_folder_is_unpacked(write: Writer, name: str, tmp_path: Path) -> None:
    archive = write(
        tmp_path / name, {"birds/images/1.jpg": b"one", "birds/list.txt": b"1", "extra.txt": b"-"}
    )
    unpacked = unpack(archive, tmp_path / "out", "birds")
    assert unpacked == tmp_path / "out" / "birds"
    assert (unpacked / "images" / "1.jpg").read_bytes() == b"one"
    assert left_behind(tmp_path / "out") == ["1.jpg", "birds", "images", "list.txt"]


@WRITERS
@pytest.mark.parametrize("evil", ["../out.txt", "birds/../../out.txt", "/birds/out.txt"])
def test_paths_that_lead_outside_are_refused(write: Writer, name: str, evil: str, tmp_path: Path) -> None:
    archive = write(tmp_path / name, {"birds/list.txt": b"1", evil: b"evil"})
    with pytest.raises(UnsafeArchiveError, match=rf"{name} has the member .* leads outside the folder"):
        unpack(archive, tmp_path / "in" / "data", "birds")
    assert left_behind(tmp_path / "in" / "data") == []
    assert not (tmp_path / "out.txt").exists()
    assert not (tmp_path / "in" / "out.txt").exists()
    assert not Path("/birds").exists()


@pytest.mark.parametrize("evil", ["..\\out.txt", "C:\\out.txt", "C:/out.txt"])
def test_paths_of_other_platforms_are_refused(evil: str, tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", {"birds/list.txt": b"1", evil: b"evil"})
    with pytest.raises(UnsafeArchiveError, match="leads outside the folder"):
        unpack(archive, tmp_path / "out", "birds")
    assert left_behind(tmp_path / "out") == []


@WRITERS
def test_caps_on_bytes_and_members(write: Writer, name: str, tmp_path: Path) -> None:
    archive = write(tmp_path / name, {"birds/zeros": bytes(5_000_000), "birds/list.txt": b"1"})
    assert archive.stat().st_size < 50_000
    with pytest.raises(UnsafeArchiveError, match=rf"{name} unpacks to more than 1000000 bytes"):
        unpack(archive, tmp_path / "out", "birds", max_bytes=1_000_000)
    with pytest.raises(UnsafeArchiveError, match=rf"{name} has more than 1 members"):
        unpack(archive, tmp_path / "out", "birds", max_members=1)
    assert left_behind(tmp_path / "out") == []


def test_links_are_refused(tmp_path: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        path = tmp_path / "links.tar"
        with tarfile.open(path, "w") as archive:
            link = tarfile.TarInfo("birds/link")
            link.type, link.linkname = kind, "../../secret"
            archive.addfile(link)
        with pytest.raises(UnsafeArchiveError, match="has a link, 'birds/link'"):
            unpack(path, tmp_path / "out", "birds")
    zipped = tmp_path / "links.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        member = zipfile.ZipInfo("birds/link")
        member.external_attr = 0o120777 << 16
        archive.writestr(member, "../../secret")
    with pytest.raises(UnsafeArchiveError, match="has a link, 'birds/link'"):
        unpack(zipped, tmp_path / "out", "birds")
    assert left_behind(tmp_path / "out") == []


def test_devices_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "device.tar"
    with tarfile.open(path, "w") as archive:
        device = tarfile.TarInfo("birds/null")
        device.type = tarfile.CHRTYPE
        archive.addfile(device)
    with pytest.raises(UnsafeArchiveError, match=r"device\.tar"):
        unpack(path, tmp_path / "out", "birds")


@WRITERS
def test_damaged_archives_are_named(write: Writer, name: str, tmp_path: Path) -> None:
    whole = write(tmp_path / name, {f"birds/{number}": bytes(range(256)) * 40 for number in range(20)})
    content = whole.read_bytes()
    for part in (content[: len(content) // 2], content[:10], b"<html>not found</html>", b""):
        whole.write_bytes(part)
        with pytest.raises(ValueError, match=rf"{name} is damaged or not an archive"):
            unpack(whole, tmp_path / "out", "birds")
        assert left_behind(tmp_path / "out") == []


@WRITERS
def test_another_archive_than_expected(write: Writer, name: str, tmp_path: Path) -> None:
    archive = write(tmp_path / name, {"cars/1.jpg": b"one"})
    with pytest.raises(ValueError, match=rf"{name} has no folder 'birds' at its top"):
        unpack(archive, tmp_path / "out", "birds")
    (tmp_path / "out" / "cars").mkdir()
    with pytest.raises(FileExistsError, match="exists already and is not complete; remove it"):
        unpack(archive, tmp_path / "out", "cars")
