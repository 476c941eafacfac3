"""Where data sets are looked for, and what is said where they are not found."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "LAPLACIAN_METRIC_DATA"


class MissingDataError(FileNotFoundError):
    """The files of a data set were not found; the message says where from and how to get them."""


def cache_folder() -> Path:
    """The folder for data in the platform's cache of this user."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "laplacian-metric" / "data"


def data_folders(data_dir: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """The folders to look in, the first of which downloads go to.

    A folder that is passed is the only one. Otherwise it is that of the environment variable
    LAPLACIAN_METRIC_DATA, where it is set, and then that in the platform's cache.
    """
    if data_dir is not None:
        return (Path(data_dir).expanduser(),)
    named = os.environ.get(VARIABLE)
    return (*((Path(named).expanduser(),) if named else ()), cache_folder())


def first_existing(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of several names that exists in a folder."""
    return next((folder / name for name in names if (folder / name).exists()), None)


def locate(
    folders: Sequence[Path], bases: Sequence[str], needed: Sequence[Sequence[str]]
) -> tuple[Path | None, list[str]]:
    """The first folder that has everything that is needed.

    Args:
        folders: the data folders, in order.
        bases: where below them the data set may lie.
        needed: what must be there; of each inner sequence, one name is enough.

    Returns:
        The folder or None, and what is missing in those that have a part.
    """
    incomplete = []
    for folder in folders:
        for base in bases:
            place = folder / base
            missing = [names[0] for names in needed if first_existing(place, names) is None]
            if not missing:
                return place, []
            if len(missing) < len(needed):
                incomplete.append(f"{place} has no {', '.join(missing)}")
    return None, incomplete
