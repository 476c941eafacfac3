"""Files and folders that are written whole or not at all."""

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
    """Yield a temporary path beside ``path`` that takes its place once it was written in full.

    What is written inside the ``with`` block goes to the path that it yields, an empty file in the same folder. At the
    end that file and the folder are flushed to the disk, and ``path`` is replaced in one step: whoever reads it sees
    the old file or the new one, never a part of it. If the block raises, or the process is interrupted, ``path`` is as
    it was and the temporary file is removed. A file that is replaced hands on its permissions; where ``path`` is a
    link, the file that it leads to is replaced.

    Args:
        path: of the file; its folder has to be there. Of two writers at the same time the last one wins.

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
    hidden = target.name.encode(errors="ignore")[:100].decode(errors="ignore")
    temporary = target.with_name(f".{hidden}.{secrets.token_hex(8)}.tmp")
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
        sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


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
