"""Artifacts: folders with a manifest and payload files, checked when they are read and replaced as a whole.

A manifest says what the folder is, with the size and the SHA-256 of every payload and of itself. `load` opens each
file once; what is hashed through a handle is what is read through it, so that a load beside a writer gives one version
or the other. Nothing is parsed before its size and its digest were found right, and nothing in a folder is code. The
digests tell damage and mix-ups; they are no signature. Reading needs numpy and pydantic, and never torch.

Example:
    >>> import tempfile
    >>> from typing import ClassVar
    >>> class Weights(Manifest):
    ...     FORMAT: ClassVar[str] = "laplacian_metric weights"
    ...     PAYLOADS: ClassVar[tuple[str, ...]] = ("weights.npy",)
    ...     count: int
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = save(Path(place) / "mine", Weights(count=3), {"weights.npy": np.ones(3)})
    ...     with load(folder, Weights) as artifact:
    ...         weights = artifact.array("weights.npy", shape=(artifact.manifest.count,), dtype=float, mmap=False)
    >>> weights
    array([1., 1., 1.])
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from laplacian_metric import __version__
from laplacian_metric.core.checked import (
    COPY_AGAIN,
    ArtifactBusyError,
    ArtifactError,
    ArtifactExistsError,
    ArtifactWriteError,
    DamagedArtifactError,
    FileEntry,
    ForeignArtifactError,
    Manifest,
    MissingArtifactError,
    NewerArtifactError,
    NotAFolderError,
    digest_of_dict,
    parsed,
    validated,
)
from laplacian_metric.core.files import atomic_folder, old_folder

CHUNK, THREADS = 1 << 22, 4
LARGEST_MANIFEST = 1 << 26
ATTEMPTS, LOOKS = 1000, 40
FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

AnyPath = str | os.PathLike[str]
Payload = NDArray[Any] | str | Callable[[Path], object]


M = TypeVar("M", bound=Manifest)


# --- reading ---


@dataclass
class Artifact(Generic[M]):
    """An artifact that is open for reading, and whose payloads are as they were written.

    Attributes:
        folder: where it was found.
        manifest: what it says about itself.
        handles: the open payloads by name.
    """

    folder: Path
    manifest: M
    handles: Mapping[str, BinaryIO]
    _stack: ExitStack
    _links: Path | None = None

    def path(self, name: str) -> Path:
        """Return a path to the payload that was checked, for readers that take no handle; valid while it is open."""
        handle = Path("/dev/fd") / str(self.handles[name].fileno())
        if not handle.exists():
            return self.folder / name
        if self._links is None:
            self._links = Path(self._stack.enter_context(TemporaryDirectory(prefix="laplacian-metric-")))
        link = self._links / name
        if not link.is_symlink():
            link.symlink_to(handle)
        return link

    def array(
        self, name: str, *, shape: tuple[int, ...], dtype: DTypeLike | None = None, mmap: bool = True
    ) -> NDArray[Any]:
        """Return the array of an .npy payload, read-only.

        Args:
            name: of the payload.
            shape: that it has to have.
            dtype: that it has to have; None for any of numbers or text.
            mmap: leave it in its file, from which the parts that are used are read; otherwise read it into memory.
        """
        handle, where = self.handles[name], f"{name} in {self.folder}"
        handle.seek(0)
        try:
            stored_shape, fortran, stored = npy_header(handle, os.fstat(handle.fileno()).st_size)
        except (ValueError, EOFError) as error:
            raise DamagedArtifactError(f"{where} is no array that can be read: {error}") from error
        if stored_shape != shape or fortran or stored != (stored if dtype is None else np.dtype(dtype)):
            raise DamagedArtifactError(
                f"{where} is not the array that the manifest describes: {shape} of {dtype or 'any dtype'} is needed, "
                f"it is {stored_shape} of {stored}"
            )
        if mmap and 0 not in shape:
            return np.asarray(np.memmap(handle, dtype=stored, mode="r", offset=handle.tell(), shape=shape))
        array = np.frombuffer(handle.read(), dtype=stored).reshape(shape)
        array.flags.writeable = False
        return array


def npy_header(handle: BinaryIO, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and dtype of an .npy file of ``size`` bytes, which is then at the array's beginning.

    Raises:
        ValueError: it is none, holds objects of Python, or announces another size than it has.
    """
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(handle)
    if version not in readers:
        raise ValueError(f"its format {version} is not known")
    shape, fortran, dtype = readers[version](handle)
    if dtype.hasobject:
        raise ValueError("it holds objects of Python, which would have to run code: save numbers or text")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - handle.tell():
        raise ValueError(f"it announces {shape} of {dtype} and holds {size - handle.tell()} bytes")
    return shape, fortran, dtype


@contextmanager
def load(folder: AnyPath, kind: type[M]) -> Iterator[Artifact[M]]:
    """Open an artifact, after its files were found to be as they were written; arrays stay valid after the block.

    Args:
        folder: what `save` wrote.
        kind: of manifest.

    Raises:
        MissingArtifactError, NotAFolderError, ForeignArtifactError: there is none of this kind.
        NewerArtifactError: update this library.
        DamagedArtifactError: copy the folder again.
    """
    with ExitStack() as stack:
        yield Artifact(*_consistent(Path(folder), kind, stack, payloads=True), stack)


def read_manifest(folder: AnyPath, kind: type[M]) -> M:
    """Return what an artifact says about itself, checked against its own digest, without reading the payloads."""
    with ExitStack() as stack:
        return _consistent(Path(folder), kind, stack, payloads=False)[1]


def _consistent(
    place: Path, kind: type[M], stack: ExitStack, payloads: bool
) -> tuple[Path, M, dict[str, BinaryIO]]:
    """Open the files of one version of an artifact, which may be replaced meanwhile."""
    for _ in range(ATTEMPTS):
        with ExitStack() as attempt:
            folder = attempt.enter_context(_Folder.open(place, kind))
            try:
                manifest = _manifest(folder, kind)
                handles = {
                    name: attempt.enter_context(folder.file(name)) for name in manifest.files if payloads
                }
                _check(folder.path, manifest, handles)
            except (DamagedArtifactError, MissingArtifactError, ForeignArtifactError):
                with _Folder.open(place, kind) as present:
                    if os.path.samestat(folder.status, present.status):
                        raise
                continue  # it was replaced meanwhile
            stack.push(attempt.pop_all())
            return folder.path, manifest, handles
    raise ArtifactBusyError(f"{place} was replaced {ATTEMPTS} times while it was read: try again later")


@dataclass(frozen=True)
class _Folder:
    """A folder that stays the same one when another takes its place; ``descriptor`` is None where that is not known."""

    path: Path
    descriptor: int | None
    status: os.stat_result

    @staticmethod
    @contextmanager
    def open(place: Path, kind: type[Manifest]) -> Iterator[_Folder]:
        """Open a folder, or what a writer set aside for it; at any moment one of them is there."""
        for number in range(LOOKS):
            path = old_folder(place) if number % 2 else place
            if path is None or not path.is_dir():
                continue
            try:
                descriptor = os.open(path, os.O_RDONLY) if os.open in os.supports_dir_fd else None
            except FileNotFoundError:
                continue
            try:
                yield _Folder(path, descriptor, path.stat() if descriptor is None else os.fstat(descriptor))
            finally:
                if descriptor is not None:
                    os.close(descriptor)
            return
        if place.exists():
            raise NotAFolderError(f"{place} is a file, the folder of a saved {kind.noun()} is needed")
        raise MissingArtifactError(f"there is no {kind.noun()} folder {place}")

    def file(self, name: str) -> BinaryIO:
        """Open a regular file of the folder; anything else, such as a pipe, is refused without waiting for it."""
        where = name if self.descriptor is not None else self.path / name
        try:
            descriptor = os.open(where, FLAGS, dir_fd=self.descriptor)
        except FileNotFoundError as error:
            raise DamagedArtifactError(f"{self.path} lacks {name}: copy the folder again") from error
        except OSError as error:
            raise DamagedArtifactError(f"{name} in {self.path} cannot be opened: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise DamagedArtifactError(f"{name} in {self.path} is no regular file: copy the folder again")
        return os.fdopen(descriptor, "rb", buffering=0)


def _json(folder: _Folder, kind: type[Manifest]) -> tuple[dict[str, Any], Any]:
    """Return the content of a manifest and its version."""
    where = f"{kind.FILE} in {folder.path}"
    try:
        opened = folder.file(kind.FILE)
    except DamagedArtifactError as error:
        raise MissingArtifactError(f"{folder.path} holds no {kind.noun()}: {error}") from error
    with opened as handle:
        if os.fstat(handle.fileno()).st_size > LARGEST_MANIFEST:
            raise DamagedArtifactError(f"{where} is larger than any manifest: copy the folder again")
        values = parsed(handle.read(), where, *COPY_AGAIN)
    version = kind.version_of(values)
    if version is None:
        raise ForeignArtifactError(f"{where} is something else's, {folder.path} holds no {kind.noun()}")
    return values, version


def _manifest(folder: _Folder, kind: type[M]) -> M:
    where = f"{kind.FILE} in {folder.path}"
    values, version = _json(folder, kind)
    if type(version) is not int or version > kind.VERSION:
        raise NewerArtifactError(
            f"{folder.path} is in format {version!r}, this version reads up to format {kind.VERSION}: update "
            "laplacian_metric"
        )
    digest = values.pop("digest", None)
    if version >= kind.DIGEST_SINCE and digest != digest_of_dict(values):
        raise DamagedArtifactError(f"{where} was altered after it was written: copy the folder again")
    fields = {name: value for name, value in values.items() if name not in ("format", "version")}
    manifest = validated(kind, kind.upgraded(fields, version), where, *COPY_AGAIN)
    if set(manifest.files) != (needed := manifest.payloads()):
        raise DamagedArtifactError(
            f"{where} names {', '.join(sorted(manifest.files)) or 'no files'}, {', '.join(sorted(needed))} are needed"
        )
    return manifest


def _check(folder: Path, manifest: Manifest, handles: Mapping[str, BinaryIO]) -> None:
    """Refuse payloads of another size, and then those of another digest."""
    for name, handle in handles.items():
        size, needed = os.fstat(handle.fileno()).st_size, manifest.files[name].bytes
        if needed not in (None, size):
            raise DamagedArtifactError(
                f"{name} in {folder} has {size} bytes, {needed} were written: copy the folder again"
            )
    with ThreadPoolExecutor(THREADS) as pool:  # hashing leaves Python's lock to others
        digests = list(pool.map(_digest, handles.values()))
    for name, digest in zip(handles, digests, strict=True):
        if manifest.files[name].sha256 not in (None, digest):
            raise DamagedArtifactError(
                f"{name} in {folder} was altered after it was written, its digest is another: copy the folder again"
            )


def _digest(handle: BinaryIO) -> str:
    """Return the SHA-256 of a file, which is then at its beginning again."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK))
    while count := handle.readinto(buffer):  # type: ignore[attr-defined]
        digest.update(buffer[:count])
    handle.seek(0)
    return digest.hexdigest()


# --- writing ---


def save(
    folder: AnyPath, manifest: Manifest, payloads: Mapping[str, Payload], *, overwrite: bool = False
) -> Path:
    """Write an artifact, which is there whole or not at all, and return its folder.

    Args:
        folder: to be written; whoever has loaded what was there keeps it. Parents are created.
        manifest: without ``files``.
        payloads: file name -> an array (.npy), a text, or a function that writes the file to the path it is passed.
        overwrite: replace an artifact of this kind; anything else is left alone.

    Raises:
        ArtifactExistsError: there is something that is not to be replaced.
        ArtifactBusyError: somebody else writes the folder.
        ArtifactWriteError: the disk is full, say. Nothing has changed then.
    """
    kind = type(manifest)
    check_target(folder, kind, overwrite=overwrite)
    try:
        with atomic_folder(folder, keep_others=bool(kind.EDITABLE)) as temporary:
            check_target(folder, kind, overwrite=overwrite)  # again, now that nobody else writes
            entries = {name: _write(temporary / name, payload) for name, payload in payloads.items()}
            kept = {name: entry for name, entry in entries.items() if name not in kind.EDITABLE}
            _write(temporary / kind.FILE, sealed(manifest, kept))
    except ArtifactError:
        raise
    except OSError as error:
        raise ArtifactWriteError(
            error.errno, f"{folder} cannot be written ({error}): nothing was changed"
        ) from error
    return Path(folder)


def sealed(manifest: Manifest, files: Mapping[str, FileEntry]) -> str:
    """Return the text of a manifest's file, with its digest."""
    content = manifest.model_dump() | {
        "format": manifest.FORMAT,
        "version": manifest.VERSION,
        "made_with": {"laplacian_metric": __version__, "numpy": np.__version__, **manifest.made_with},
        "files": {name: entry.model_dump() for name, entry in files.items()},
    }
    return json.dumps({**content, "digest": digest_of_dict(content)}, indent=1, allow_nan=False) + "\n"


def check_target(folder: AnyPath, kind: type[Manifest], *, overwrite: bool = False) -> None:
    """Refuse a folder that an artifact cannot be written to, before anything is computed for it."""
    noun, place = kind.noun(), Path(os.path.realpath(folder))
    if Path(os.path.realpath(".")).is_relative_to(place):
        raise ArtifactExistsError(f"{str(folder)!r} is the current folder: name a folder for the {noun}")
    if os.path.ismount(place):
        raise ArtifactExistsError(f"{folder} is a mount point, which cannot be replaced: name a folder in it")
    parent = next(path for path in place.parents if path.exists())
    if not parent.is_dir():
        raise NotAFolderError(f"{parent} is a file, so {folder} cannot be made: name another folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ArtifactWriteError(f"{parent} is read-only, so {folder} cannot be written: name another folder")
    occupied = place if place.exists() else old_folder(place)
    if occupied is None or (occupied.is_dir() and not any(occupied.iterdir())):
        return
    if not occupied.is_dir():
        raise ArtifactExistsError(f"{folder} is a file: name a new folder")
    try:
        with _Folder.open(occupied, kind) as opened:
            _json(opened, kind)
    except ArtifactError as error:
        if isinstance(error, MissingArtifactError) and kind.EDITABLE:
            return
        raise ArtifactExistsError(
            f"{folder} is there already and holds no {noun}: name another folder"
        ) from error
    if not overwrite:
        raise ArtifactExistsError(
            f"{folder} holds a saved {noun} already: pass overwrite=True to replace it, or name another folder"
        )


def _write(path: Path, payload: Payload) -> FileEntry:
    """Write a payload through to the disk and return its entry in the manifest."""
    if callable(payload):
        payload(path)
    with path.open("rb+" if callable(payload) else "wb") as stream:
        if callable(payload):
            sha256 = _digest(stream)
        else:
            digest = hashlib.sha256()
            for part in _parts(payload):
                stream.write(part)
                digest.update(part)
            sha256 = digest.hexdigest()
        stream.flush()
        os.fsync(stream.fileno())
    return FileEntry(bytes=path.stat().st_size, sha256=sha256)


def _parts(payload: NDArray[Any] | str) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a text or of an .npy file."""
    if isinstance(payload, str):
        yield payload.encode()
        return
    header, array = io.BytesIO(), np.asarray(payload, order="C")
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    yield header.getvalue()
    content = array.reshape(-1).view(np.uint8).data
    yield from (content[start : start + CHUNK] for start in range(0, len(content), CHUNK))
