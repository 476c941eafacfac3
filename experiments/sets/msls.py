"""MSLS, Mapillary Street-Level Sequences: places in thirty cities; images match by distance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from experiments.sets.lookup import find
from experiments.sets.shared import read_table
from laplacian_metric.core.arguments import one_of, positive
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.images import ImageFiles
from laplacian_metric.core.splits import Split
from laplacian_metric.data import DataSetInfo, Request

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

TRAIN_CITIES = (
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
)
VALIDATION_CITIES = ("cph", "sf")
TEST_CITIES = ("miami", "athens", "buenosaires", "stockholm", "bengaluru", "kampala")
CITIES = (*TRAIN_CITIES, *VALIDATION_CITIES, *TEST_CITIES)

OF_SPLIT = {
    Split.TRAIN: TRAIN_CITIES,
    Split.VALIDATION: VALIDATION_CITIES,
    Split.TRAIN_AND_VALIDATION: (*TRAIN_CITIES, *VALIDATION_CITIES),
    Split.TEST: TEST_CITIES,
}
# Eastings lie below a million metres, so that cities moved apart by this never come near each other.
APART = 1_000_000.0


def read(
    request: Request,
    part: str = "query",
    cities: tuple[str, ...] | list[str] | None = None,
    positive_distance: float | None = None,
    panoramas: bool = False,
) -> Dataset:
    """Return the queries or the database of a split; Copenhagen and San Francisco are for validation.

    Labels are cities. `extras["utm"]` (N, 2) are easting and northing in metres, `extras["positions"]` the same with
    the eastings of every city moved by a million metres times its label: cities lie in different zones, so that
    unmoved numbers of two of them can coincide. Both are missing for the test cities where their positions are.

    Args:
        part: "query", "database", or "both", in which case `extras["is_query"]` tells them apart.
        cities: some of the split's cities; by default all.
        positive_distance: how many metres apart images match; by default 10 for training and 25 else, as published.
        panoramas: whether to keep panoramic images, which the published protocol leaves out.
    """
    one_of(("query", "database", "both"), part=part)
    parts = ("query", "database") if part == "both" else (part,)
    available = OF_SPLIT[request.split]
    chosen = available if cities is None else tuple(cities)
    for city in chosen:
        one_of(available, cities=city)
    if positive("positive_distance", positive_distance) is None:
        positive_distance = 25.0 if request.split in (Split.VALIDATION, Split.TEST) else 10.0
    folders = {
        (city, kind): f"{'test' if city in TEST_CITIES else 'train_val'}/{city}/{kind}"
        for city in chosen
        for kind in parts
    }
    needed = [f"{folder}/images" for folder in folders.values()]
    root = find(request, ("msls", "MSLS", "mapillary_sls", "."), needed)
    tables = [
        _images(root / folder, panoramas).assign(
            name=lambda rows, folder=folder: folder + "/images/" + rows["key"] + ".jpg",
            label=CITIES.index(city),
            is_query=kind == "query",
        )
        for (city, kind), folder in folders.items()
    ]
    table = pd.concat(tables, ignore_index=True)
    extras = {"is_query": torch.tensor(table["is_query"].to_numpy(bool))}
    labels = table["label"].to_numpy()
    utm = table[["easting", "northing"]].to_numpy(np.float64)
    if not np.isnan(utm).any():
        moved = utm + APART * labels[:, None] * np.array([1, 0])
        extras |= {"utm": torch.tensor(utm), "positions": torch.from_numpy(moved)}
    return Dataset(
        ImageFiles(root, tuple(table["name"])),
        labels,
        class_names=CITIES,
        extras=extras,
        positive_distance=positive_distance,
    )


def _images(place: Path, panoramas: bool) -> pd.DataFrame:
    """Return the images of one city and part: key, easting and northing, which are NaN where they are not known."""
    if place.parent.name in TEST_CITIES and not (place / "postprocessed.csv").is_file():
        keys = read_table(place / "subtask_index.csv", ["key"], dtype={"key": str})
        return keys.assign(easting=np.nan, northing=np.nan)
    positions = {"key": str, "easting": float, "northing": float}
    table = read_table(place / "postprocessed.csv", list(positions), dtype=positions)
    if panoramas:
        return table
    raw = read_table(place / "raw.csv", ["key", "pano"], dtype={"key": str}).set_index("key")["pano"]
    missing = set(table["key"]) - set(raw.index)
    if missing:
        raise ValueError(f"{place / 'raw.csv'} has no line for the image {min(missing)!r}: get it again")
    return table[~raw[table["key"]].astype(bool).to_numpy()]
