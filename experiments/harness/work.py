"""Where runs keep what they are made of: for each cell and seed a folder with a lock, a configuration, a network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from laplacian_metric.core import checked
from laplacian_metric.core.files import atomic_write

LOCK, CONFIG, TRAINED, FEATURES = "lock", "config.json", "trained.json", "features"


class RunError(RuntimeError):
    """The runs cannot go on; the message says what to do."""


class Busy(Exception):  # noqa: N818 (it is no error: another process is at it)
    """Another process is working on this."""


class ChangedError(ValueError):
    """Something was made with another configuration than it has now."""


class Work:
    """The folder of networks and features.

    Args:
        root: outside of the repository; networks and features are large.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._locks: dict[Path, FileLock] = {}

    def folder(self, cell: str, seed: int) -> Path:
        """That of one run."""
        return self.root / cell / f"seed{seed}"

    @contextmanager
    def locked(self, cell: str, seed: int, *, wait: bool = False) -> Iterator[Path]:
        """Keep other processes out of a run's folder; one process may come in several times.

        Raises:
            Busy: another process is in it, and ``wait`` is not asked for.
        """
        folder = self.folder(cell, seed)
        folder.mkdir(parents=True, exist_ok=True)
        lock = self._locks.setdefault(folder, FileLock(folder / LOCK))
        try:
            lock.acquire(timeout=-1 if wait else 0, poll_interval=0.2)
        except Timeout:
            raise Busy(f"{cell}, seed {seed}") from None
        try:
            yield folder
        finally:
            lock.release()

    def is_locked(self, cell: str, seed: int) -> bool:
        """Whether some process is in a run's folder."""
        if not (self.folder(cell, seed) / LOCK).exists():
            return False
        try:
            with self.locked(cell, seed):
                return False
        except Busy:
            return True

    def config(self, cell: str, seed: int) -> dict[str, Any] | None:
        """What the network of a run was begun with."""
        return read_json(self.folder(cell, seed) / CONFIG)

    def trained(self, cell: str, seed: int) -> dict[str, Any] | None:
        """What the finished training of a run was: history, best epoch and seconds."""
        return read_json(self.folder(cell, seed) / TRAINED)

    def clear(self, cell: str, seed: int) -> None:
        """Remove everything of a run but its lock, which is held."""
        folder = self.folder(cell, seed)
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != LOCK:
                entry.unlink()

    def drop_features(self, cell: str, seed: int) -> bool:
        """Remove the features of a run; says whether there were any."""
        place = self.folder(cell, seed) / FEATURES
        if not place.is_dir():
            return False
        shutil.rmtree(place, ignore_errors=True)
        return True


def read_json(path: Path) -> dict[str, Any] | None:
    """Return what a file holds, or None where there is none."""
    if not path.is_file():
        return None
    try:
        return checked.read_json(path, "remove it, and what it is of is computed again")
    except ValueError as error:
        raise RunError(str(error)) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
