"""Downloads: checked, resumed, tried again, and in place only when complete; archives are unpacked safely."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import re
import shutil
import stat
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path

from filelock import FileLock

LOGGER = logging.getLogger(__name__)

MAX_BYTES = 64 * 2**30

_CHUNK = 1 << 20
# The server has no such range: what was kept of an earlier attempt is longer than the file.
_NOT_SATISFIABLE = 416
_SCHEMES = ("https", "http", "ftp", "file")


class DownloadError(OSError):
    """A file could not be downloaded, or is not the one that its publisher announces."""


def lock_beside(path: Path) -> FileLock:
    """A lock between processes for one path; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"))


def md5_of(path: Path) -> str:
    """The MD5 checksum of a file. Data sets are published with it; it guards against damage, not against malice."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def fetch(
    url: str,
    target: Path,
    *,
    md5: str | None = None,
    max_bytes: int = MAX_BYTES,
    attempts: int = 3,
    wait: float = 1.0,
    timeout: float = 60.0,
) -> Path:
    """Download a file, unless it is there already.

    What has arrived is kept in `target` + ".part" until it is complete and its checksum is right. A transfer that
    breaks off goes on where it stopped, provided that there is a checksum to notice if the file has changed since.

    Args:
        url: http, https, ftp or file.
        target: where the file goes.
        md5: the checksum that its publisher announces; None where there is none.
        max_bytes: give up on anything larger.
        attempts: how often to try.
        wait: seconds before the second attempt; doubled before each further one.
        timeout: seconds without an answer before an attempt counts as failed.

    Raises:
        DownloadError: all attempts failed, the file is too large, or its checksum is wrong.
    """
    if url.split(":", 1)[0] not in _SCHEMES:
        raise ValueError(f"{url} cannot be downloaded; it must begin with one of: {', '.join(_SCHEMES)}")
    with lock_beside(target):
        if target.exists():
            if md5 is not None and md5_of(target) != md5:
                raise DownloadError(
                    f"{target} has another checksum than its publisher gives; delete it and retry"
                )
            return target
        LOGGER.info("downloading %s to %s", url, target)
        part = target.with_name(target.name + ".part")
        for attempt in range(1, attempts + 1):
            try:
                _transfer(url, part, resume=md5 is not None, max_bytes=max_bytes, timeout=timeout)
                _check(url, part, md5)
                break
            except DownloadError:
                part.unlink(missing_ok=True)
                raise
            except (OSError, http.client.HTTPException) as error:
                if attempt == attempts or not _worth_repeating(error):
                    raise DownloadError(
                        f"{url} could not be downloaded ({attempt} of {attempts} attempts): {error}"
                    ) from error
                if isinstance(error, urllib.error.HTTPError) and error.code == _NOT_SATISFIABLE:
                    part.unlink(missing_ok=True)
                LOGGER.warning("attempt %d of %d for %s failed: %s", attempt, attempts, url, error)
                time.sleep(wait * 2 ** (attempt - 1))
        os.replace(part, target)
    return target


def _worth_repeating(error: Exception) -> bool:
    """Whether another attempt may succeed: not where the server says that the request is wrong."""
    if not isinstance(error, urllib.error.HTTPError):
        return True
    return error.code == _NOT_SATISFIABLE or not 400 <= error.code < 500


class _ChangedError(OSError):
    """What arrived is not what was published; the next attempt begins anew."""


def _check(url: str, part: Path, md5: str | None) -> None:
    if md5 is None:
        return
    checksum = md5_of(part)
    if checksum != md5:
        part.unlink()
        raise _ChangedError(
            f"the checksum of what arrived from {url} is {checksum}, its publisher gives {md5}"
        )


def _transfer(url: str, part: Path, *, resume: bool, max_bytes: int, timeout: float) -> None:
    """Add to `part` what is still missing of it."""
    have = part.stat().st_size if resume and part.exists() else 0
    headers = {"User-Agent": "laplacian-metric"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as answer:
        # A server that does not know ranges answers with the whole file.
        goes_on = have > 0 and getattr(answer, "status", None) == http.HTTPStatus.PARTIAL_CONTENT
        total = have if goes_on else 0
        announced = answer.headers.get("Content-Length")
        expected = None if announced is None else total + int(announced)
        with part.open("ab" if goes_on else "wb") as sink:
            while chunk := answer.read(_CHUNK):
                total += len(chunk)
                if total > max_bytes:
                    raise DownloadError(f"{url} is larger than the {max_bytes} bytes allowed")
                sink.write(chunk)
    if expected is not None and total != expected:
        raise http.client.IncompleteRead(b"", expected - total)


MAX_UNPACKED = 64 * 2**30
MAX_MEMBERS = 3_000_000


class UnsafeArchiveError(ValueError):
    """An archive holds what must not be unpacked: paths that lead outside, links, or far too much."""


def unpack(
    archive: Path, into: Path, expects: str, *, max_bytes: int = MAX_UNPACKED, max_members: int = MAX_MEMBERS
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
