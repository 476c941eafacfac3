"""Artifacts: folders with a manifest and payload files, written whole and replaced by an atomic pointer.

A folder holds ``CURRENT``, a line of text that names a version, and that version's own folder with ``manifest.json``
and the payloads. A version is never altered: `save` writes a new one, replaces ``CURRENT`` in one step and removes the
versions that no reader holds. A load beside a writer therefore reads one version or the other, and a writer that is
killed leaves the old one. Nothing in a folder is code. Digests detect damage; they are no signature. Reading needs
numpy and pydantic, and torch for payloads of tensors only.

Example:
    >>> import tempfile
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
import importlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, ClassVar, Generic, TypeVar

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import DTypeLike, NDArray
from pydantic import Field, ValidationError

from laplacian_metric import __version__
from laplacian_metric.core.checked import Strict, complaint
from laplacian_metric.core.files import atomic_write, sync_folder

if TYPE_CHECKING:
    from torch import Tensor

POINTER, LOCK, MANIFEST = "CURRENT", ".lock", "manifest.json"
CURRENT = re.compile("([0-9a-f]{16}) ([0-9a-f]{64})\n")  # a version, and the SHA-256 of its manifest
VERSION = re.compile("[0-9a-f]{16}")
ATTEMPTS = 1000
CHUNK = 1 << 22
COPY_AGAIN = "copy or save the folder again"
_FCNTL: Any = importlib.import_module("fcntl") if os.name == "posix" else None

AnyPath = str | os.PathLike[str]
Payload = NDArray[Any] | str | Callable[[Path], object] | Mapping[str, "Tensor"]


class ArtifactError(ValueError):
    """An artifact is damaged, of another kind, or cannot be written."""


class MissingArtifactError(FileNotFoundError, ArtifactError):
    """There is no artifact."""


class ArtifactExistsError(FileExistsError, ArtifactError):
    """The folder holds something that is not to be replaced."""


class ArtifactBusyError(BlockingIOError, ArtifactError):
    """Another writer has the same artifact."""


class FileEntry(Strict):
    """The size and the SHA-256 of a payload, and the shape and dtype of an array."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    shape: list[int] | None = None
    dtype: str | None = None


class Manifest(Strict):
    """Base class of what kinds of artifacts say about themselves.

    A kind adds its fields and sets the class variables. ``format``, ``made_with`` and ``files`` are filled in when it
    is saved.
    """

    FORMAT: ClassVar[str]  # such as "laplacian_metric model"; its last word names the kind in messages
    PAYLOADS: ClassVar[tuple[str, ...]] = ()
    OPTIONAL: ClassVar[tuple[str, ...]] = ()
    SHARED: ClassVar[bool] = False  # whether the folder may hold other files, as a repository does

    format: str = ""
    made_with: dict[str, str] = Field(default={})
    files: dict[Annotated[str, Field(pattern=r"^\w[\w.-]*$")], FileEntry] = Field(default={})

    def payloads(self) -> set[str]:
        """Return the names of the files that have to be there; kinds where these depend on fields override it."""
        return set(self.PAYLOADS)

    @classmethod
    def noun(cls) -> str:
        """Return what messages call an artifact of this kind."""
        return cls.FORMAT.rpartition(" ")[2]


class _AnyManifest(Manifest, extra="ignore"):
    """What the manifests of all kinds have."""


M = TypeVar("M", bound=Manifest)


# --- reading ---


@dataclass(frozen=True)
class Artifact(Generic[M]):
    """One version of an artifact, open for reading.

    Attributes:
        folder: of the artifact.
        manifest: what it says about itself.
        version: the folder of the version.
    """

    folder: Path
    manifest: M
    version: Path

    def path(self, name: str) -> Path:
        """Return the path of a payload, which is there as long as the artifact is open."""
        return self.version / name

    def array(
        self,
        name: str,
        *,
        shape: tuple[int, ...] | None = None,
        dtype: DTypeLike | None = None,
        mmap: bool = True,
    ) -> NDArray[Any]:
        """Return the array of an .npy payload, read-only; it stays valid when the artifact is closed.

        Args:
            name: of the payload.
            shape: that it has to have; by default the one that was saved.
            dtype: that it has to have; by default the one that was saved.
            mmap: leave it in its file, from which the parts that are used are read; otherwise read it into memory.
        """
        path, entry = self.path(name), self.manifest.files[name]
        try:
            with path.open("rb") as handle:
                stored = npy_header(handle, entry.bytes)
            loaded = np.load(path, mmap_mode="r" if mmap and 0 not in stored[0] else None, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ArtifactError(f"{name} in {self.folder} is no array that can be read: {error}") from error
        needed_shape = entry.shape if shape is None else list(shape)
        needed_dtype = np.dtype(entry.dtype or stored[1]) if dtype is None else np.dtype(dtype)
        if needed_shape not in (None, list(stored[0])) or needed_dtype != stored[1]:
            raise ArtifactError(
                f"{name} in {self.folder} has shape {stored[0]} and dtype {stored[1]}, {needed_shape} of "
                f"{needed_dtype} is needed"
            )
        array = np.asarray(loaded)
        array.flags.writeable = False
        return array

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of a .safetensors payload by name, in memory and on the CPU."""
        from laplacian_metric.core import tensor_file

        return tensor_file.load(self.path(name))[0]


def npy_header(handle: BinaryIO, size: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of an .npy file of ``size`` bytes.

    Raises:
        ValueError: it is none, holds objects of Python, or announces another size than it has.
    """
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(handle)
    if version not in readers:
        raise ValueError(f"its format {version} is not known")
    try:
        shape, _, dtype = readers[version](handle)
    except (SyntaxError, TokenError) as error:
        raise ValueError(f"its header is no description of an array: {error}") from error
    if dtype.hasobject:
        raise ValueError("it holds objects of Python, which would have to run code: save numbers or text")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - handle.tell():
        raise ValueError(f"it announces {shape} of {dtype} and holds {size - handle.tell()} bytes")
    return shape, dtype


@contextmanager
def load(folder: AnyPath, kind: type[M], *, verify: bool = False) -> Iterator[Artifact[M]]:
    """Open the current version of an artifact, whose files have the sizes that were written.

    Args:
        folder: what `save` wrote.
        kind: of manifest.
        verify: read all files and compare their SHA-256 too.

    Raises:
        MissingArtifactError: there is no artifact.
        ArtifactError: it is of another kind, or damaged.
    """
    root = Path(folder)
    with _held(root) as (version, text):
        manifest = _manifest(root, text, kind)
        _check_files(root, version, manifest.files, verify)
        yield Artifact(root, manifest, version)


def _check_files(root: Path, version: Path, files: Mapping[str, FileEntry], verify: bool) -> None:
    """Refuse files of another size or, with ``verify``, of another digest, of artifacts in the artifact too."""
    for name, entry in files.items():
        path = _file_of(version / name)
        if not path.is_file():
            raise ArtifactError(f"{root} lacks {name}, or it is no regular file: {COPY_AGAIN}")
        if path.stat().st_size != entry.bytes:
            raise ArtifactError(f"{name} in {root} does not have {entry.bytes} bytes: {COPY_AGAIN}")
        if verify and _digest(path) != entry.sha256:
            raise ArtifactError(f"{name} in {root} was altered after it was written: {COPY_AGAIN}")
        if verify and path.name == POINTER:
            with _held(path.parent) as (inner, text):
                _check_files(path.parent, inner, _parsed(path.parent, text, _AnyManifest).files, verify)


def read_manifest(folder: AnyPath, kind: type[M]) -> M:
    """Return what an artifact says about itself, without looking at the payloads."""
    with _held(Path(folder)) as (_, text):
        return _manifest(Path(folder), text, kind)


def format_of(folder: AnyPath) -> str:
    """Return the format of an artifact, such as "laplacian_metric model"."""
    with _held(Path(folder)) as (_, text):
        return _parsed(Path(folder), text, _AnyManifest).format


@contextmanager
def _held(root: Path) -> Iterator[tuple[Path, bytes]]:
    """Keep the current version from being removed; yields its folder and the text of its manifest."""
    for _ in range(ATTEMPTS):
        version, digest = _pointer(root)
        handle = _held_manifest(version)
        if handle is None and _pointer(root)[0] == version:
            raise ArtifactError(f"{root} lacks {MANIFEST}: {COPY_AGAIN}")
        if handle is None:
            continue  # it was replaced meanwhile
        with handle:
            text = handle.read()
            if hashlib.sha256(text).hexdigest() != digest:
                raise ArtifactError(f"{MANIFEST} in {root} was altered after it was written: {COPY_AGAIN}")
            yield version, text
        return
    raise ArtifactBusyError(f"{root} was replaced {ATTEMPTS} times while it was read: try again later")


def _held_manifest(version: Path) -> BinaryIO | None:
    """Return the open manifest of a version, which is not removed as long as it is open; None where it is gone."""
    path = version / MANIFEST
    if not path.is_file():
        return None
    try:
        handle = path.open("rb")
    except FileNotFoundError:
        return None
    _flock(handle, "LOCK_SH")
    if path.is_file():
        return handle
    handle.close()
    return None


def _pointer(root: Path) -> tuple[Path, str]:
    """Return the folder of the current version and the SHA-256 of its manifest."""
    path = root / POINTER
    if not path.is_file():
        raise MissingArtifactError(f"there is no saved artifact in {root}")
    found = CURRENT.fullmatch(path.read_bytes().decode(errors="replace"))
    if found is None:
        raise ArtifactError(f"{POINTER} in {root} names no version: {COPY_AGAIN}")
    return root / found[1], found[2]


def _parsed(root: Path, text: bytes, kind: type[M]) -> M:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise ArtifactError(f"{MANIFEST} in {root}: {complaint(error, kind)}; {COPY_AGAIN}") from error


def _manifest(root: Path, text: bytes, kind: type[M]) -> M:
    if (form := _parsed(root, text, _AnyManifest).format) != kind.FORMAT:
        raise ArtifactError(f"{root} holds no {kind.noun()}, its format is {form!r}")
    manifest = _parsed(root, text, kind)
    needed = manifest.payloads()
    if not needed <= set(manifest.files) <= needed | set(kind.OPTIONAL):
        raise ArtifactError(f"{root} has the files {sorted(manifest.files)}, {sorted(needed)} are needed")
    return manifest


def _file_of(path: Path) -> Path:
    """Return the file that stands for a payload: of an artifact in the artifact its pointer."""
    return path / POINTER if path.is_dir() else path


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


# --- writing ---


def save(
    folder: AnyPath, manifest: Manifest, payloads: Mapping[str, Payload], *, overwrite: bool = False
) -> Path:
    """Write an artifact, which is there whole or not at all, and return its folder.

    Args:
        folder: to be written; its parents are created. Whoever has loaded the previous version keeps it.
        manifest: without ``files``.
        payloads: file name -> an array (.npy), a text, tensors by name (.safetensors), or a function that writes the
            file, or saves another artifact, at the path it is passed.
        overwrite: replace an artifact of this kind; anything else is left alone.

    Raises:
        ArtifactExistsError: the folder holds something that is not to be replaced.
        ArtifactBusyError: another writer has it.
        OSError: the disk is full, say. Nothing has changed then.
    """
    kind, root = type(manifest), Path(folder)
    check_target(root, kind, overwrite=overwrite)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with lock(root):
            check_target(root, kind, overwrite=overwrite)  # again, now that nobody else writes
            try:
                _write_version(root, manifest, payloads)
            finally:
                _clean(root)
    except OSError as error:
        if isinstance(error, ArtifactError):
            raise
        raise OSError(error.errno, f"{root} cannot be written, nothing was changed: {error}") from error
    return root


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep other writers of a folder out.

    Raises:
        ArtifactBusyError: there is one.
    """
    try:
        with FileLock(folder / LOCK, timeout=0, is_singleton=True):  # a writer may hold it already
            yield
    except Timeout as error:
        raise ArtifactBusyError(
            f"{folder} is being written by somebody else: wait until it is done"
        ) from error


def check_target(folder: AnyPath, kind: type[Manifest], *, overwrite: bool = False) -> None:
    """Refuse a folder that an artifact cannot be written to, before anything is computed for it."""
    root, noun = Path(folder), kind.noun()
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ArtifactExistsError(f"{existing} is a file, so the {noun} cannot be saved: name another folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise PermissionError(f"{existing} is read-only, so the {noun} cannot be saved: name another folder")
    if existing != root or not any(path for path in root.iterdir() if not _is_debris(path)):
        return
    form = None
    with suppress(ArtifactError):
        form = format_of(root)
    if form is None and kind.SHARED and not (root / POINTER).exists():
        return
    if form != kind.FORMAT:
        raise ArtifactExistsError(f"{root} holds files, and no {noun}: name another folder")
    if not overwrite:
        raise ArtifactExistsError(
            f"{root} holds a saved {noun} already: pass overwrite=True to replace it, or name another folder"
        )


def _write_version(root: Path, manifest: Manifest, payloads: Mapping[str, Payload]) -> None:
    version = root / secrets.token_hex(8)
    version.mkdir()
    content = manifest.model_dump(mode="json") | {
        "format": manifest.FORMAT,
        "made_with": {"laplacian_metric": __version__, "numpy": np.__version__, **manifest.made_with},
        "files": {name: _write(version / name, payload).model_dump() for name, payload in payloads.items()},
    }
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    entry = _write(version / MANIFEST, text)
    sync_folder(version)
    with atomic_write(root / POINTER) as temporary:
        temporary.write_bytes(f"{version.name} {entry.sha256}\n".encode())


def _write(path: Path, payload: Payload) -> FileEntry:
    """Write a payload through to the disk and return its entry in the manifest."""
    shape, dtype = None, None
    if callable(payload):
        payload(path)
    elif isinstance(payload, str):
        path.write_bytes(payload.encode())
    elif isinstance(payload, Mapping):
        from laplacian_metric.core import tensor_file

        tensor_file.write(path, payload, keep_strides=True)
    else:
        array = np.asarray(payload, order="C")
        shape, dtype = list(array.shape), array.dtype.str
        with path.open("wb") as stream:
            np.save(stream, array, allow_pickle=False)
    path = _file_of(path)
    with path.open("rb+") as written:
        os.fsync(written.fileno())
    return FileEntry(bytes=path.stat().st_size, sha256=_digest(path), shape=shape, dtype=dtype)


def _is_debris(path: Path) -> bool:
    """Whether a file or folder is one that writers make beside the pointer."""
    return path.name.startswith((LOCK, f".{POINTER}.")) or VERSION.fullmatch(path.name) is not None


def _clean(root: Path) -> None:
    """Remove versions that are not current and that nobody reads, and what killed writers left."""
    current = None
    with suppress(ArtifactError):
        current = _pointer(root)[0]
    for path in root.iterdir():
        if path != current and _is_debris(path) and path.name != LOCK:
            _remove(path)
    if current is None:
        with suppress(OSError):  # it holds other files
            (root / LOCK).unlink()
            root.rmdir()


def _remove(path: Path) -> None:
    """Remove a version, unless it is read; its manifest goes first, by which readers notice."""
    if path.is_file():
        path.unlink()
        return
    manifest = path / MANIFEST
    if manifest.is_file():
        with manifest.open("rb+") as handle:
            if not _flock(handle, "LOCK_EX"):
                return
            if _FCNTL is not None:  # elsewhere an open file cannot be removed
                manifest.unlink()
    shutil.rmtree(path, ignore_errors=True)


def _flock(handle: BinaryIO, kind: str) -> bool:
    """Lock an open file; False where somebody else has it. Where there are no locks, it counts as locked."""
    if _FCNTL is None:
        return True
    nonblocking = _FCNTL.LOCK_NB if kind == "LOCK_EX" else 0
    try:
        _FCNTL.flock(handle, getattr(_FCNTL, kind) | nonblocking)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
