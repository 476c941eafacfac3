"""What is gained by refusing the most uncertain queries, with a slider for how many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import ClassVar

from laplacian_metric.metrics.sparsification import SHARES, Refusal
from laplacian_metric.report.blocks.texts import attributes, data_script, number, plain, share
from laplacian_metric.report.page import INTERACTIVE, Enhancement, Table

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 20, 10, 38
FIRST = 20  # where the slider begins


@dataclass(frozen=True)
class RefusalSlider:
    """The rows of `refusals` as a curve and a table of ten shares; the page's script adds the slider.

    Example:
        >>> from laplacian_metric.metrics.sparsification import refusals
        >>> block = RefusalSlider("Refusing", refusals([0.1, 0.2, 0.3, 0.4], [0, 0, 0, 1]))
        >>> block.readings(block.rows[50])
        ['0.0 % (0.0 to 65.8)', '2 of 4', '50.0 %', '0.2']
    """

    title: str
    rows: Sequence[Refusal]
    enhancement: ClassVar[Enhancement] = INTERACTIVE

    def __post_init__(self) -> None:
        if len(self.rows) != SHARES:
            raise ValueError(
                f"the slider has {len(self.rows)} rows; {SHARES} are needed, as refusals() gives them"
            )

    @property
    def header(self) -> list[str]:
        """What the readings are called."""
        refused = [f"{plain(name)}: OOD images refused" for name in self.rows[0].ood]
        return [
            "Error among answered (95 %)",
            "Answered",
            "Refused",
            "Answer if uncertainty is at most",
            *refused,
        ]

    def readings(self, row: Refusal) -> list[str]:
        """The numbers of a row, as people read them."""
        low, high = row.interval
        return [
            f"{share(row.error)} ({100 * low:.1f} to {100 * high:.1f})",
            f"{row.answered:,} of {row.total:,}",
            share(row.share),
            number(row.threshold, 6),
            *(share(refused) for refused in row.ood.values()),
        ]

    def html(self) -> str:
        axes = _Axes(max(row.error for row in self.rows))
        data = [
            {
                "texts": self.readings(row),
                "said": f"error {share(row.error)}, {row.answered:,} of {row.total:,} answered",
                "x": axes.x(row.share),
                "y": axes.y(row.error),
            }
            for row in self.rows
        ]
        table = Table(
            self.title,
            ("Asked to refuse", *self.header),
            [(f"{percent} %", *self.readings(self.rows[percent])) for percent in range(0, SHARES, 10)],
            numeric=frozenset(range(len(self.header) + 1)),
        )
        return (
            f'<div class="refusal" data-block="refusal">\n{self._control()}\n{self._curve(axes)}\n'
            f"<details open><summary>The same as a table</summary>\n{table.html()}\n</details>\n"
            f"{data_script({'rows': data})}\n</div>"
        )

    def _control(self) -> str:
        texts = zip(self.header, self.readings(self.rows[FIRST]), strict=True)
        readings = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in texts
        )
        slider = attributes(type="range", min=0, max=SHARES - 1, step=1, value=FIRST)
        return (
            f'<div class="control" hidden><label>Refuse the most uncertain <span class="asked">{FIRST} %</span>'
            f'<input{slider}></label>\n<dl class="readings">{readings}</dl></div>'
        )

    def _curve(self, axes: _Axes) -> str:
        first, last = self.rows[0], self.rows[-1]
        band = [(row.share, row.interval[1]) for row in self.rows]
        band += [(row.share, row.interval[0]) for row in reversed(self.rows)]
        perfect = [
            (row.share, max(0, first.wrong - (first.total - row.answered)) / row.answered)
            for row in self.rows
        ]
        level = [(0, first.error), (last.share, first.error)]
        own = [(row.share, row.error) for row in self.rows]
        lines = (
            f'<polygon class="band" points="{axes.points(band)}"></polygon>'
            f'<polyline class="random" points="{axes.points(level)}"></polyline>'
            f'<polyline class="oracle" points="{axes.points(perfect)}"></polyline>'
            f'<polyline class="own" points="{axes.points(own)}"></polyline>'
            f'<circle class="mark" r="6" cx="{axes.x(first.share)}" cy="{axes.y(first.error)}" visibility="hidden">'
            "</circle>"
        )
        said = (
            f"Curve of the error among the answers over the share of refused queries: {share(first.error)} if all "
            f"{first.total:,} are answered, {share(self.rows[FIRST].error)} if {share(self.rows[FIRST].share)} are "
            f"refused, {share(self.rows[50].error)} at {share(self.rows[50].share)}."
        )
        opening = attributes(viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=said)
        return (
            f'<figure class="curve"><svg{opening}>{axes.html()}{lines}</svg>\n<figcaption>Solid: refused by '
            "uncertainty, with its 95 % interval. Dashed: if it were known which answers are wrong. Dotted: refused at "
            "random.</figcaption></figure>"
        )


class _Axes:
    """Shares of 0 to 1 across, errors of 0 to a round number above the largest upwards."""

    def __init__(self, largest: float) -> None:
        size = max(largest, 0.004) / 5
        power = 10.0 ** math.floor(math.log10(size))
        # The round number, 1, 2 or 5 times a power of ten, that is not smaller.
        self.step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= size * (1 - 1e-9))
        self.top = min(1.0, self.step * math.ceil(max(largest, 0.004) / self.step + 0.3))

    def x(self, value: float) -> float:
        return round(LEFT + value * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - min(value / self.top, 1.0) * (HEIGHT - TOP - BOTTOM), 1)

    def points(self, values: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{self.x(across)},{self.y(up)}" for across, up in values)

    def html(self) -> str:
        """Grid, numbers and names of the axes."""
        parts = []
        for count in range(math.floor(self.top / self.step + 1e-9) + 1):
            value = count * self.step
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"></line>')
            parts.append(f'<text x="{LEFT - 5}" y="{y + 4}" text-anchor="end">{100 * value:.3g} %</text>')
        for percent in range(0, 101, 20):
            parts.append(
                f'<text x="{self.x(percent / 100)}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{percent} %</text>'
            )
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(
            f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">'
            "refused (across), error among answered (up)</text>"
        )
        return "".join(parts)
