"""Unpacking of archives that come from elsewhere: names are checked, sizes capped, nothing half done is left."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path

MAX_BYTES = 64 * 2**30
MAX_MEMBERS = 3_000_000


class UnsafeArchiveError(ValueError):
    """An archive holds what must not be unpacked: paths that lead outside, links, or far too much."""


def unpack(
    archive: Path, into: Path, expects: str, *, max_bytes: int = MAX_BYTES, max_members: int = MAX_MEMBERS
) -> Path:
    """Unpack a .tar, .tgz or .zip, so that a folder of it appears at once and complete, or not at all.

    Args:
        archive: the file.
        into: the folder that gets the result.
        expects: the folder at the top of the archive that is kept.
        max_bytes: what all members may take when unpacked.
        max_members: how many there may be.

    Returns:
        The folder `into / expects`.

    Raises:
        UnsafeArchiveError: a member leads outside the folder, is a link or a device, or the caps are exceeded.
        ValueError: the archive is damaged, or does not have the expected folder.
        FileExistsError: the folder is there already.
    """
    if (into / expects).exists():
        raise FileExistsError(f"{into / expects} exists already and is not complete; remove it and try again")
    into.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=into, prefix=".unpacking-"))
    try:
        try:
            if zipfile.is_zipfile(archive):
                _unpack_zip(archive, work, max_bytes, max_members)
            else:
                _unpack_tar(archive, work, max_bytes, max_members)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{archive} is damaged or not an archive ({error}); get it again") from error
        if not (work / expects).is_dir():
            raise ValueError(
                f"{archive} has no folder {expects!r} at its top; it is not the archive expected"
            )
        os.replace(work / expects, into / expects)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return into / expects


class _Budget:
    """Counts what has been unpacked against the caps."""

    def __init__(self, archive: Path, max_bytes: int, max_members: int) -> None:
        self.archive, self.max_bytes, self.max_members = archive, max_bytes, max_members
        self.bytes = self.members = 0

    def member(self) -> None:
        self.members += 1
        if self.members > self.max_members:
            raise UnsafeArchiveError(
                f"{self.archive} has more than {self.max_members} members; it was not unpacked"
            )

    def size(self, count: int) -> None:
        self.bytes += count
        if self.bytes > self.max_bytes:
            raise UnsafeArchiveError(
                f"{self.archive} unpacks to more than {self.max_bytes} bytes; it was not unpacked"
            )


def _unpack_tar(archive: Path, work: Path, max_bytes: int, max_members: int) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise RuntimeError(
            "this Python is too old to unpack archives safely; 3.10.12, 3.11.4 or newer is needed"
        )
    budget = _Budget(archive, max_bytes, max_members)
    with tarfile.open(archive) as opened:
        for member in opened:
            budget.member()
            budget.size(max(member.size, 0))
            _check_name(archive, member.name, is_link=member.islnk() or member.issym())
            try:
                opened.extract(member, work, filter="data")
            except tarfile.FilterError as error:
                raise UnsafeArchiveError(f"{archive}: {error}; it was not unpacked") from error


def _unpack_zip(archive: Path, work: Path, max_bytes: int, max_members: int) -> None:
    budget = _Budget(archive, max_bytes, max_members)
    with zipfile.ZipFile(archive) as opened:
        members = opened.infolist()
        # zipfile never gives out more of a member than the directory announces.
        budget.size(sum(member.file_size for member in members))
        for member in members:
            budget.member()
            _check_name(archive, member.filename, is_link=stat.S_ISLNK(member.external_attr >> 16))
            target = work / member.filename
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)


def _check_name(archive: Path, name: str, is_link: bool) -> None:
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or re.match(r"^[A-Za-z]:", name):
        raise UnsafeArchiveError(
            f"{archive} has the member {name!r}, which leads outside the folder; it was not unpacked"
        )
    if is_link:
        raise UnsafeArchiveError(f"{archive} has a link, {name!r}; it was not unpacked")
