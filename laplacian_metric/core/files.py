"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What file systems answer that cannot make a folder durable; the file itself already is.
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place once it was written in full.

    What is written inside the ``with`` block goes to the path that it yields, an empty file in the same folder. At the
    end that file and the folder are flushed to the disk, and ``path`` is replaced in one step: whoever reads it sees
    the old file or the new one, never a part of it. If the block raises, or the process is interrupted, ``path`` is as
    it was and the temporary file is removed. A file that is replaced hands on its permissions; where ``path`` is a
    link, the file that it leads to is replaced.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_write(Path(folder) / "numbers.txt") as temporary:
        ...         _ = temporary.write_text("1 2 3")
        ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
        [('numbers.txt', '1 2 3')]
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file to write")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {target.parent} to write {target.name} into: make it first"
        )
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    # Made here rather than by tempfile, so that the permissions are those that the user's umask leaves to any file.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        mode = (target if target.exists() else temporary).stat().st_mode & 0o777
        yield temporary
        if not temporary.is_file():
            raise FileNotFoundError(
                f"what should become {target.name} was not written: write to the path that atomic_write yields"
            )
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        # Some writers replace the file by one of their own, with other permissions.
        temporary.chmod(mode)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def replace_folder(temporary: Path, target: Path) -> None:
    """Have a finished folder take the place of another, or of none.

    A folder cannot replace another in one step. The old one is beside it for a moment, with the suffix ".old", and put
    back if the new one cannot take its place.
    """
    old = temporary.with_suffix(".old")
    try:
        if target.exists():
            target.rename(old)
        temporary.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Have the disk know the folder's new entry; only POSIX systems can, and not on every file system."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
