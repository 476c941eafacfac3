"""What a module for one data set is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from experiments.sets.download import DownloadError, fetch, lock_beside, unpack
from laplacian_metric.data.images import ImageFiles
from experiments.sets.lookup import VARIABLE, MissingDataError, locate
from laplacian_metric.data.splits import STANDARD, Split


@dataclass(frozen=True)
class DataSetInfo:
    """What is known about a data set before any file of it is read.

    Attributes:
        name: what `load` calls it.
        title: what its authors call it.
        splits: the splits that can be loaded.
        layout: the files that are looked for, below a data folder.
        page: where it is published.
        obtain: how to get it, where `download=True` cannot.
        licence, citation: of the images.
        preprocessing: "unit" or "imagenet", unless `load` is told otherwise.
        image_size: what images are scaled to, unless `load` is told otherwise; None leaves their size alone.
    """

    name: str
    title: str
    layout: str
    page: str
    obtain: str
    licence: str
    citation: str
    splits: tuple[Split, ...] = STANDARD
    preprocessing: str = "unit"
    image_size: int | None = None


@dataclass(frozen=True)
class Content:
    """What a data set's module read: the images of one split, their labels, and so on (see Dataset)."""

    images: torch.Tensor | ImageFiles
    labels: npt.NDArray[np.int64] | None
    class_names: tuple[str, ...]
    indices: npt.NDArray[np.int64]
    extras: Mapping[str, torch.Tensor] = field(default_factory=dict)
    positive_distance: float | None = None
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """What `load` was asked for.

    Attributes:
        info: the data set.
        split: the part of it.
        folders: the data folders; downloads go to the first.
        download: whether files may be fetched; "unverified" also without encryption or a checksum.
        skip_unreadable: whether what is no image may be left out.
    """

    info: DataSetInfo
    split: Split
    folders: tuple[Path, ...]
    download: bool | Literal["unverified"] = False
    skip_unreadable: bool = False

    def find(
        self,
        bases: Sequence[str],
        needed: Sequence[Sequence[str]],
        fetch: Callable[[Path], None] | None = None,
    ) -> Path:
        """The folder of the data set; with `download`, `fetch(data folder)` puts it there if it is missing.

        Args:
            bases: where it may lie below a data folder.
            needed: what must be in it; of each inner sequence, one name is enough.
            fetch: downloads it; None where it cannot be downloaded.

        Raises:
            MissingDataError: it is not there, and was not or could not be fetched.
        """
        place, incomplete = locate(self.folders, bases, needed)
        if place is None and self.download and fetch is not None:
            target = self.folders[0]
            with lock_beside(target / self.info.name):
                # Another process may have fetched it while this one waited.
                place, incomplete = locate(self.folders, bases, needed)
                if place is None:
                    self._fetch(fetch, target)
                    place, incomplete = locate(self.folders, bases, needed)
        if place is None:
            raise MissingDataError(self._missing(incomplete, downloadable=fetch is not None))
        return place

    def fetch(self, url: str, target: Path, md5: str | None = None) -> Path:
        """Download a file whose checksum is known over https; any other only where that was asked for."""
        lacks = [] if url.startswith(("https:", "file:")) else ["its address is not encrypted"]
        lacks += [] if md5 else ["no checksum of it is published"]
        if lacks and self.download != "unverified":
            raise DownloadError(
                f"{url} was not downloaded: {' and '.join(lacks)}, so that whatever arrives would be taken for it. If "
                f'you accept that, data.load({self.info.name!r}, download="unverified") fetches it'
            )
        return fetch(url, target, md5=md5)

    def fetch_and_unpack(self, url: str, folder: Path, expects: str, md5: str | None = None) -> None:
        """Download an archive into a data folder and unpack one folder of it there; the archive stays."""
        unpack(self.fetch(url, folder / url.rsplit("/", 1)[-1], md5), folder, expects)

    def _fetch(self, fetch: Callable[[Path], None], target: Path) -> None:
        try:
            fetch(target)
        except DownloadError as error:
            raise DownloadError(
                f"{error}; {self.info.title} is published at {self.info.page}, from where {self.info.layout} can be "
                f"put into {target} by hand"
            ) from error

    def _missing(self, incomplete: Sequence[str], downloadable: bool) -> str:
        looked = ", ".join(str(folder) for folder in self.folders)
        parts = [f"{self.info.title} was not found; looked in {looked} for {self.info.layout}"]
        parts += incomplete
        if downloadable and not self.download:
            parts.append(f"data.load({self.info.name!r}, download=True) fetches it")
        elif self.download and not downloadable:
            parts.append("it cannot be downloaded automatically")
        parts.append(f"it is published at {self.info.page}")
        parts.append(self.info.obtain)
        parts.append(f"another folder is given with data_dir or the environment variable {VARIABLE}")
        return "; ".join(part for part in parts if part)
