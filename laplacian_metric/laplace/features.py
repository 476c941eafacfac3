"""Features of a frozen backbone, computed once: in memory, or in a folder from which they are mapped.

A folder is an `laplacian_metric.core.artifact` with ``features.bin`` (rows) and ``labels.bin`` (int64). A pass grows
these files in the subfolder ``partial``, with a note that is written after the rows that it counts. An interrupted
pass resumes if the encoder, the labels and the features of the first batch, which are recomputed, are the same;
otherwise it starts again.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hessians.checks import check_finite, exact_device
from laplacian_metric.core import artifact
from laplacian_metric.core.artifact import ArtifactError, Manifest, MissingArtifactError
from laplacian_metric.core.batch import Batch, Loader, read, to_device
from laplacian_metric.core.checked import read_json, validated
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.files import atomic_write
from laplacian_metric.core.modes import evaluating
from laplacian_metric.core.parallel import own_folder
from laplacian_metric.core.tensor_file import bytes_of
from laplacian_metric.encoder import Encoder

LOGGER = logging.getLogger(__name__)

DEFAULT_LIMIT = 1 << 30
ROWS_BETWEEN_NOTES = 4096
NAME = "these features"
PARTIAL, NOTE = "partial", "note.json"


class FeaturesManifest(Manifest):
    """What a folder says about its features."""

    FORMAT: ClassVar[str] = "laplacian_metric features"
    PAYLOADS: ClassVar[tuple[str, ...]] = ("features.bin", "labels.bin")
    SHARED: ClassVar[bool] = True

    rows: int = Field(ge=0)
    width: int = Field(ge=1)
    dtype: Literal["float16", "bfloat16", "float32", "float64"]
    fingerprint: str
    of: dict[str, Any]  # what they are of


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
        self.folder, self.of, self.persistent = folder, of or {}, of is not None
        self.place = folder / PARTIAL if self.persistent else folder
        self.width = encoder.num_features
        self.fingerprint = encoder.fingerprint() if self.persistent else ""
        self.dtype: torch.dtype | None = None
        self.noted = self.count = 0
        self.earlier: Dataset | None = None
        self.earlier_is_whole = False
        self._stack = ExitStack()
        self._files: list[BinaryIO] = []
        if self.persistent:
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
            self.earlier_is_whole = (self.folder / artifact.POINTER).exists()
            if self.earlier_is_whole:
                manifest = artifact.read_manifest(self.folder, FeaturesManifest)
                self._check_encoder(manifest.fingerprint, manifest.width)
                self.earlier = load_features(self.folder)
            elif (self.place / NOTE).exists():
                self.earlier = self._interrupted()
        except MissingArtifactError:
            return
        except (ValueError, OSError) as error:
            LOGGER.warning("%s: the features are computed again", error)
            (self.folder / artifact.POINTER).unlink(missing_ok=True)
            self.earlier_is_whole = False
        if self.earlier is not None:
            self.noted, self.dtype = len(self.earlier), self.earlier.features.dtype

    def _interrupted(self) -> Dataset:
        noted = {**read_json(self.place / NOTE, "start again"), "of": {}}
        note = validated(FeaturesManifest, noted, self.place / NOTE)
        self._check_encoder(note.fingerprint, note.width)
        return _mapped(self.folder, self.place, note.rows, note.width, getattr(torch, note.dtype))

    def _check_encoder(self, fingerprint: str, width: int) -> None:
        if (fingerprint, width) != (self.fingerprint, self.width):
            raise ArtifactError(f"{self.folder.name} holds features of another encoder")

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
            self._open(rows)
        for file, tensor in zip(self._files, (rows, labels.long()), strict=True):
            file.write(bytes_of(tensor))
        self.count += len(rows)
        if self.persistent and self.count - self.noted >= ROWS_BETWEEN_NOTES:
            self._note()

    def _open(self, rows: Tensor) -> None:
        """Open the files behind the rows of the earlier pass that stay."""
        if self.persistent:
            self.place.mkdir(parents=True, exist_ok=True)
            self._stack.enter_context(artifact.lock(self.place))
        earlier = self.earlier if self.earlier_is_whole else None
        parts = (rows[:0], torch.empty(0, dtype=torch.int64))
        if earlier is not None:
            parts = (earlier.features[: self.count], earlier.labels[: self.count])
        sizes = (self.width * rows.element_size(), torch.long.itemsize)
        for name, size, part in zip(FeaturesManifest.PAYLOADS, sizes, parts, strict=True):
            path = self.place / name
            if earlier is not None or not self.count:
                path.write_bytes(bytes_of(part))
            opened = self._stack.enter_context(path.open("r+b"))
            opened.seek(self.count * size)
            self._files.append(opened)
        # What is there beyond these rows is cut off next, so that no note may count it any more.
        self._note()
        for file in self._files:
            file.truncate()

    def _note(self) -> None:
        """Have the disk know the rows, and then the note that counts them."""
        for file in self._files:
            file.flush()
            if self.persistent:
                os.fsync(file.fileno())
        if self.persistent:
            with atomic_write(self.place / NOTE) as temporary:
                temporary.write_text(json.dumps(self._described()), encoding="utf-8")
        self.noted = self.count

    def _described(self) -> dict[str, Any]:
        dtype = str(self.dtype).removeprefix("torch.")
        return {"rows": self.count, "width": self.width, "dtype": dtype, "fingerprint": self.fingerprint}

    def finish(self) -> Dataset:
        """Return all features, mapped."""
        if self.count < self.noted:
            raise ValueError(
                f"the folder holds the features of {self.noted} images, and the loader has only {self.count}: use "
                "another folder"
            )
        if self._files:
            self._note()
        elif self.earlier is not None and self.earlier_is_whole:
            return self.earlier
        if not self.persistent:
            assert self.dtype is not None
            result = _mapped(self.folder, self.place, self.count, self.width, self.dtype)
            weakref.finalize(
                result.features.untyped_storage(), shutil.rmtree, self.folder, ignore_errors=True
            )
            return result
        manifest = FeaturesManifest(**self._described(), of=self.of)
        moved: dict[str, artifact.Payload] = {name: (self.place / name).replace for name in manifest.PAYLOADS}
        artifact.save(self.folder, manifest, moved, overwrite=True)
        self._files.clear()
        self._stack.close()
        shutil.rmtree(self.place, ignore_errors=True)
        return load_features(self.folder)


def load_features(folder: Path) -> Dataset:
    """Return the features that a pass has left in a folder, mapped.

    Raises:
        ArtifactError: there are none, or they are damaged.
    """
    with artifact.load(folder, FeaturesManifest) as opened:
        manifest = opened.manifest
        return _mapped(folder, opened.version, manifest.rows, manifest.width, getattr(torch, manifest.dtype))


def _mapped(folder: Path, place: Path, rows: int, width: int, dtype: torch.dtype) -> Dataset:
    """Return the features and labels of a folder whose files are at a place; these may be longer."""
    features, labels = torch.empty(0, width, dtype=dtype), torch.empty(0, dtype=torch.long)
    if rows:
        files, sizes = [place / name for name in FeaturesManifest.PAYLOADS], (width * dtype.itemsize, 8)
        for path, size in zip(files, sizes, strict=True):
            if path.stat().st_size < rows * size:
                raise ArtifactError(f"{path.name} in {folder} does not hold its {rows} rows")
        features = torch.from_file(str(files[0]), size=rows * width, dtype=dtype).view(rows, width)
        labels = torch.from_file(str(files[1]), size=rows, dtype=torch.long).clone()
    return Dataset(features, labels, name=NAME, folder=folder)
