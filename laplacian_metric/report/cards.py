"""Galleries of the images at the extremes: the least certain, the errors that look sure, the familiar OOD images."""

from __future__ import annotations

import torch
from torch import Tensor

from laplacian_metric.report.evaluated import Evaluated, Images, Measured
from laplacian_metric.report.page import Card, Gallery, Neighbour, number, share

CARDS = 6
NEIGHBOURS = 5


def known_galleries(run: Evaluated, measured: Measured) -> list[Gallery]:
    """Return the least certain queries, and the surest of those whose nearest item is wrong."""
    surest = run.queries.uncertainty.argsort(stable=True)
    least = surest.flip(0)[:CARDS]
    galleries = [
        Gallery(
            "Least certain",
            "Below each image are its nearest items, with the angle between the two directions.",
            _cards(run, measured, run.queries, least),
        )
    ]
    if measured.ranking is None:
        return galleries
    wrong = measured.ranking.answerable & (measured.ranking.hits[:, 0] == 0)
    rows = surest[wrong.cpu()[surest]][:CARDS]
    if len(rows):
        caption = (
            "The surest queries whose nearest item is of another class. Wrong labels often turn up here."
        )
        galleries.append(Gallery("Wrong, and yet sure", caption, _cards(run, measured, run.queries, rows)))
    return galleries


def ood_galleries(run: Evaluated, measured: Measured) -> list[Gallery]:
    """Return the least uncertain images of every OOD set."""
    return [
        Gallery(
            f"{name}: the OOD images that look most familiar",
            "The least uncertain of them. Every answer to them is wrong.",
            _cards(run, measured, images, images.uncertainty.argsort(stable=True)[:CARDS], name),
        )
        for name, images in run.ood.items()
    ]


def _cards(
    run: Evaluated, measured: Measured, images: Images, rows: Tensor, ood: str | None = None
) -> list[Card]:
    cosines = images.points[rows] @ run.items.points.T
    if images is run.items:
        cosines[torch.arange(len(rows)), rows] = -torch.inf
    most = min(NEIGHBOURS, len(run.items.points) - (images is run.items))
    near = cosines.topk(most, dim=1)
    return [
        _card(run, measured, images, row, near.indices[place].tolist(), near.values[place].tolist(), ood)
        for place, row in enumerate(rows.tolist())
    ]


def _card(
    run: Evaluated,
    measured: Measured,
    images: Images,
    row: int,
    near: list[int],
    cosines: list[float],
    ood: str | None,
) -> Card:
    label = None if ood is not None else int(run.labels[row])
    item_labels = torch.as_tensor(run.items.labels)
    neighbours = [
        Neighbour(
            run.class_name(int(item_labels[item])),
            int(item_labels[item]) == label,
            cosine,
            run.items.thumbnail(item),
        )
        for item, cosine in zip(near, cosines, strict=True)
    ]
    uncertainty = images.uncertainty[row]
    surer = float((run.queries.uncertainty < uncertainty).double().mean())
    right, verdict = _verdict(measured, row, neighbours, ood)
    return Card(
        label=f"OOD image of {ood}" if label is None else run.class_name(label),
        verdict=verdict,
        right=right,
        facts=[
            f"uncertainty {number(float(uncertainty))}, above {share(surer)} of the known images",
            f"kappa {number(float(images.embedding.kappa[row]))}",
        ],
        image=images.thumbnail(row),
        name=images.name(row),
        neighbours=neighbours,
    )


def _verdict(
    measured: Measured, row: int, neighbours: list[Neighbour], ood: str | None
) -> tuple[bool | None, str]:
    if ood is not None:
        return False, f"answered with {neighbours[0].label}"
    if measured.ranking is None or not bool(measured.ranking.answerable[row]):
        return None, "no item of its class"
    first = neighbours[0]
    return first.right, "nearest is right" if first.right else f"nearest is wrong: {first.label}"
