"""Images as points in the plane, whose size and transparency are their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import ClassVar

from laplacian_metric.report.blocks.gallery import Image
from laplacian_metric.report.blocks.texts import attributes, class_look, data_script, ood_look, plain
from laplacian_metric.report.page import INTERACTIVE, Enhancement

WIDTH, HEIGHT, MARGIN = 760, 560, 16
SMALLEST, LARGEST = 3.0, 9.0
LEGEND = 24  # a longer legend is folded away
HINT = "Point at a mark, or focus the plot and use the arrow keys; Home is the least, End the most certain image."


@dataclass(frozen=True)
class Point:
    """An image at (x, y), which belongs to a group.

    `uncertainty` is between 0, the surest, and 1; `lines` are what is said about it, the label first.
    """

    x: float
    y: float
    group: int
    uncertainty: float
    lines: Sequence[str]
    image: Image | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.x) and math.isfinite(self.y)):
            raise ValueError(f"a point is at ({self.x}, {self.y}); both have to be finite")
        if not 0 <= self.uncertainty <= 1:
            raise ValueError(f"a point has the uncertainty {self.uncertainty}; a share from 0 to 1 is needed")
        if not self.lines:
            raise ValueError("a point has no lines; say at least what it is")


@dataclass(frozen=True)
class Scatter:
    """Points of groups; the page's script shows the image under the pointer, or the one that the keyboard is at.

    The first `known` groups are classes, with a colour and a shape each; the others are OOD images, drawn as black
    lines. The less certain a point, the larger and paler it is.

    Example:
        >>> plot = Scatter("Map", [Point(0.0, 0.0, 0, 0.5, ["</script>"])], ["</script>"], known=1)
        >>> plot.html().count("</script>")
        1
    """

    title: str
    points: Sequence[Point]
    groups: Sequence[str]
    known: int
    enhancement: ClassVar[Enhancement] = INTERACTIVE

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError(f"the plot {self.title!r} has no points; leave it out")
        wrong = [point.group for point in self.points if not 0 <= point.group < len(self.groups)]
        if wrong:
            raise ValueError(f"a point is of group {wrong[0]}, there are {len(self.groups)} groups")

    def look(self, group: int) -> tuple[str, str, bool]:
        """Colour and shape of a group, and whether it is of OOD images."""
        if group < self.known:
            return (*class_look(group), False)
        return (*ood_look(group - self.known), True)

    def html(self) -> str:
        # The least certain first: they are the largest, and what is sure is drawn over them.
        ordered = sorted(self.points, key=lambda point: -point.uncertainty)
        places = _places(ordered)
        marks = "\n".join(self._mark(point, place) for point, place in zip(ordered, places, strict=True))
        num_ood = sum(point.group >= self.known for point in ordered)
        label = f"{plain(self.title)}: {len(ordered)} points, of which {num_ood} are OOD images."
        opening = attributes(viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=f"{label} {HINT}")
        data = [
            {
                "x": x,
                "y": y,
                "lines": [plain(line) for line in point.lines],
                "image": point.image.uri if point.image else None,
                "small": bool(point.image and point.image.small),
            }
            for point, (x, y) in zip(ordered, places, strict=True)
        ]
        return (
            f'<div class="scatter" data-block="scatter">\n<div class="plane"><svg{opening}>\n{marks}\n</svg>\n'
            f'<div class="shown" aria-live="polite" hidden><p class="quiet">{escape(HINT)}</p></div></div>\n'
            f"{self._legend()}\n{data_script({'points': data})}\n</div>"
        )

    def _mark(self, point: Point, place: tuple[float, float]) -> str:
        colour, shape, is_ood = self.look(point.group)
        size = SMALLEST + (LARGEST - SMALLEST) * point.uncertainty
        fill = "none" if is_ood else colour
        drawn = attributes(
            d=shape,
            transform=f"translate({place[0]} {place[1]}) scale({size:.2f})",
            fill=fill,
            fill_opacity=None if is_ood else f"{0.85 - 0.75 * point.uncertainty:.2f}",
            stroke=colour,
            stroke_width="1.1" if is_ood else "0.8",
            stroke_opacity=f"{1 - 0.6 * point.uncertainty:.2f}",
            vector_effect="non-scaling-stroke",
        )
        return f"<path{drawn}><title>{escape('; '.join(plain(line) for line in point.lines))}</title></path>"

    def _legend(self) -> str:
        entries = []
        used = {point.group for point in self.points}
        for group, name in enumerate(self.groups):
            if group not in used:
                continue
            colour, shape, is_ood = self.look(group)
            drawn = attributes(d=shape, fill="none" if is_ood else colour, stroke=colour, stroke_width="0.25")
            text = escape(plain(name) + (" (OOD)" if is_ood else ""))
            entries.append(
                f'<li><svg viewBox="-1.5 -1.5 3 3" aria-hidden="true"><path{drawn}></path></svg>{text}</li>'
            )
        listed = f'<ul class="legend">{"".join(entries)}</ul>'
        if len(entries) <= LEGEND:
            return listed
        return f"<details><summary>Legend of {len(entries)} groups</summary>{listed}</details>"


def _places(points: Sequence[Point]) -> list[tuple[float, float]]:
    """The points in the picture: both axes in the same scale, as large as fits, upwards up."""
    xs, ys = [point.x for point in points], [point.y for point in points]
    across, up = max(xs) - min(xs), max(ys) - min(ys)
    room = (WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN)
    scales = [size / extent for size, extent in zip(room, (across, up), strict=True) if extent > 0]
    scale = min(scales, default=1.0)
    middle = ((max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2)
    return [
        (
            round(WIDTH / 2 + scale * (x - middle[0]), 1),
            round(HEIGHT / 2 - scale * (y - middle[1]), 1),
        )
        for x, y in zip(xs, ys, strict=True)
    ]
