"""Images of different classes that an embedding takes for each other: does another way of training part them?

The UMM paper shows such outliers (its Fig. 1 and 7) and says that modelled uncertainty pushes them away. Here outliers
are the training images whose nearest other training image in one network, the reference, is of another class and
nearest of all; what other networks make of the same pairs is measured. A pair that was chosen because one network has
it wrong is less wrong in every other network, so that networks have to be compared with each other and not with the
reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness.cell_fitting import Fitted
from experiments.pictures import HIGH, LOW, PictureRow, as_pixels, extreme_pictures
from experiments.self_supervised.measure import certain, features, packed
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import unit_rows
from laplacian_metric.core.search import search
from laplacian_metric.metrics import statistics
from laplacian_metric.report.plots import as_png

OUTLIERS = 1000
NEAREST = 3


@dataclass(frozen=True)
class Outliers:
    """Pairs of images of different classes that are nearest to each other.

    Attributes:
        images: all of them, with labels.
        queries, wrong: (Q,) rows of both images of each pair, the nearest pair first.
    """

    images: Dataset
    queries: Tensor
    wrong: Tensor


def embeddings(run: Fitted, images: Dataset) -> Tensor:
    """Return the unit embeddings (N, Z) of images."""
    assert run.encoder is not None
    return unit_rows(run.encoder.head(features(run.encoder, images))).detach()


def outliers_of(z: Tensor, images: Dataset, number: int = OUTLIERS) -> Outliers:
    """Return the pairs (image, its nearest other) of different classes with the smallest distances."""
    neighbours = search(z, 1)
    nearest, distance = neighbours.indices[:, 0], neighbours.distances[:, 0]
    wrong = (images.labels[nearest] != images.labels).nonzero()[:, 0]
    queries = wrong[distance[wrong].argsort(stable=True)[:number]]
    return Outliers(images, queries, nearest[queries])


def measured(run: Fitted, outliers: Outliers) -> dict[str, Any]:
    """Return what a network makes of the pairs.

    "right" has for each query whether its nearest image is of its class, "still nearest" the share for which it is the
    same wrong one, "rank" the median place of that one, and "AUROC" that of detecting the queries among all images by
    the network's own uncertainty.
    """
    z, labels = embeddings(run, outliers.images), outliers.images.labels
    queries, wrong = outliers.queries, outliers.wrong
    nearest = search(z[queries], 1, database=z, own=queries).indices[:, 0]
    exact = "donot_use_mm_for_euclid_dist"
    distances = torch.cdist(z[queries].double(), z.double(), compute_mode=exact)
    distances[torch.arange(len(queries)), queries] = torch.inf
    place = 1 + (distances < distances.gather(1, wrong[:, None])).sum(1)
    e = run.embedder.embed(outliers.images)
    is_outlier = torch.zeros(len(z), dtype=torch.float64).index_fill_(0, queries, 1.0)
    every = torch.ones(1, len(z), dtype=torch.float64)
    own = None if certain(e) else float(statistics.auroc(e.uncertainty.double(), is_outlier, every))
    return {
        "right": packed(labels[nearest] == labels[queries]),
        "still nearest": float((nearest == wrong).double().mean()),
        "rank": float(place.double().median()),
        "AUROC": own,
    }


def neighbours_picture(runs: Mapping[str, Fitted], outliers: Outliers) -> bytes:
    """Return a picture of the closest outlier of each class, with its nearest images in each network by title."""
    labels = outliers.images.labels
    classes = labels[outliers.queries]
    first = sorted(int((classes == label).nonzero()[0, 0]) for label in classes.unique())
    queries = outliers.queries[torch.tensor(first)]
    columns = [[(query, "black") for query in queries.tolist()]]
    for run in runs.values():
        z = embeddings(run, outliers.images)
        for nearest in search(z[queries], NEAREST, database=z, own=queries).indices.T:
            right = labels[nearest] == labels[queries]
            columns.append(
                [(i, LOW if r else HIGH) for i, r in zip(nearest.tolist(), right.tolist(), strict=True)]
            )
    pixels = torch.cat([batch.inputs for batch in outliers.images.batches()])
    figure = Figure(
        figsize=(0.62 * len(columns) + 0.2, 0.62 * len(queries) + 0.6), dpi=130, layout="constrained"
    )
    axes = figure.subplots(len(queries), len(columns), squeeze=False)
    for place, column in enumerate(columns):
        for line, (image, colour) in enumerate(column):
            axes[line, place].imshow(as_pixels(pixels[image]), interpolation="nearest")
            axes[line, place].set(xticks=[], yticks=[])
            for side in axes[line, place].spines.values():
                side.set(color=colour, linewidth=1.6)
    for place, title in enumerate(runs):
        axes[0, 1 + place * NEAREST + NEAREST // 2].set_title(title, fontsize=8)
    axes[0, 0].set_title("query", fontsize=8)
    return as_png(figure)


def extremes_picture(
    records: Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]],
    scores: Mapping[str, str],
    images: Dataset,
) -> bytes:
    """Return a picture of the least and of the most uncertain test images by each of the scores, of each network.

    Args:
        records: the rows of such images, by title of the network and by score.
        scores: what each score is called in the picture.
        images: the test images.
    """
    pixels = torch.cat([batch.inputs for batch in images.batches()])
    rows = []
    for title, chosen in records.items():
        for name, label in scores.items():
            if name in chosen:
                lowest, highest = (
                    [pixels[row] for row in chosen[name][end]] for end in ("lowest", "highest")
                )
                rows.append(PictureRow(label, lowest, highest, title))
    return extreme_pictures(rows)
