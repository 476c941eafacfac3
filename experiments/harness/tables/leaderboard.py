"""The page of a benchmark: who detects wrong answers on unseen classes, at what recall, and what chose the settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.harness.suites.judging import GALLERY, IMAGE
from experiments.harness.suites.leaderboard import NOT_RUN, Row, rows
from experiments.harness.suites.measuring import BESIDE
from laplacian_metric.report.page import Page, Paragraph, Picture, Section, Table
from laplacian_metric.report.plots import COLOURS, MARKERS, as_png

ORDER = {IMAGE: 0, BESIDE: 1, GALLERY: 2}
SUMMARIES = {
    IMAGE: "These uncertainties are functions of the image alone: they work without a gallery.",
    BESIDE: "These scores of the image alone cost nothing: norms and distances in a method's first network.",
    GALLERY: (
        "These scores also see the retrieved items, and are therefore not compared with the others. Those marked "
        "“labels” need the classes of the gallery; the others do not."
    ),
}


def leaderboard(results: Mapping[str, Any], own: Sequence[Row] = ()) -> Page:
    """Return the page of a suite's results, with rows of one's own on top where there are any.

    Example:
        >>> results = {"suite": "quick", "version": 1, "title": "Quick", "choices": {}, "commit": "abc", "tracks": {}}
        >>> "version 1" in leaderboard(results).html()
        True
    """
    sections = [Section("What is measured", _explained(results))]
    if own:
        sections.append(Section("Yours", [_table("Your numbers", list(own))]))
    first, second = rows(results, "V1"), rows(results, "V2")
    for track, content in results["tracks"].items():
        of_track = [row for row in first if row.track == track]
        others = {row.entry: row for row in second if row.track == track and row.group == IMAGE}
        sections.append(Section(content["title"], _of_track(of_track, others, content)))
    sections.append(Section("Where the numbers come from", _origin(results)))
    return Page(results["title"], sections)


def _explained(results: Mapping[str, Any]) -> list[Paragraph]:
    rules = "; ".join(f"{name}: {text}" for name, text in results["choices"].items())
    return [
        Paragraph(
            "R-AUROC is the probability that a query whose nearest neighbour is wrong is more uncertain than one whose "
            "nearest neighbour is right, on classes that were not trained on: 0.5 is chance. R@1 is the share of "
            "right neighbours. A high R-AUROC at a low R@1 is no success: read both, as the scatter plots show them."
        ),
        Paragraph(f"Settings were chosen without any test image. {rules}." if rules else ""),
        Paragraph(
            "Intervals come from drawing whole classes, because new classes are the question; ± is the standard "
            "deviation over seeds. “Within” compares images of one class only, which leaves out the knowledge of which "
            "classes are hard."
        ),
    ]


def _of_track(listed: list[Row], others: Mapping[str, Row], content: Mapping[str, Any]) -> list[Any]:
    done = [row for row in listed if row.note != NOT_RUN]
    missing = [row.title for row in listed if row.note == NOT_RUN]
    blocks: list[Any] = []
    for group in ORDER:
        of_group = sorted((row for row in done if row.group == group), key=_by_detection)
        if not of_group:
            continue
        name = f"{group[0].upper()}{group[1:]}"
        blocks.append(Paragraph(SUMMARIES[group]))
        if group != BESIDE:
            blocks.append(scatter(of_group, f"{name}: R@1 and R-AUROC on the main set of unseen classes"))
        blocks.append(_table(name, of_group))
    chosen = [row for row in done if row.group == IMAGE]
    if chosen:
        blocks.append(_choices(chosen, others, content))
    if missing:
        blocks.append(Paragraph(f"Not run: {', '.join(missing)}."))
    return blocks


def _by_detection(row: Row) -> float:
    value = next(iter(row.r_auroc.values()), math.nan)
    return 1.0 if math.isnan(value) else -value


def _table(caption: str, listed: list[Row]) -> Table:
    """Return a table of rows, with R@1 and R-AUROC of every set."""
    sets = list(dict.fromkeys(name for row in listed for name in row.recall))
    header = [
        "method",
        "score",
        "sees",
        "seeds",
        "R@1",
        *(f"R-AUROC {name}" for name in sets),
        "interval",
        "mean",
        "rank",
    ]
    header += ["within", "nAUSC", "unseen/seen", "crops", "corrupted", "people", "ms", "parameters"]
    cells = []
    for row in listed:
        main = next(iter(row.r_auroc), "")
        values = [shown(row.r_auroc.get(name)) for name in sets]
        if values and not math.isnan(row.spread):
            values[0] += f" ± {shown(row.spread)}"
        sees = row.group if row.group != BESIDE else IMAGE
        cells.append(
            [
                row.title,
                row.score,
                sees + (", labels" if row.labels else ""),
                str(row.seeds),
                shown(row.recall.get(main)),
                *values,
                f"{shown(row.low)} to {shown(row.high)}" if not math.isnan(row.low) else "–",
                shown(row.mean_r_auroc),
                shown(row.rank, 1),
                *map(shown, (row.within, row.nausc, row.unseen, row.crop, row.corruption, row.people)),
                shown(row.milliseconds, 1),
                "–" if math.isnan(row.parameters) else f"{row.parameters / 1e6:.2f} M",
            ]
        )
    return Table(caption, header, cells, frozenset(range(3, len(header))))


def _choices(chosen: list[Row], others: Mapping[str, Row], content: Mapping[str, Any]) -> Table:
    """Return what chose the settings: both rules' settings, and the R-AUROC that they come to."""
    cells = []
    for row in chosen:
        settings = content["entries"][row.entry]["settings"]
        other = others.get(row.entry)
        cells.append(
            [
                row.title,
                _words(settings[row.setting]["options"]),
                shown(next(iter(row.r_auroc.values()), math.nan)),
                "–" if other is None else _words(settings[other.setting]["options"]),
                "–" if other is None else shown(next(iter(other.r_auroc.values()), math.nan)),
                row.note or "–",
            ]
        )
    header = ["method", "setting by V1", "R-AUROC", "setting by V2", "R-AUROC", "remark"]
    return Table("What chose the settings", header, cells, frozenset({2, 4}))


def _words(options: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the options of a setting in words.

    Example:
        >>> _words({"training": {"learning_rate": 0.001}})
        'learning_rate 0.001'
    """
    return (
        ", ".join(f"{key} {value}" for section in options.values() for key, value in section.items())
        or "as it is"
    )


def _origin(results: Mapping[str, Any]) -> list[Any]:
    environment = results.get("environment", {})
    lines = [f"Suite {results['suite']}, version {results['version']}; commit {results['commit']}."]
    if environment:
        lines.append(", ".join(f"{key} {value}" for key, value in environment.items() if value is not None))
    blocks: list[Any] = [Paragraph(line) for line in lines]
    digests = [
        [track, name, digest]
        for track, sets in results.get("digests", {}).items()
        for name, digest in sets.items()
    ]
    if digests:
        blocks.append(
            Table(
                "Digests of the sets: images and labels in their order", ["track", "set", "digest"], digests
            )
        )
    return blocks


def shown(value: float | None, digits: int = 3) -> str:
    """Return a number as text; a dash where there is none.

    Example:
        >>> shown(0.6934), shown(float("nan")), shown(1.5, 1)
        ('0.693', '–', '1.5')
    """
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def scatter(listed: Sequence[Row], caption: str) -> Picture:
    """Return a picture of R-AUROC over R@1 of the main set, one point for each row, with intervals over classes."""
    figure = Figure(figsize=(8.4, 4.6), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for number, row in enumerate(listed):
        main = next(iter(row.r_auroc))
        x, y = row.recall[main], row.r_auroc[main]
        label = f"{row.title}: {row.score}" if row.group == GALLERY else row.title
        colour = COLOURS[number % len(COLOURS)]
        if not math.isnan(row.low):
            axes.plot([x, x], [row.low, row.high], color=colour, linewidth=0.8, alpha=0.6)
        marker = MARKERS[number // len(COLOURS) % len(MARKERS)]
        axes.plot(x, y, marker, color=colour, label=label.replace("$", r"\$"), markersize=6)
    axes.axhline(0.5, color="#777777", linewidth=0.8, linestyle=":")
    axes.set_xlabel("R@1")
    axes.set_ylabel("R-AUROC")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=7)
    return Picture(as_png(figure), f"{caption}. The tables have the numbers.", caption)
