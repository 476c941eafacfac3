"""MSLS, Mapillary Street-Level Sequences: places in thirty cities; images match by distance."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch

from laplacian_metric.data.images import ImageFiles
from experiments.sets.readers import CorruptFileError
from laplacian_metric.data.source import Content, DataSetInfo, Request
from laplacian_metric.data.splits import Split

INFO = DataSetInfo(
    name="msls",
    title="Mapillary Street-Level Sequences",
    layout="msls/{train_val,test}/CITY/{query,database}/{images/,raw.csv,postprocessed.csv}",
    page="https://www.mapillary.com/dataset/places",
    obtain="request it there, and unpack metadata.zip and all images_vol_*.zip into one folder",
    licence="that which is accepted on its page before downloading",
    citation="Warburg, Hauberg, Lopez-Antequera, Gargallo, Kuang, Civera: Mapillary Street-Level Sequences: A Dataset "
    "for Lifelong Place Recognition, 2020",
    preprocessing="imagenet",
    image_size=224,
)

TRAIN_CITIES = [
    "trondheim",
    "london",
    "boston",
    "melbourne",
    "amsterdam",
    "helsinki",
    "tokyo",
    "toronto",
    "saopaulo",
    "moscow",
    "zurich",
    "paris",
    "bangkok",
    "budapest",
    "austin",
    "berlin",
    "ottawa",
    "phoenix",
    "goa",
    "amman",
    "nairobi",
    "manila",
]
VALIDATION_CITIES = ["cph", "sf"]
TEST_CITIES = ["miami", "athens", "buenosaires", "stockholm", "bengaluru", "kampala"]
CITIES = (*TRAIN_CITIES, *VALIDATION_CITIES, *TEST_CITIES)

_OF_SPLIT = {
    Split.TRAIN: TRAIN_CITIES,
    Split.VALIDATION: VALIDATION_CITIES,
    Split.TRAIN_AND_VALIDATION: [*TRAIN_CITIES, *VALIDATION_CITIES],
    Split.TEST: TEST_CITIES,
}
# Eastings lie below a million metres, so that cities moved apart by this never come near each other.
_APART = 1_000_000.0


def read(
    request: Request,
    part: str = "query",
    cities: tuple[str, ...] | list[str] | None = None,
    positive_distance: float | None = None,
    panoramas: bool = False,
) -> Content:
    """Read the queries or the database of a split; Copenhagen and San Francisco are for validation.

    Labels are cities. `extras["utm"]` (N, 2) are easting and northing in metres, `extras["positions"]` the same with
    the eastings of every city moved by a million metres times its label: cities lie in different zones, so that
    unmoved numbers of two of them can coincide. Both are missing for the test cities where their positions are.

    Args:
        part: "query", "database", or "both", in which case `extras["is_query"]` tells them apart.
        cities: some of the split's cities; by default all.
        positive_distance: how many metres apart images match; by default 10 for training and 25 else, as published.
        panoramas: whether to keep panoramic images, which the published protocol leaves out.
    """
    parts = {"query": ["query"], "database": ["database"], "both": ["query", "database"]}.get(part)
    if parts is None:
        raise ValueError(f"part is {part!r}; it must be 'query', 'database' or 'both'")
    available = _OF_SPLIT[request.split]
    chosen = list(available if cities is None else cities)
    for city in chosen:
        if city not in available:
            raise ValueError(
                f"the split {request.split.value!r} of msls has no city {city!r}; it has: {available}"
            )
    if positive_distance is None:
        positive_distance = 25.0 if request.split in (Split.VALIDATION, Split.TEST) else 10.0
    if positive_distance <= 0:
        raise ValueError(f"positive_distance is {positive_distance}; it must be above 0, in metres")
    folder_of = {city: f"{'test' if city in TEST_CITIES else 'train_val'}/{city}" for city in chosen}
    needed = [(f"{folder_of[city]}/{kind}/images",) for city in chosen for kind in parts]
    root = request.find(("msls", "MSLS", "mapillary_sls", "."), needed)
    tables = [
        _read_table(root, folder_of[city], kind, CITIES.index(city), panoramas)
        for city in chosen
        for kind in parts
    ]
    return _joined(root, tables, positive_distance)


class _Table:
    """The images of one city and part: their files, label, part, and positions where they are known."""

    def __init__(
        self, names: list[str], label: int, is_query: bool, utm: list[tuple[float, float]] | None
    ) -> None:
        self.names, self.label, self.is_query, self.utm = names, label, is_query, utm


def _read_table(root: Path, folder: str, kind: str, label: int, panoramas: bool) -> _Table:
    place = root / folder / kind
    positioned, raw = place / "postprocessed.csv", place / "raw.csv"
    if not positioned.is_file():
        if label < CITIES.index(TEST_CITIES[0]):
            raise CorruptFileError(f"{place} has no postprocessed.csv, which comes with metadata.zip")
        rows = _rows(place / "subtask_index.csv", ("key",))
        return _Table(
            [f"{folder}/{kind}/images/{row['key']}.jpg" for row in rows], label, kind == "query", None
        )
    rows = _rows(positioned, ("key", "easting", "northing"))
    flat = [True] * len(rows)
    if not panoramas:
        pano = {
            row["key"]: row["pano"].strip().lower() in ("true", "1", "1.0")
            for row in _rows(raw, ("key", "pano"))
        }
        missing = next((row["key"] for row in rows if row["key"] not in pano), None)
        if missing is not None:
            raise CorruptFileError(f"{raw} has no line for the image {missing!r} of postprocessed.csv")
        flat = [not pano[row["key"]] for row in rows]
    kept = [row for row, keep in zip(rows, flat, strict=True) if keep]
    try:
        utm = [(float(row["easting"]), float(row["northing"])) for row in kept]
    except ValueError as error:
        raise CorruptFileError(f"{positioned} has a position that is no number: {error}") from error
    return _Table([f"{folder}/{kind}/images/{row['key']}.jpg" for row in kept], label, kind == "query", utm)


def _rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    if not path.is_file():
        raise CorruptFileError(f"{path} is missing; it comes with metadata.zip")
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        for column in columns:
            if column not in (reader.fieldnames or ()):
                raise CorruptFileError(f"{path} has no column {column!r}")
        rows = list(reader)
    broken = next(
        (number for number, row in enumerate(rows, 2) if any(row[name] is None for name in columns)), None
    )
    if broken is not None:
        raise CorruptFileError(f"{path}, line {broken} ends too early; get it again")
    return rows


def _joined(root: Path, tables: list[_Table], positive_distance: float) -> Content:
    names = tuple(name for table in tables for name in table.names)
    counts = [len(table.names) for table in tables]
    labels = np.repeat(np.array([table.label for table in tables], dtype=np.int64), counts)
    extras = {"is_query": torch.from_numpy(np.repeat([table.is_query for table in tables], counts))}
    if all(table.utm is not None for table in tables):
        utm = torch.tensor([row for table in tables for row in table.utm or ()], dtype=torch.float64).reshape(
            -1, 2
        )
        moved = utm.clone()
        moved[:, 0] += _APART * torch.from_numpy(labels)
        extras |= {"utm": utm, "positions": moved}
    return Content(
        images=ImageFiles(root, names),
        labels=labels,
        class_names=CITIES,
        indices=np.arange(len(names), dtype=np.int64),
        extras=extras,
        positive_distance=positive_distance,
    )
