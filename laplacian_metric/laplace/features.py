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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hessians.checks import check_finite, exact_device
from laplacian_metric.core import artifact
from laplacian_metric.core.batch import Batch, Loader, read, to_device
from laplacian_metric.core.checked import (
    ArtifactError,
    DamagedArtifactError,
    FileEntry,
    Manifest,
    MissingArtifactError,
)
from laplacian_metric.core.files import atomic_write, locked
from laplacian_metric.core.modes import evaluating
from laplacian_metric.core.parallel import own_folder
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.encoder import Encoder

LOGGER = logging.getLogger(__name__)

DEFAULT_LIMIT = 1 << 30
ROWS_BETWEEN_NOTES = 4096
NAME = "these features"


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
    in_memory: list[tuple[Tensor, Tensor]] = []
    size, store = 0, None
    with ExitStack() as stack, evaluating(encoder):
        if folder is not None:
            store = stack.enter_context(_Store(encoder, Path(folder) / own_folder(), of=dict(of or {})))
        batches = read(loader, "features", labelled=True, progress=progress)
        for h, labels in _computed(encoder, batches, store, dtype):
            if store is not None:
                store.add(h, labels)
                continue
            # They leave a GPU at once, whose memory is for the backbone.
            in_memory.append((h.cpu(), labels))
            size += h.nbytes
            if size > memory_limit:
                LOGGER.info("the features exceed %.3g GiB: they are mapped from a file", memory_limit / 2**30)
                temporary = Path(tempfile.mkdtemp(prefix="laplacian-metric-"))
                store = stack.enter_context(_Store(encoder, temporary))
                for part in in_memory:
                    store.add(*part)
                in_memory.clear()
        if store is not None:
            collected = store.finish()
        else:
            rows, row_labels = (torch.cat(parts) for parts in zip(*in_memory, strict=True))
            collected = Dataset(rows.to(exact_device(h.device)), row_labels, name=NAME)
    if isinstance(loader, Dataset):
        return loader.with_inputs(collected.features, collected.folder)
    return collected


def _computed(
    encoder: Encoder, batches: Iterable[Batch], store: _Store | None, dtype: torch.dtype | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """The features (n, H) and labels (n,) of each batch that the folder does not hold of an earlier pass, checked."""
    last_dtype = None
    for number, batch in enumerate(batches):
        labels = batch.labels
        assert labels is not None
        if store is not None and number and store.holds(labels):
            continue
        h = encoder.features(to_device(batch.inputs, encoder)).to(dtype)
        if len(h) != len(labels):
            raise ValueError(
                f"batch {number} of the loader has {len(labels)} labels for {len(h)} images: one for each is needed"
            )
        check_finite(f"the features of batch {number} of the loader", h)
        if store is not None and not number and store.holds(labels, h):
            continue
        before = last_dtype if store is None else last_dtype or store.dtype
        if before not in (None, h.dtype):
            raise TypeError(f"the features changed from {before} to {h.dtype} on the way: use one dtype")
        last_dtype = h.dtype
        yield h, labels


class _Store:
    """Rows on their way into the files of a folder, which is kept if it is told what the rows are ``of``."""

    def __init__(self, encoder: Encoder, folder: Path, of: dict[str, Any] | None = None) -> None:
        self.folder, self.persistent = folder, of is not None
        self.of, self.noted_of = of or {}, dict[str, Any]()
        self.width = encoder.num_features
        self.fingerprint = encoder.fingerprint() if self.persistent else ""
        self.dtype: torch.dtype | None = None
        self.noted = self.count = 0
        self.earlier: Dataset | None = None
        self._stack = ExitStack()
        self._files: dict[str, tuple[BinaryIO, Any]] = {}
        self._entries: dict[str, FileEntry] = {}
        if self.persistent:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._take_up()

    def __enter__(self) -> _Store:
        return self

    def __exit__(self, *error: object) -> None:
        if self._files:
            self._note()
        self._stack.close()
        if error[0] is not None and not self.persistent:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _take_up(self) -> None:
        """Read what an earlier pass of the same encoder left in the folder."""
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
            self.noted, self.dtype, self.earlier = len(stored), stored.features.dtype, stored
            self._entries = manifest.files

    def holds(self, labels: Tensor, first_rows: Tensor | None = None) -> bool:
        """Whether the next images are among those of an earlier pass, by their labels and the first features."""
        end = self.count + len(labels)
        if self.earlier is None or end > self.noted or self._files:
            return False
        if not torch.equal(self.earlier.labels[self.count : end], labels.cpu().long()):
            if self.count:
                raise ValueError(
                    f"image {self.count} and those after it have other labels than in the earlier pass: the loader's "
                    "order changed; use one that does not shuffle, or another folder"
                )
            self._forget("labels")
            return False
        if first_rows is not None and not self._are_noted(first_rows.cpu()):
            # Other images, or another preparation of them, may have the same labels.
            self._forget("features")
            return False
        self.count = end
        return True

    def _are_noted(self, rows: Tensor) -> bool:
        """Whether the first rows of the earlier pass are these, but for rounding."""
        if self.earlier is None or self.dtype != rows.dtype or not len(rows):
            return self.dtype == rows.dtype
        stored = self.earlier.features[: len(rows)]
        size = float(stored.abs().double().mean())
        return torch.allclose(stored.double(), rows.double(), rtol=1e-2, atol=1e-2 * size)

    def _forget(self, what: str) -> None:
        LOGGER.warning(
            "the loader's %s are not those of the earlier pass: all features are computed again", what
        )
        self.noted, self.dtype = 0, None

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Keep these features (n, H) and labels (n,)."""
        self.dtype = rows.dtype
        if not self._files:
            self._open(self.dtype)
        for (file, digest), tensor in zip(self._files.values(), (rows, labels.long()), strict=True):
            content = tensor.detach().contiguous().cpu().view(torch.uint8).numpy().data
            file.write(content)
            digest.update(content)
        self.count += len(rows)
        if self.persistent and self.count - self.noted >= ROWS_BETWEEN_NOTES:
            self._note()

    def _open(self, dtype: torch.dtype) -> None:
        """Open the files behind the rows of the earlier pass that stay."""
        if self.persistent:
            self._stack.enter_context(locked(self.folder / "features"))
        for name, size in _row_sizes(self.width, dtype).items():
            path = self.folder / name
            if not self.count:
                path.unlink(missing_ok=True)  # whoever has mapped it keeps it
            path.touch()
            file, digest = self._stack.enter_context(path.open("r+b")), hashlib.sha256()
            while chunk := file.read(min(artifact.CHUNK, self.count * size - file.tell())):
                digest.update(chunk)
            self._files[name] = (file, digest)
        if self.persistent:
            # What is there beyond these rows is cut off next, so that no note may speak of it any more.
            self._write_note()
        for stream, _ in self._files.values():
            stream.truncate()

    def _note(self) -> None:
        """Have the disk know the rows, and then the note that counts them."""
        for file, _ in self._files.values():
            file.flush()
            if self.persistent:
                os.fsync(file.fileno())
        if self.persistent and (self._files or self.noted_of):
            self._write_note()

    def _write_note(self) -> None:
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
        """Return all features, mapped."""
        if self.count < self.noted:
            raise ValueError(
                f"the folder holds the features of {self.noted} images, and the loader has only {self.count}: use "
                "another folder"
            )
        self.noted_of = self.of
        self._note()
        if self.earlier is not None and not self._files:
            return self.earlier
        assert self.dtype is not None
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
    features, labels = torch.empty(0, width, dtype=dtype), torch.empty(0, dtype=torch.long)
    if rows:
        features = torch.from_file(str(path("features.bin")), size=rows * width, dtype=dtype).view(
            rows, width
        )
        labels = torch.from_file(str(path("labels.bin")), size=rows, dtype=torch.long).clone()
    return Dataset(features, labels, name=NAME, folder=folder)


def _row_sizes(width: int, dtype: torch.dtype) -> dict[str, int]:
    """The bytes of a row in each file."""
    return {"features.bin": width * dtype.itemsize, "labels.bin": torch.long.itemsize}
