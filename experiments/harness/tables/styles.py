"""How a method looks in every figure, and what figures have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from experiments.harness.tables.panels import GRID, SMALL, panels, shared_legend  # noqa: F401 (until the report draws its own)
from experiments.harness.tables.seeds import Cell

# Colours that are told apart with any colour vision (most by Paul Tol); markers and dashes differ as well.
_KNOWN = {
    "deterministic": ("#777777", "x", (0, (1, 1))),
    "ensemble": ("#994f00", "s", (0, (5, 1.5))),
    "pfe": ("#ee6677", "D", (0, (3, 1, 1, 1))),
    "soft-contrastive": ("#7a8b00", "d", (0, (1, 1))),
    "hib": ("#aa3377", "^", (0, (5, 1.5))),
    "triplet": ("#aaaaaa", "1", (0, (2, 1))),
    "triplet-regression": ("#bb7744", "2", (0, (4, 1, 1, 1))),
    "btl": ("#5566aa", "3", (0, (6, 2))),
    "mc-dropout": ("#ccbb44", "v", (0, (3, 1, 1, 1))),
    "swag": ("#66ccee", "<", (0, (5, 1.5))),
    "vmf": ("#228833", "P", (0, (3, 1, 1, 1))),
    "proxies": ("#cc79a7", "p", (0, (6, 2))),
    "softmax": ("#56b4e9", ">", (0, (1, 1))),
    "softmax-ensemble": ("#0072b2", "s", (0, (2, 1))),
    "het-xl": ("#d55e00", "d", (0, (4, 1, 1, 1))),
    "sngp": ("#4b0082", "v", (0, (6, 2))),
    "loss-prediction": ("#808000", "h", (0, (5, 1.5))),
    "joint-loss-prediction": ("#556b2f", "H", (0, (3, 1, 1, 1))),
    "unlabelled": ("#a0522d", "X", (0, (1, 1))),
    "nt-xent": ("#708090", "8", (0, (2, 1))),
    "isif": ("#9370db", "<", (0, (4, 1, 1, 1))),
    "umm": ("#20b2aa", "P", (0, (6, 2))),
    "laplace": ("#4477aa", "o", "-"),
    "online-laplace": ("#000000", "*", "-"),
}
_FURTHER = ("#ff8c1a", "#009988", "#882255", "#332288", "#ddaa33", "#bb5566", "#88ccee", "#117733")
_MARKERS = "hpX>d8H"
_DASHES = ("-", (0, (6, 2)), (0, (2, 1)), (0, (4, 1, 1, 1)))


@dataclass(frozen=True)
class Style:
    """Colour, marker and dashes of a method."""

    colour: str
    marker: str
    dashes: Any

    def line(self, width: float = 1.5) -> dict[str, Any]:
        """As matplotlib's plot takes it."""
        return {"color": self.colour, "linestyle": self.dashes, "linewidth": width}


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A style for every name: methods that are registered have their own, others get further ones in their order.

    Given all names of a set of figures, each looks the same in all of them.

    Example:
        >>> by_name = styles(["mine", "laplace"])
        >>> by_name["laplace"].colour, by_name["mine"].colour
        ('#4477aa', '#ff8c1a')
    """
    looks: dict[str, Style] = {}
    further = 0
    for name in dict.fromkeys(names):
        if name in _KNOWN:
            looks[name] = Style(*_KNOWN[name])
            continue
        # The dashes change with each round of colours, so that 32 styles differ.
        dashes = _DASHES[further // len(_FURTHER) % len(_DASHES)]
        looks[name] = Style(_FURTHER[further % len(_FURTHER)], _MARKERS[further % len(_MARKERS)], dashes)
        further += 1
    return looks


def say_absent(axes: Axes, label: str, cell: Cell, has: Sequence[object]) -> bool:
    """Whether there is nothing to draw for a cell; the legend then says why."""
    if has:
        return False
    reason = "has none" if cell.done else "failed" if cell.failed else "missing"
    axes.plot([], [], linestyle="none", label=f"{label}: {reason}")
    return True


def named(label: str, cell: Cell, drawn: int) -> str:
    """The label, with the number of seeds where some are not there."""
    return label if drawn == cell.expected else f"{label} ({drawn} of {cell.expected} seeds)"


def style_of(label: str, looks: Mapping[str, Style] | None, labels: Iterable[str]) -> Style:
    """The style of a label among others; without styles they are taken from the labels."""
    return (styles(labels) if looks is None else looks)[label]
