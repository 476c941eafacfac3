"""Downloads: checked, resumed, tried again, and in place only when complete; safe under several processes."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import time
import urllib.error
import urllib.request
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
