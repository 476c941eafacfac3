"""Write a folder of results whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class OutputFolderError(OSError):
    """A folder cannot be written to as it was asked for: it is a file, is not empty, or cannot be created.

    Example:
        >>> issubclass(OutputFolderError, OSError)
        True
    """


def _check(out: Path, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise OutputFolderError(f"{out} is a file; give a folder that is new or empty")
    if out.is_dir() and not force and any(out.iterdir()):
        raise OutputFolderError(f"{out} is not empty; give another folder, or --force to write into this one")


@contextmanager
def output_folder(out: Path, force: bool = False) -> Iterator[Path]:
    """Give a temporary folder beside `out`; what was written there is moved to `out` if nothing failed.

    With `force` a folder that is not empty is accepted: files of the same name are replaced one by one, each
    whole, and all other files are left alone. If the block raises, `out` is as it was.

    Raises:
        OutputFolderError: `out` is a file, is not empty (without `force`), or cannot be made.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with output_folder(Path(place) / "out") as folder:
        ...         _ = (folder / "a.txt").write_text("a")
        ...     sorted(path.name for path in Path(place, "out").iterdir())
        ['a.txt']
    """
    _check(out, force)
    target = out.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
        temporary.mkdir()
    except OSError as error:
        raise OutputFolderError(f"{out} cannot be made: {error.strerror}") from error
    try:
        yield temporary
        _check(out, force)
        if not target.exists():
            temporary.rename(target)
        else:
            for path in sorted(temporary.iterdir()):
                os.replace(path, target / path.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
