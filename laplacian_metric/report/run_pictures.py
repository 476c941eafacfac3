"""The blocks of a report that show images: galleries and the map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laplacian_metric.core.search import search
from laplacian_metric.report.blocks import Card, Gallery, Image, Neighbour, Point, Scatter
from laplacian_metric.report.blocks.gallery import Pixels, as_pixels, encode_within
from laplacian_metric.report.blocks.texts import number
from laplacian_metric.report.evaluated import Evaluated, Measured
from laplacian_metric.report.tsne import tsne_plane

CARDS = 12
NEIGHBOURS = 5
MAPPED = 1500  # points of the map
GALLERY_BUDGET = 3 << 20  # characters of the page that images may take
MAP_BUDGET = 3 << 20
LEAST_CERTAIN = (
    "The images with the greatest uncertainty; the first place is the least certain. Below each image are its nearest "
    "neighbours, with the angle between the two directions."
)

Key = tuple[str | None, int]  # the set of OOD images, None for the images themselves, and the row


class Pictures:
    """Images of a run as they are put into the page, by set and row; `size` is what they take of it."""

    def __init__(self, evaluated: Evaluated, keys: Iterable[Key], budget: int) -> None:
        pixels: dict[str | None, Pixels] = {}
        if evaluated.thumbnails is not None:
            pixels[None] = as_pixels("thumbnails", evaluated.thumbnails, len(evaluated.embedding))
        for name, (embedding, thumbnails) in evaluated.ood.items():
            if thumbnails is not None:
                pixels[name] = as_pixels(f"the thumbnails of ood[{name!r}]", thumbnails, len(embedding))
        self._uses = Counter(key for key in keys if key[0] in pixels)
        wanted = list(self._uses)
        encoded = encode_within(
            [pixels[source][row] for source, row in wanted], budget, list(self._uses.values())
        )
        self.images: dict[Key, Image] = {
            key: image for key, image in zip(wanted, encoded, strict=True) if image is not None
        }
        self.left_out = len(wanted) - len(self.images)

    @property
    def size(self) -> int:
        """The characters of the page that they take, each as often as it is there."""
        return sum(self._uses[key] * len(image.uri) for key, image in self.images.items())

    def get(self, source: str | None, row: int) -> Image | None:
        """An image, None where there is none."""
        return self.images.get((source, row))


@dataclass(frozen=True)
class Galleries:
    """The galleries of the known images and of each set of OOD images, and how much of the page their images take."""

    known: list[Gallery]
    ood: dict[str, Gallery]
    pictures: Pictures


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Rows of one gallery with their neighbours among the known images."""

    title: str
    caption: str
    source: str | None
    rows: Tensor
    neighbours: Tensor
    similarities: Tensor

    def images(self) -> list[Key]:
        mine: list[Key] = [(self.source, row) for row in self.rows.tolist()]
        return mine + [(None, row) for row in self.neighbours.flatten().tolist()]


def make_galleries(evaluated: Evaluated, measured: Measured) -> Galleries:
    """Least certain, surest, surest of the wrong; and the OOD images that would be let through."""
    chosen = _known(measured) + [
        _choose(
            measured,
            f"{name}: OOD images that look most familiar",
            "The out-of-distribution images with the least uncertainty. Every answer to them is wrong.",
            images.uncertainty.argsort(stable=True)[: CARDS // 2],
            name,
        )
        for name, images in measured.ood.items()
    ]
    pictures = Pictures(evaluated, [key for one in chosen for key in one.images()], GALLERY_BUDGET)
    galleries = [(one.source, _gallery(evaluated, measured, one, pictures)) for one in chosen]
    return Galleries(
        [gallery for source, gallery in galleries if source is None],
        {source: gallery for source, gallery in galleries if source is not None},
        pictures,
    )


def _known(measured: Measured) -> list[_Chosen]:
    order = measured.least_certain_first
    count = min(CARDS, max(1, len(order) // 2))
    chosen = [_choose(measured, "Least certain", LEAST_CERTAIN, order[:count])]
    if len(order) > 1:
        caption = "The images with the least uncertainty; their neighbours should be right."
        chosen.append(_choose(measured, "Surest", caption, order.flip(0)[: min(count, CARDS // 2)]))
    if measured.right is not None:
        wrong = order.flip(0)
        wrong = wrong[(~measured.right & measured.answerable)[wrong]][:CARDS]
        if len(wrong):
            caption = (
                "Of the images whose nearest neighbour is of another class, those with the least uncertainty: refusing "
                "does not catch them early. Wrong labels often turn up here."
            )
            chosen.append(_choose(measured, "Wrong, and yet sure", caption, wrong))
    return chosen


def _choose(measured: Measured, title: str, caption: str, rows: Tensor, source: str | None = None) -> _Chosen:
    point = measured.embedding.point.detach()
    if source is None:
        count = min(NEIGHBOURS, len(point) - 1)
        if count == 0:
            none = torch.zeros(len(rows), 0)
            return _Chosen(title, caption, source, rows, none.long(), none)
        near = search(point[rows], count, database=point, own=rows)
    else:
        queries = measured.ood[source].embedding.point.detach()[rows]
        near = search(queries, min(NEIGHBOURS, len(point)), database=point)
    return _Chosen(title, caption, source, rows, near.indices, near.similarities)


def _gallery(evaluated: Evaluated, measured: Measured, one: _Chosen, pictures: Pictures) -> Gallery:
    cards = []
    place = torch.empty(len(measured.uncertainty), dtype=torch.int64)
    place[measured.least_certain_first] = torch.arange(len(place))
    for row, near, similar in zip(
        one.rows.tolist(), one.neighbours.tolist(), one.similarities.tolist(), strict=True
    ):
        label = None if one.source is not None else int(measured.labels[row])
        neighbours = [
            Neighbour(
                evaluated.class_name(int(measured.labels[other])),
                label is not None and int(measured.labels[other]) == label,
                cosine,
                pictures.get(None, other),
            )
            for other, cosine in zip(near, similar, strict=True)
        ]
        if one.source is None:
            name, verdict = (
                evaluated.class_name(int(measured.labels[row])),
                _verdict(measured, row, neighbours),
            )
            uncertainty, kappa = measured.uncertainty[row], measured.embedding.kappa[row]
            ranked = f" (place {int(place[row]) + 1:,} of {len(place):,})"
        else:
            name, verdict = f"OOD image of {one.source}", (False, f"answered with {neighbours[0].label}")
            images = measured.ood[one.source]
            uncertainty, kappa = images.uncertainty[row], images.embedding.kappa[row]
            refused = float((measured.uncertainty < uncertainty).double().mean())
            ranked = f" (greater than that of {100 * refused:.0f} % of the known images)"
        cards.append(
            Card(
                label=name,
                verdict=verdict[1],
                right=verdict[0],
                facts=[
                    f"uncertainty {number(float(uncertainty), 4)}{ranked}",
                    f"kappa {number(float(kappa))}",
                ],
                image=pictures.get(one.source, row),
                name=evaluated.file_name(row) if one.source is None else None,
                neighbours=neighbours,
            )
        )
    return Gallery(one.title, one.caption, cards)


def _verdict(measured: Measured, row: int, neighbours: Sequence[Neighbour]) -> tuple[bool | None, str]:
    if not bool(measured.answerable[row]):
        return None, "no other image of its class"
    first = neighbours[0]
    return (True, "nearest is right") if first.right else (False, f"nearest is wrong: {first.label}")


@dataclass(frozen=True)
class Map:
    """The map, the rows of the known images on it, and how many images it could not show."""

    plot: Scatter
    rows: Tensor
    ood: dict[str, Tensor]
    pictures: Pictures


def make_map(evaluated: Evaluated, measured: Measured, *, limit: int = MAPPED, seed: int = 0) -> Map:
    """Some of the images and OOD images in the plane, by t-SNE of their directions."""
    rows, ood_rows = _sample(measured, limit, seed)
    names = list(ood_rows)
    directions = torch.cat(
        [measured.embedding.mean.detach()[rows]]
        + [measured.ood[name].embedding.mean.detach()[ood_rows[name]].to(rows.device) for name in names]
    )
    places = tsne_plane(directions, seed)
    keys: list[Key] = [(None, row) for row in rows.tolist()]
    keys += [(name, row) for name in names for row in ood_rows[name].tolist()]
    pictures = Pictures(evaluated, keys, MAP_BUDGET)
    classes = sorted(set(measured.labels.tolist()))
    group_of = {label: position for position, label in enumerate(classes)}
    points = []
    for (x, y), (source, row) in zip(places.tolist(), keys, strict=True):
        in_distribution = source is None
        embedding = measured.embedding if source is None else measured.ood[source].embedding
        uncertainty = measured.uncertainty if source is None else measured.ood[source].uncertainty
        points.append(
            Point(
                x=x,
                y=y,
                group=group_of[int(measured.labels[row])]
                if source is None
                else len(classes) + names.index(source),
                uncertainty=float(measured.position(uncertainty[row])),
                lines=[
                    evaluated.class_name(int(measured.labels[row]))
                    if in_distribution
                    else f"OOD image of {source}",
                    f"uncertainty {number(float(uncertainty[row]), 4)}",
                    f"kappa {number(float(embedding.kappa[row]))}",
                    *_nearest_line(evaluated, measured, source, row),
                ],
                image=pictures.get(source, row),
            )
        )
    groups = [evaluated.class_name(label) for label in classes] + names
    return Map(Scatter("Map of the embedding", points, groups, len(classes)), rows, ood_rows, pictures)


def _nearest_line(evaluated: Evaluated, measured: Measured, source: str | None, row: int) -> list[str]:
    if source is not None:
        other = int(measured.ood[source].nearest[row])
        return [f"nearest known image: {evaluated.class_name(int(measured.labels[other]))}"]
    lines = []
    if measured.nearest is not None and measured.right is not None:
        name = evaluated.class_name(int(measured.labels[measured.nearest[row]]))
        lines.append(f"nearest neighbour: {name} ({'right' if measured.right[row] else 'wrong'})")
    file_name = evaluated.file_name(row)
    return lines if file_name is None else [*lines, file_name]


def _sample(measured: Measured, limit: int, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Rows of the known images and of each set of OOD images, at most `limit` together, drawn without replacement."""
    generator = torch.Generator().manual_seed(seed)
    inside = limit if not measured.ood else 2 * limit // 3
    each = (limit - inside) // max(1, len(measured.ood))

    def drawn(count: int, most: int) -> Tensor:
        return torch.randperm(count, generator=generator)[:most].sort().values

    rows = drawn(len(measured.uncertainty), inside)
    return rows, {name: drawn(len(one.uncertainty), each) for name, one in measured.ood.items()}
