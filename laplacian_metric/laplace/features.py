"""Features of a frozen backbone, computed once: in memory, or in a folder from which they are mapped.

A folder holds ``features.bin`` (rows), ``labels.bin`` (int64) and ``features.json``, which is written after the rows
that it counts. An interrupted pass is therefore taken up where it was, as long as the encoder, the labels and the
features of the first batch, which are computed again, are the same; otherwise it starts anew.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from hessians.checks import check_finite
from laplacian_metric.core.batch import read, to_device
from laplacian_metric.core.files import atomic_write
from laplacian_metric.core.modes import evaluating
from laplacian_metric.core.parallel import own_folder
from laplacian_metric.encoder import Encoder

LOGGER = logging.getLogger(__name__)

DEFAULT_LIMIT = 1 << 30
ROWS_BETWEEN_NOTES = 4096


@dataclass(eq=False)
class Features:
    """The features h (N, H) of N images and their labels (N,); ``features`` may be mapped from ``folder``."""

    features: Tensor
    labels: Tensor
    folder: Path | None = None

    def __len__(self) -> int:
        return len(self.labels)


def collect_features(
    encoder: Encoder,
    loader: Iterable[Any],
    *,
    folder: str | Path | None = None,
    memory_limit: int = DEFAULT_LIMIT,
    progress: bool | None = None,
) -> Features:
    """One pass of the encoder's frozen backbone over a loader of (inputs, labels).

    Args:
        encoder: put into evaluation mode for the pass.
        loader: yields (inputs, labels); in the same order every time where a folder is to be taken up again.
        folder: where to keep the features, for later sessions too; each of many processes has a folder of its own
            in it. Without it they are kept in memory and, beyond ``memory_limit`` bytes, in a temporary folder that
            vanishes with them.
        memory_limit: in bytes.
        progress: whether to show a bar; None asks the terminal.
    """
    with _Store(encoder, folder, memory_limit) as store, evaluating(encoder):
        for number, batch in enumerate(read(loader, "features", labelled=True, progress=progress)):
            labels = batch.labels
            assert labels is not None

            def features(inputs: Any = batch.inputs) -> Tensor:
                return encoder.features(to_device(inputs, encoder))

            if store.holds(labels, features):
                continue
            h = features()
            if len(h) != len(labels):
                raise ValueError(
                    f"batch {number} of the loader has {len(labels)} labels for {len(h)} images: one for each is needed"
                )
            check_finite(f"the features of batch {number} of the loader", h)
            store.add(h, labels)
        return store.finish()


class _Store:
    """Rows on their way: in lists until they are too many, then in files."""

    def __init__(self, encoder: Encoder, folder: str | Path | None, memory_limit: int) -> None:
        self.persistent = folder is not None
        self.limit = memory_limit
        self.width = encoder.num_features
        self.fingerprint = encoder.fingerprint() if self.persistent else ""
        self.rows: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.folder: Path | None = None
        self.dtype: torch.dtype | None = None
        self.noted = self.count = 0
        self.known = torch.empty(0, dtype=torch.long)
        self._stack = ExitStack()
        self._files: tuple[BinaryIO, BinaryIO] | None = None
        if folder is not None:
            self.folder = Path(folder) / own_folder()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._take_up()

    def __enter__(self) -> _Store:
        return self

    def __exit__(self, *error: object) -> None:
        if self._files is not None:
            self._note()
        self._stack.close()
        if error[0] is not None and self.folder is not None and not self.persistent:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _take_up(self) -> None:
        """Read what an earlier pass of the same encoder left in the folder."""
        assert self.folder is not None
        note = self.folder / "features.json"
        if not note.exists():
            return
        found = json.loads(note.read_text(encoding="utf-8"))
        if found["fingerprint"] != self.fingerprint or found["width"] != self.width:
            LOGGER.warning("%s holds features of another encoder: they are computed anew", self.folder.name)
            note.unlink()
            return
        rows, dtype = int(found["rows"]), getattr(torch, found["dtype"])
        for name, size in _row_sizes(self.width, dtype).items():
            path = self.folder / name
            if not path.exists() or path.stat().st_size < rows * size:
                LOGGER.warning("%s holds less than its %d rows: they are computed anew", path.name, rows)
                note.unlink()
                return
        if rows:
            self.noted, self.dtype = rows, dtype
            self.known = torch.from_file(str(self.folder / "labels.bin"), size=rows, dtype=torch.long).clone()

    def holds(self, labels: Tensor, features: Callable[[], Tensor]) -> bool:
        """Whether these images are among those of an earlier pass: their labels say so, and the first features do."""
        end = self.count + len(labels)
        if end > self.noted or self._files is not None:
            return False
        if not torch.equal(self.known[self.count : end], labels.cpu().long()):
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
        assert self.folder is not None
        stored = torch.from_file(
            str(self.folder / "features.bin"), size=len(rows) * self.width, dtype=rows.dtype
        ).view(len(rows), self.width)
        size = float(stored.abs().double().mean())
        return torch.allclose(stored.double(), rows.double(), rtol=1e-2, atol=1e-2 * size)

    def _forget(self, what: str) -> None:
        LOGGER.warning(
            "the loader's %s are not those of the earlier pass: all features are computed anew", what
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
        if self._files is None and (self.persistent or size > self.limit):
            self._to_files()
        if self._files is None:
            self.rows.append(rows)
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
        if self.persistent:
            # What is there beyond these rows is cut off next, so that no note may speak of it any more.
            self._write_note()
        assert self.dtype is not None
        written = self.count - sum(map(len, self.rows))
        opened = []
        for name, size in _row_sizes(self.width, self.dtype).items():
            path = self.folder / name
            path.touch()
            file = self._stack.enter_context(path.open("r+b"))
            # What came after the last note may be a part of a row.
            file.truncate(written * size)
            file.seek(written * size)
            opened.append(file)
        self._files = (opened[0], opened[1])
        for rows, labels in zip(self.rows, self.labels, strict=True):
            self._write(rows, labels)
        self.rows, self.labels = [], []

    def _write(self, rows: Tensor, labels: Tensor) -> None:
        assert self._files is not None
        for file, tensor in zip(self._files, (rows, labels.long()), strict=True):
            file.write(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes())

    def _note(self) -> None:
        """Have the disk know the rows, and then the note that counts them."""
        for file in self._files or ():
            file.flush()
            if self.persistent:
                os.fsync(file.fileno())
        if self._files is not None and self.persistent:
            self._write_note()

    def _write_note(self) -> None:
        assert self.folder is not None
        note = {
            "rows": self.count,
            "width": self.width,
            "dtype": str(self.dtype).removeprefix("torch."),
            "fingerprint": self.fingerprint,
        }
        with atomic_write(self.folder / "features.json") as temporary:
            temporary.write_text(json.dumps(note) + "\n", encoding="utf-8")
        self.noted = self.count

    def finish(self) -> Features:
        """All features, in memory or mapped."""
        if self.folder is None:
            return Features(torch.cat(self.rows), torch.cat(self.labels))
        if self.count < self.noted:
            raise ValueError(
                f"the folder holds the features of {self.noted} images, and the loader has only {self.count}: use "
                "another folder"
            )
        self._note()
        assert self.dtype is not None
        features = torch.from_file(
            str(self.folder / "features.bin"), size=self.count * self.width, dtype=self.dtype
        ).view(self.count, self.width)
        labels = torch.from_file(str(self.folder / "labels.bin"), size=self.count, dtype=torch.long).clone()
        result = Features(features, labels, self.folder)
        if not self.persistent:
            weakref.finalize(
                result.features.untyped_storage(), shutil.rmtree, self.folder, ignore_errors=True
            )
        return result


def _row_sizes(width: int, dtype: torch.dtype) -> dict[str, int]:
    """The bytes of a row in each file."""
    return {"features.bin": width * dtype.itemsize, "labels.bin": torch.long.itemsize}
