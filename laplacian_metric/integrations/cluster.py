"""Embed a corpus with Ray: image files or Parquet in, Parquet out, part by part, on one machine or a cluster.

A part is some of the files, or one row group of a Parquet file. Each is embedded by a worker and written at once into a
file of its own; what is written is not computed again. Ray starts a new worker for one that was killed.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from laplacian_metric.core.files import atomic_write
from laplacian_metric.core.images import EXTENSIONS, Preparation, UnreadableImageError, decode_image
from laplacian_metric.core.progress import track
from laplacian_metric.integrations.optional import require
from laplacian_metric.laplace.model_folder import ModelFolder

EXTRA = "laplacian-metric[ray]"
NEEDED_BY = "embed_corpus"
PLAN = "corpus.json"
CONTENTS = ("features", "image", "path")

Part = dict[str, Any]
Architecture = nn.Module | Callable[[], nn.Module] | None


@dataclass(frozen=True)
class Corpus:
    """What was embedded.

    Attributes:
        folder: of the files ``part-00000.parquet`` and so on.
        parts: how many there are.
        resumed: how many of them an earlier call had written.
        rows: in all parts.
        unreadable: images that were left out, by their ids.
    """

    folder: Path
    parts: int
    resumed: int
    rows: int
    unreadable: tuple[str, ...]


def embed_corpus(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    address: str | None = None,
    workers: int = 2,
    threads: int = 1,
    batch_size: int = 256,
    images_per_part: int = 4096,
    skip_unreadable: bool = False,
    architecture: Architecture = None,
    progress: bool | None = None,
) -> Corpus:
    """Embed image files or the rows of Parquet files with a saved model, and write (id, mean, kappa) as Parquet.

    Where the model has `Trust`, a column ``known`` says how like the known inputs each one is: 1 for whatever is no
    more novel than most known queries, falling to 0. The same call resumes: parts that are written are
    not computed again.

    Args:
        source: a folder of images, or a Parquet file, a folder of them, or a list. A Parquet file has "features"
            (lists of numbers), "image" (encoded bytes) or "path", and an "id"; without it, rows are counted.
        model: a model folder. All workers have to see it, the source and ``out`` under the same paths.
        out: the folder for the parts.
        address: of a Ray cluster, "auto" or "ray://head:10001" say; None starts Ray on this machine, or takes the
            one that was started already.
        workers: how many models are loaded at a time.
        threads: of each worker.
        batch_size: rows that are embedded at a time.
        images_per_part: of image files; of Parquet files a row group is a part.
        skip_unreadable: leave out images that do not decode, and name them in the result; otherwise they are an error.
        architecture: for models whose encoder came from a module, see `ModelFolder.load`.
        progress: whether to show a bar; None asks the terminal.

    Example:
        >>> embed_corpus("images", "model", "embedded", address="ray://head:10001", workers=64)  # doctest: +SKIP
    """
    for name, value in (("workers", workers), ("threads", threads), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} is {value}, at least 1 is needed")
    ray, _ = require("ray", NEEDED_BY, EXTRA), require("pyarrow.parquet", NEEDED_BY, EXTRA)
    require("ray.data", NEEDED_BY, EXTRA)
    folder, parts = Path(out).resolve(), parts_of(source, images_per_part)
    fingerprint = ModelFolder.load(model, architecture=architecture).lam.fingerprint()
    folder.mkdir(parents=True, exist_ok=True)
    _check_plan(folder / PLAN, {"model": fingerprint, "parts": parts})
    missing = [part for part in parts if not (folder / part["name"]).is_file()]
    if missing:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        settings = {
            "model": str(Path(model).resolve()),
            "out": str(folder),
            "batch_size": batch_size,
            "threads": threads,
            "skip_unreadable": skip_unreadable,
            "architecture": architecture,
        }
        count = min(workers, len(missing))
        rows = ray.data.from_items(
            [{"part": json.dumps(part)} for part in missing], override_num_blocks=len(missing)
        )
        done = rows.map_batches(
            PartEmbedder,
            fn_constructor_kwargs={"settings": settings},
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=count),
            num_cpus=threads,
        )
        for _ in track(done.iter_rows(), "parts", total=len(missing), show=progress):
            pass
    return _summary(folder, parts, len(parts) - len(missing))


def _summary(folder: Path, parts: list[Part], resumed: int) -> Corpus:
    parquet = require("pyarrow.parquet", NEEDED_BY, EXTRA)
    rows, unreadable = 0, []
    for part in parts:
        metadata = parquet.read_metadata(folder / part["name"])
        rows += metadata.num_rows
        unreadable += json.loads(metadata.metadata[b"unreadable"])
    return Corpus(folder, len(parts), resumed, rows, tuple(unreadable))


# --- the parts ---


def parts_of(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], images_per_part: int = 4096
) -> list[Part]:
    """The parts of a corpus: names of their files, and what they are made of.

    Raises:
        ValueError: there is nothing to embed.
    """
    listed = [source] if isinstance(source, str | os.PathLike) else list(source)
    if images_per_part < 1:
        raise ValueError(f"images_per_part is {images_per_part}, at least 1 is needed")
    tables: list[Path] = []
    images: list[tuple[str, str]] = []
    for place in (Path(each).resolve() for each in listed):
        if not place.exists():
            raise FileNotFoundError(f"there is no file or folder {place}")
        files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
        tables += [path for path in files if path.suffix == ".parquet"]
        root = place.parent if place.is_file() else place
        images += [
            (path.relative_to(root).as_posix(), str(path))
            for path in files
            if path.suffix.lower() in EXTENSIONS
        ]
    parts: list[Part] = [
        {"images": images[start : start + images_per_part]}
        for start in range(0, len(images), images_per_part)
    ]
    parts += [part for path in tables for part in _row_groups(path)]
    if not parts:
        raise ValueError(
            f"{', '.join(map(str, listed))} holds neither images nor Parquet files: nothing to embed"
        )
    return [{"name": f"part-{number:05}.parquet", **part} for number, part in enumerate(parts)]


def _row_groups(path: Path) -> Iterator[Part]:
    parquet = require("pyarrow.parquet", NEEDED_BY, EXTRA)
    metadata, first = parquet.read_metadata(path), 0
    columns = parquet.read_schema(path).names
    if not set(CONTENTS) & set(columns):
        raise ValueError(
            f'{path} has the columns {", ".join(columns)}: one called "features", "image" or "path" is needed'
        )
    for group in range(metadata.num_row_groups):
        yield {"table": str(path), "group": group, "first": first}
        first += metadata.row_group(group).num_rows


def _check_plan(path: Path, plan: dict[str, Any]) -> None:
    """Write what is to be embedded, or refuse parts of something else."""
    text = json.dumps(plan)
    if not path.is_file():
        if any(path.parent.glob("part-*.parquet")):
            raise ValueError(
                f"{path.parent} has parts, but no {path.name} that says of what: take another folder"
            )
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    elif json.loads(path.read_text(encoding="utf-8")) != json.loads(text):
        raise ValueError(
            f"{path.parent} has parts of another corpus, of another model, or cut otherwise: take another folder"
        )


# --- a worker ---


class PartEmbedder:
    """Loads a model once, and embeds one part after the other; what Ray Data starts as a worker."""

    def __init__(self, settings: dict[str, Any]) -> None:
        torch.set_num_threads(settings["threads"])
        self.settings = settings
        self.model = ModelFolder.load(settings["model"], architecture=settings["architecture"])

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Write the parts of a batch, and return how many rows they have."""
        counts = [self.embed_part(json.loads(str(text))) for text in batch["part"]]
        return {"rows": np.array(counts)}

    def embed_part(self, part: Part) -> int:
        """Embed one part and write its file, whole or not at all; the number of its rows."""
        pa, parquet = require("pyarrow", NEEDED_BY, EXTRA), require("pyarrow.parquet", NEEDED_BY, EXTRA)
        columns: dict[str, list[Any]] = {"id": [], "mean": [], "kappa": []}
        unreadable: list[str] = []
        for ids, inputs in self._batches(part, unreadable):
            h = self.model.encoder.features(inputs)
            e = self.model.lam.embed_features(h).to("cpu")
            columns["id"] += ids
            columns["mean"] += list(e.mean.float().numpy())
            columns["kappa"].append(e.kappa.float().numpy())
            if self.model.trust is not None:
                answer = self.model.trust(h.cpu().numpy())
                columns.setdefault("known", []).append(answer.known.astype(np.float32))
        arrays: dict[str, Any] = {
            name: pa.array(np.concatenate(values) if values else np.empty(0, np.float32))
            for name, values in columns.items()
            if name not in ("id", "mean")
        }
        dim = self.model.encoder.dim
        flat = np.concatenate(columns["mean"]) if columns["mean"] else np.empty(0, np.float32)
        arrays = {
            "id": pa.array(columns["id"], pa.string()),
            "mean": pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float32()), dim),
            **arrays,
        }
        table = pa.table(arrays).replace_schema_metadata(
            {"fingerprint": self.model.lam.fingerprint(), "unreadable": json.dumps(unreadable)}
        )
        with atomic_write(Path(self.settings["out"]) / part["name"]) as temporary:
            parquet.write_table(table, temporary)
        return len(columns["id"])

    def _batches(self, part: Part, unreadable: list[str]) -> Iterator[tuple[list[str], Tensor]]:
        """Ids and what the encoder takes, a few rows at a time."""
        size = self.settings["batch_size"]
        if "images" in part:
            for start in range(0, len(part["images"]), size):
                some = part["images"][start : start + size]
                yield from self._decoded([name for name, _ in some], [path for _, path in some], unreadable)
            return
        with require("pyarrow.parquet", NEEDED_BY, EXTRA).ParquetFile(part["table"]) as file:
            number = part["first"]
            for batch in file.iter_batches(batch_size=size, row_groups=[part["group"]]):
                content = next(name for name in CONTENTS if name in batch.schema.names)
                ids = (
                    [str(value) for value in batch.column("id").to_pylist()]
                    if "id" in batch.schema.names
                    else [str(row) for row in range(number, number + len(batch))]
                )
                number += len(batch)
                values = batch.column(content)
                if content == "features":
                    rows = np.array(values.to_pylist(), dtype=np.float32)
                    weight = self.model.encoder.head.weight
                    yield ids, torch.from_numpy(rows).to(weight.device, weight.dtype)
                else:
                    root = Path(part["table"]).parent
                    files = [
                        io.BytesIO(value) if content == "image" else root / value
                        for value in values.to_pylist()
                    ]
                    yield from self._decoded(ids, files, unreadable)

    def _decoded(
        self, ids: list[str], files: Sequence[Any], unreadable: list[str]
    ) -> Iterator[tuple[list[str], Tensor]]:
        """One batch of prepared images; those that do not decode are named, or an error."""
        preparation = self.model.preparation or Preparation()
        names, images = [], []
        for name, file in zip(ids, files, strict=True):
            try:
                images.append(preparation.batch(decode_image(file)))
                names.append(name)
            except UnreadableImageError as error:
                if not self.settings["skip_unreadable"]:
                    raise ValueError(f"image {name}: {error}; skip_unreadable=True leaves it out") from error
                unreadable.append(name)
        if not images:
            return
        sizes = {tuple(image.shape) for image in images}
        if len(sizes) > 1:
            raise ValueError(
                f"image {names[0]} and others have different sizes, and the model names none: save it with "
                "Preparation(image_size=...)"
            )
        yield names, torch.stack(images).to(self.model.encoder.head.weight.device)
