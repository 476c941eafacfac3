"""Files and folders that are either whole or not there."""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from laplacian_metric.core.checked import ArtifactBusyError

# What file systems answer that cannot make a folder durable; the file itself already is.
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
# What kernels and file systems answer that cannot exchange two folders.
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
AT_FDCWD, RENAME_EXCHANGE = -100, 2
_FCNTL: Any = importlib.import_module("fcntl") if os.name == "posix" else None


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, exclusive: bool = False) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place once it was written in full.

    What is written inside the ``with`` block goes to the path that it yields, an empty file in the same folder. At the
    end that file and the folder are flushed to the disk, and ``path`` is replaced in one step: whoever reads it sees
    the old file or the new one, never a part of it. If the block raises, or the process is interrupted, ``path`` is as
    it was and the temporary file is removed. A file that is replaced hands on its permissions; where ``path`` is a
    link, the file that it leads to is replaced.

    Args:
        path: of the file; its folder has to be there.
        exclusive: whoever else writes it at the same time gets an `ArtifactBusyError`, and what a killed writer left is
            removed. Otherwise the last one wins.

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
    with ExitStack() as stack:
        if exclusive:
            stack.enter_context(locked(target))
        temporary = target.with_name(f"{_hidden(target)}{secrets.token_hex(8)}.tmp")
        # Made here rather than by tempfile, so that the permissions are those that the user's umask leaves to any file.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        stack.callback(temporary.unlink, missing_ok=True)
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


@contextmanager
def atomic_folder(path: str | os.PathLike[str], *, keep_others: bool = False) -> Iterator[Path]:
    """A temporary folder beside ``path`` that takes its place at the end of the ``with`` block.

    Where the system can exchange two folders in one step, ``path`` leads to the old folder or to the new one at any
    moment. Elsewhere the old one is beside it for a moment, as ``.NAME.*.old``, from where `old_folder` and the next
    writer recover it. If the block raises, ``path`` is as it was. Whoever writes the same folder at the same time gets
    a `ArtifactBusyError`; what a killed writer left is removed by the next one. Where ``path`` is a link, the folder
    that it leads to is replaced. The files in the folder are to be flushed by whoever writes them.

    Args:
        path: a folder, or nothing yet; its parents are created.
        keep_others: link what the old folder holds beside the new files into the new one; otherwise it is removed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with atomic_folder(Path(place) / "numbers") as temporary:
        ...         _ = (temporary / "1.txt").write_text("1")
        ...     [file.relative_to(place).as_posix() for file in sorted(Path(place).rglob("*"))]
        ['numbers', 'numbers/1.txt']
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target):
        temporary = target.with_name(f"{_hidden(target)}{secrets.token_hex(8)}.tmp")
        try:
            temporary.mkdir()
            if target.is_dir():
                temporary.chmod(target.stat().st_mode & 0o777 | 0o700)
            yield temporary
            if keep_others and target.is_dir():
                _link_others(target, temporary)
            sync_folder(temporary)
            _replace(temporary, target)
            sync_folder(target.parent)
        finally:
            # After an exchange this is the old folder.
            shutil.rmtree(temporary, ignore_errors=True)


def old_folder(path: Path) -> Path | None:
    """Return where a folder is that was set aside by a writer who was killed before the new one took its place."""
    ages = {}
    for old in _leftovers(path, "old"):
        with suppress(FileNotFoundError):  # its writer may be alive
            ages[old] = old.stat().st_mtime
    return max(ages, key=ages.__getitem__, default=None)


def _hidden(target: Path) -> str:
    """Return what the names of a folder's lock and of its temporary folders start with, of at most 102 bytes."""
    return f".{target.name.encode(errors='ignore')[:100].decode(errors='ignore')}."


def _leftovers(target: Path, *suffixes: str) -> list[Path]:
    pattern = re.compile(re.escape(_hidden(target)) + rf"[0-9a-f]{{16}}\.({'|'.join(suffixes)})")
    entries = target.parent.iterdir() if target.parent.is_dir() else ()
    return [path for path in entries if pattern.fullmatch(path.name)]


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Keep other writers of a path out, where there are locks; put back or remove what a killed writer left."""
    if _FCNTL is None:
        yield
        return
    lock = target.with_name(f"{_hidden(target)}lock")
    while True:
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            _FCNTL.flock(descriptor, _FCNTL.LOCK_EX | _FCNTL.LOCK_NB)
            # The writer before may have removed the file between these two calls.
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                break
            os.close(descriptor)
        except FileNotFoundError:
            os.close(descriptor)
        except OSError as error:
            owner = os.read(descriptor, 20).decode(errors="replace")
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                lock.unlink(missing_ok=True)
                yield
                return
            raise ArtifactBusyError(
                f"{target} is being written by process {owner}: wait until it has finished"
            ) from error
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        old = old_folder(target)
        if old is not None and not target.exists():
            old.rename(target)
        for path in _leftovers(target, "tmp", "old"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _replace(temporary: Path, target: Path) -> None:
    if not target.is_dir() or not any(target.iterdir()):
        temporary.rename(target)
    elif not _exchange(temporary, target):
        old = temporary.with_suffix(".old")
        target.rename(old)
        try:
            temporary.rename(target)
        except BaseException:
            old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Have two folders change places in one step; False where that cannot be done."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    if renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _link_others(source: Path, target: Path) -> None:
    for path in source.iterdir():
        place = target / path.name
        if os.path.lexists(place):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, place, symlinks=True, copy_function=_link)
        else:
            _link(path, place)


def _link(source: str | Path, place: str | Path) -> None:
    try:
        os.link(source, place, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, place, follow_symlinks=False)


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
