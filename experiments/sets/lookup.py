"""Where published data sets are looked for, how they are downloaded, and the error where their files are missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock

from laplacian_metric.data import Request

VARIABLE = "LAPLACIAN_METRIC_DATA"


class MissingDataError(FileNotFoundError):
    """The files of a data set are missing; the message says where they are published and how to get them."""


def cache_folder() -> Path:
    """Return the folder for data in the platform's cache of this user."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "laplacian-metric" / "data"


def data_folders(data_dir: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """Return the folders to look in, the first of which downloads go to.

    A folder that is passed is the only one. Otherwise it is that of the environment variable
    LAPLACIAN_METRIC_DATA, where it is set, and then that in the platform's cache.
    """
    if data_dir is not None:
        return (Path(data_dir).expanduser(),)
    named = os.environ.get(VARIABLE)
    return (*((Path(named).expanduser(),) if named else ()), cache_folder())


def find(
    request: Request,
    bases: Sequence[str],
    needed: Sequence[str],
    fetch: Callable[[Path], object] | None = None,
) -> Path:
    """Return the folder of a data set; with `download`, ``fetch(data folder)`` puts missing files there.

    Args:
        request: what is asked for.
        bases: where the data set may lie below a data folder.
        needed: what must be in it, names or patterns.
        fetch: downloads it; None where it cannot be downloaded.
    """
    folders = data_folders(request.data_dir)
    place, incomplete = _locate(folders, bases, needed)
    if place is None and request.download and fetch is not None:
        folders[0].mkdir(parents=True, exist_ok=True)
        with FileLock(folders[0] / f".{request.info.name}.lock"):
            place, incomplete = _locate(
                folders, bases, needed
            )  # another process may have fetched it meanwhile
            if place is None:
                fetch(folders[0])
                place, incomplete = _locate(folders, bases, needed)
    if place is not None:
        return place
    about = request.info
    parts = [f"{about.title} was not found in {', '.join(map(str, folders))}; its files are {about.layout}"]
    parts += incomplete
    if fetch is None:
        parts.append("it cannot be downloaded automatically")
    else:
        parts.append(f"data.load({about.name!r}, download=True) fetches it")
    parts += [f"it is published at {about.page}", about.obtain]
    parts.append(f"another folder is given with data_dir or the environment variable {VARIABLE}")
    raise MissingDataError("; ".join(part for part in parts if part))


def _locate(
    folders: Sequence[Path], bases: Sequence[str], needed: Sequence[str]
) -> tuple[Path | None, list[str]]:
    """Return the first folder that has everything, or None and what is missing in those that have a part."""
    incomplete = []
    for folder in folders:
        for base in bases:
            place = folder / base
            missing = [pattern for pattern in needed if not any(place.glob(pattern))]
            if not missing:
                return place, []
            if len(missing) < len(needed):
                incomplete.append(f"{place} has no {', '.join(missing)}")
    return None, incomplete
