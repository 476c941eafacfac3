"""Suites: which uncertainty still detects wrong answers on classes that were never trained on.

`python -m experiments.harness suite` runs a suite. To judge a network of your own take the images of a set, and write
what it makes of them:

    images = suites.images("url-small", "frozen", "unseen/quickdraw", data_dir="data")
"""

from __future__ import annotations

from pathlib import Path

from experiments.harness.suites.leaderboard import Row, rows
from experiments.harness.suites.running import Benchmark
from experiments.harness.suites.sets import TrackSets
from experiments.harness.suites.suite import Suite, load, names
from laplacian_metric.data import Dataset

__all__ = ["Benchmark", "Row", "Suite", "images", "load", "names", "rows"]


def images(suite: str, track: str, name: str, data_dir: str | Path | None = None) -> Dataset:
    """Return the images of one set of a suite, in the order in which `--scores` expects their numbers.

    Args:
        suite: its name.
        track: of the suite.
        name: of the set, such as "validation" or "unseen/quickdraw".
        data_dir: the folder of the data sets.

    Example:
        >>> len(images("quick", "sample", "unseen/fashion-mnist"))
        300
    """
    place = None if data_dir is None else Path(data_dir)
    return TrackSets(load(suite).tracks[track], place, Path()).images(name)
