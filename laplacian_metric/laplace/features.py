"""Features of a frozen backbone, computed once: in memory, or in a folder from which they are mapped.

A folder is an `laplacian_metric.core.artifact` that grows: ``features.bin`` (rows), ``labels.bin`` (int64) and
``features.json``, which is written after the rows that it counts, with their digests. An interrupted pass is therefore
taken up where it was, as long as the encoder, the labels and the features of the first batch, which are computed again,
are the same; otherwise, and where the rows were altered, it starts anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hessians.checks import check_finite
from laplacian_metric.core import artifact
from laplacian_metric.core.batch import Loader, read, to_device
from laplacian_metric.core.devices import exact_device
from laplacian_metric.core.files import atomic_write, locked
from laplacian_metric.core.manifest import (
    ArtifactError,
    DamagedArtifactError,
    FileEntry,
    Manifest,
    MissingArtifactError,
)
from laplacian_metric.core.modes import evaluating
from laplacian_metric.core.parallel import own_folder
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.encoder import Encoder

LOGGER = logging.getLogger(__name__)

DEFAULT_LIMIT = 1 << 30
ROWS_BETWEEN_NOTES = 4096


class FeaturesManifest(Manifest):
    """What a folder says about its features; version 1 had neither a format nor digests, version 2 no ``of``."""

    FORMAT: ClassVar[str] = "laplacian_metric features"
    VERSION: ClassVar[int] = 3
    DIGEST_SINCE: ClassVar[int] = 2
    FILE: ClassVar[str] = "features.json"
    PAYLOADS: ClassVar[tuple[str, ...]] = ("features.bin", "labels.bin")

    rows: int = Field(ge=0)
    width: int = Field(ge=1)
    dtype: Literal["float16", "bfloat16", "float32", "float64"]
    fingerprint: str
    of: dict[str, Any] = Field(
        default_factory=dict
    )  # what they are of, where the pass was told, once all of them are there

    @classmethod
    def version_of(cls, values: Mapping[str, Any]) -> Any:
        """Return the version, which version 1 did not name."""
        return 1 if "format" not in values and "fingerprint" in values else super().version_of(values)

    @classmethod
    def upgraded(cls, values: dict[str, Any], version: int) -> dict[str, Any]:
        """Return the fields as version 3 has them."""
        missing = {name: {"bytes": None, "sha256": None} for name in cls.PAYLOADS}
        return values if version > 1 else {**values, "files": missing}

    def sizes(self) -> dict[str, int]:
        """Return the bytes of all rows in each file."""
        row_sizes = _row_sizes(self.width, getattr(torch, self.dtype))
        return {name: self.rows * size for name, size in row_sizes.items()}


def collect_features(
    encoder: Encoder,
    loader: Loader,
    *,
    folder: str | Path | None = None,
    memory_limit: int = DEFAULT_LIMIT,
    progress: bool | None = None,
    of: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> Dataset:
    """Return the features (N, H) of a loader of (inputs, labels): one pass of the encoder's frozen backbone.

    Args:
        encoder: put into evaluation mode for the pass.
        loader: yields (inputs, labels); in the same order every time where a folder is to be taken up again.
        folder: where to keep the features, for later sessions too; each of many processes has a folder of its own
            in it. Without it they are kept in memory and, beyond ``memory_limit`` bytes, in a temporary folder that
            vanishes with them.
        memory_limit: in bytes. Features in memory are at last on the backbone's device if it has float64.
        progress: whether to show a bar; None asks the terminal.
        of: what the features are of, as JSON has it: noted in the folder when all of them are there.
        dtype: in which they are kept; by default that of the backbone's output.

    Returns:
        The data set, if the loader is one, with features in place of its inputs, or one of features and labels.
    """
    with _Store(encoder, folder, memory_limit, dict(of or {})) as store, evaluating(encoder):
        for number, batch in enumerate(read(loader, "features", labelled=True, progress=progress)):
            labels = batch.labels
            assert labels is not None

            def features(inputs: Any = batch.inputs) -> Tensor:
                return encoder.features(to_device(inputs, encoder)).to(dtype)

            if store.holds(labels, features):
                continue
            h = features()
            if len(h) != len(labels):
                raise ValueError(
                    f"batch {number} of the loader has {len(labels)} labels for {len(h)} images: one for each is needed"
                )
            check_finite(f"the features of batch {number} of the loader", h)
            store.add(h, labels)
        collected = store.finish()
    if isinstance(loader, Dataset):
        return loader.with_inputs(collected.features, collected.folder)
    return collected


class _Store:
    """Rows on their way: in lists until they are too many, then in files."""

    def __init__(
        self, encoder: Encoder, folder: str | Path | None, memory_limit: int, of: dict[str, Any]
    ) -> None:
        self.persistent = folder is not None
        self.limit = memory_limit
        self.of, self.noted_of = of, dict[str, Any]()
        self.width = encoder.num_features
        self.fingerprint = encoder.fingerprint() if self.persistent else ""
        self.rows: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.folder: Path | None = None
        self.dtype: torch.dtype | None = None
        self.device = torch.device("cpu")
        self.noted = self.count = 0
        self.known = _dataset(torch.empty(0, 1), torch.empty(0, dtype=torch.long))
        self._stack = ExitStack()
        self._files: dict[str, tuple[BinaryIO, Any]] = {}
        self._entries: dict[str, FileEntry] = {}
        if folder is not None:
            self.folder = Path(folder) / own_folder()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._take_up()

    def __enter__(self) -> _Store:
        return self

    def __exit__(self, *error: object) -> None:
        if self._files:
            self._note()
        self._stack.close()
        if error[0] is not None and self.folder is not None and not self.persistent:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _take_up(self) -> None:
        """Read what an earlier pass of the same encoder left in the folder."""
        assert self.folder is not None
        try:
            manifest = artifact.read_manifest(self.folder, FeaturesManifest)
            if (manifest.fingerprint, manifest.width) != (self.fingerprint, self.width):
                raise ArtifactError(f"{self.folder.name} holds features of another encoder")
            for name, size in manifest.sizes().items():
                # What came after the last note may be a part of a row.
                if (self.folder / name).is_file() and (self.folder / name).stat().st_size > size:
                    os.truncate(self.folder / name, size)
            stored = load_features(self.folder)
        except MissingArtifactError:
            return
        except ArtifactError as error:
            LOGGER.warning("%s: they are computed again", error)
            (self.folder / FeaturesManifest.FILE).unlink()
            return
        if len(stored):
            self.noted, self.dtype, self.known = len(stored), stored.features.dtype, stored
            self._entries = manifest.files

    def holds(self, labels: Tensor, features: Callable[[], Tensor]) -> bool:
        """Whether these images are among those of an earlier pass: their labels say so, and the first features do."""
        end = self.count + len(labels)
        if end > self.noted or self._files:
            return False
        if not torch.equal(self.known.labels[self.count : end], labels.cpu().long()):
            if self.count:
                raise ValueError(
                    f"image {self.count} and those after it have other labels than in the earlier pass: the loader's "
                    "order changed; use one that does not shuffle, or another folder"
                )
            self._forget("labels")
            return False
        if self.count == 0 and not self._are_noted(features().cpu()):
            # Other images, or another preparation of them, may have the same labels.
            self._forget("features")
            return False
        self.count = end
        return True

    def _are_noted(self, rows: Tensor) -> bool:
        """Whether the first rows of the earlier pass are these, but for rounding."""
        if self.dtype != rows.dtype or not len(rows):
            return self.dtype == rows.dtype
        stored = self.known.features[: len(rows)]
        size = float(stored.abs().double().mean())
        return torch.allclose(stored.double(), rows.double(), rtol=1e-2, atol=1e-2 * size)

    def _forget(self, what: str) -> None:
        LOGGER.warning(
            "the loader's %s are not those of the earlier pass: all features are computed again", what
        )
        self.noted, self.dtype = 0, None

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Keep these features (n, H) and labels (n,)."""
        if self.dtype is not None and self.dtype != rows.dtype:
            raise TypeError(
                f"the features changed from {self.dtype} to {rows.dtype} on the way: use one dtype"
            )
        self.dtype = rows.dtype
        size = (self.count + len(rows)) * self.width * rows.element_size()
        if not self._files and (self.persistent or size > self.limit):
            self._to_files()
        self.device = exact_device(rows.device)
        if not self._files:
            # They leave a GPU at once, whose memory is for the backbone.
            self.rows.append(rows.cpu())
            self.labels.append(labels)
            self.count += len(rows)
            return
        self._write(rows, labels)
        self.count += len(rows)
        if self.persistent and self.count - self.noted >= ROWS_BETWEEN_NOTES:
            self._note()

    def _to_files(self) -> None:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="laplacian-metric-"))
            LOGGER.info("the features exceed %.3g GiB: they are mapped from a file", self.limit / 2**30)
        assert self.dtype is not None
        if self.persistent:
            self._stack.enter_context(locked(self.folder / "features"))
        written = self.count - sum(map(len, self.rows))
        for name, size in _row_sizes(self.width, self.dtype).items():
            path = self.folder / name
            if not written:
                path.unlink(missing_ok=True)  # whoever has mapped it keeps it
            path.touch()
            file, digest = self._stack.enter_context(path.open("r+b")), hashlib.sha256()
            while chunk := file.read(min(artifact.CHUNK, written * size - file.tell())):
                digest.update(chunk)
            self._files[name] = (file, digest)
        if self.persistent:
            # What is there beyond these rows is cut off next, so that no note may speak of it any more.
            self._write_note()
        for stream, _ in self._files.values():
            stream.truncate()
        for rows, labels in zip(self.rows, self.labels, strict=True):
            self._write(rows, labels)
        self.rows, self.labels = [], []

    def _write(self, rows: Tensor, labels: Tensor) -> None:
        for (file, digest), tensor in zip(self._files.values(), (rows, labels.long()), strict=True):
            content = tensor.detach().contiguous().cpu().view(torch.uint8).numpy().data
            file.write(content)
            digest.update(content)

    def _note(self) -> None:
        """Have the disk know the rows, and then the note that counts them."""
        for file, _ in self._files.values():
            file.flush()
            if self.persistent:
                os.fsync(file.fileno())
        if self.persistent and (self._files or self.noted_of):
            self._write_note()

    def _write_note(self) -> None:
        assert self.folder is not None
        manifest = FeaturesManifest.model_validate(
            {
                "rows": self.count,
                "width": self.width,
                "dtype": str(self.dtype).removeprefix("torch."),
                "fingerprint": self.fingerprint,
                "of": self.noted_of,
            }
        )
        if self._files:
            self._entries = {
                name: FileEntry(bytes=size, sha256=self._files[name][1].hexdigest())
                for name, size in manifest.sizes().items()
            }
        with atomic_write(self.folder / manifest.FILE) as temporary:
            temporary.write_text(artifact.sealed(manifest, self._entries), encoding="utf-8")
        self.noted = self.count

    def finish(self) -> Dataset:
        """All features, in memory or mapped."""
        if self.folder is None:
            return _dataset(torch.cat(self.rows).to(self.device), torch.cat(self.labels))
        if self.count < self.noted:
            raise ValueError(
                f"the folder holds the features of {self.noted} images, and the loader has only {self.count}: use "
                "another folder"
            )
        self.noted_of = self.of
        self._note()
        assert self.dtype is not None
        result = self.known
        if self._files:
            result = _mapped(self.folder, self.folder.joinpath, self.count, self.width, self.dtype)
        if not self.persistent:
            weakref.finalize(
                result.features.untyped_storage(), shutil.rmtree, self.folder, ignore_errors=True
            )
        return result


def load_features(folder: Path) -> Dataset:
    """Return the features that a pass has left in a folder so far, mapped, once they were found as they were written.

    Raises:
        ArtifactError: there are none, or they are damaged.
    """
    with artifact.load(folder, FeaturesManifest) as opened:
        manifest = opened.manifest
        for name, size in manifest.sizes().items():
            if opened.path(name).stat().st_size != size:
                raise DamagedArtifactError(f"{name} in {folder} does not hold its {manifest.rows} rows")
        return _mapped(folder, opened.path, manifest.rows, manifest.width, getattr(torch, manifest.dtype))


def _mapped(folder: Path, path: Callable[[str], Path], rows: int, width: int, dtype: torch.dtype) -> Dataset:
    if not rows:
        return _dataset(torch.empty(0, width, dtype=dtype), torch.empty(0, dtype=torch.long), folder)
    features = torch.from_file(str(path("features.bin")), size=rows * width, dtype=dtype)
    labels = torch.from_file(str(path("labels.bin")), size=rows, dtype=torch.long)
    return _dataset(features.view(rows, width), labels.clone(), folder)


def _dataset(features: Tensor, labels: Tensor, folder: Path | None = None) -> Dataset:
    return Dataset(features, labels, name="these features", folder=folder)


def _row_sizes(width: int, dtype: torch.dtype) -> dict[str, int]:
    """The bytes of a row in each file."""
    return {"features.bin": width * dtype.itemsize, "labels.bin": torch.long.itemsize}
