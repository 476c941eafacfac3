"""Pictures of `url-small`: scores over recall, the questions of the URL papers, and the riskiest images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness.suites import Benchmark, Row
from experiments.harness.suites.judging import GALLERY_DISTANCE, MATCH_RISK
from experiments.harness.suites.leaderboard import first_of
from experiments.harness.suites.measuring import BESIDE
from experiments.harness.suites.running import V1
from experiments.harness.suites.sets import UNSEEN
from experiments.pictures import PictureRow, extreme_pictures
from experiments.url_small_questions import RECALL, columns, safe_means, scores_of_part, strengths
from laplacian_metric.metrics.evaluation import OWN
from laplacian_metric.report.plots import COLOURS, MARKERS, as_png

Look = dict[str, Any]
AXES = {
    "R-AUROC of seen classes (upstream)": "Does upstream quality predict downstream?",
    RECALL: "Is there a trade-off with R@1?",
    "crops": "Do crops rank scores as errors do?",
    "people": "Do people rank scores as errors do?",
    "unseen/seen": "Aleatoric or epistemic? Unseen against seen",
}
SHOWN = 10
RISK_HEAD = "risk-head"


def questions(listed: Sequence[Row], content: Mapping[str, Any]) -> bytes:
    """Return a picture with a panel for each question, in which every score of the image alone looks the same."""
    every = columns(listed)
    titles = [row.title if row.group != BESIDE else row.score for row, _ in every[RECALL]]
    looks = {title: _look(number) for number, title in enumerate(dict.fromkeys(titles))}
    panels = [name for name in AXES if every[name]]
    figure = Figure(figsize=(15.5, 7.6), dpi=100, layout="constrained")
    grid = figure.subplots(2, 4).flatten()
    for name, axes in zip(panels, grid, strict=False):
        _scattered(axes, name, every[name], looks)
    entries = [entry for entry in content["entries"].values() if entry["seeds"].get(V1)]
    _by_strength(grid[len(panels)], entries, looks)
    _safe(grid[len(panels) + 1], entries, looks)
    last = grid[len(panels) + 2 :]
    joint = {key: content["entries"].get(key, {}) for key in ("joint-risk", "joint-risk-stopped", RISK_HEAD)}
    if len(last) and all(entry.get("seeds", {}).get(V1) for entry in joint.values()):
        _joint(last[0], {entry["title"]: _rows_of(listed, name) for name, entry in joint.items()}, looks)
        last = last[1:]
    for axes in last:
        axes.axis("off")
    handles = [_legend_line(look, title) for title, look in looks.items()]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=7)
    return as_png(figure)


def _legend_line(look: Look, title: str) -> Any:
    """Return the line of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", label=title.replace("$", r"\$"), **look)


def _look(number: int) -> Look:
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number // len(COLOURS) % len(MARKERS)]}


def _title(row: Row) -> str:
    return row.score if row.group == BESIDE else row.title


def _scattered(axes: Axes, name: str, pairs: Sequence[tuple[Row, float]], looks: Mapping[str, Look]) -> None:
    for row, value in pairs:
        axes.plot(value, first_of(row.r_auroc), linestyle="", markersize=6, **looks[_title(row)])
    axes.axhline(0.5, color="#777777", linewidth=0.8, linestyle=":")
    _labelled(axes, AXES[name], name, "R-AUROC, unseen classes")


def _by_strength(axes: Axes, entries: Sequence[Mapping[str, Any]], looks: Mapping[str, Look]) -> None:
    for entry in entries:
        means = strengths(entry)
        axes.plot(
            [float(s) for s in means],
            list(means.values()),
            linewidth=1,
            markersize=4,
            **looks[entry["title"]],
        )
    axes.axhline(0.5, color="#777777", linewidth=0.8, linestyle=":")
    _labelled(
        axes, "Does it see that an image is spoilt?", "strength of corruption", "AUROC, spoilt against clean"
    )


def _safe(axes: Axes, entries: Sequence[Mapping[str, Any]], looks: Mapping[str, Look]) -> None:
    """Draw what rejecting a tenth of the queries gains: by the score of the image, the match risk, and at random."""
    for place, entry in enumerate(entries):
        own, match = safe_means(entry, OWN), safe_means(entry, MATCH_RISK)
        look = looks[entry["title"]]
        axes.plot(own["queries, at random"] - own["all"], place, "|", color="#777777", markersize=8)
        axes.plot(own["queries"] - own["all"], place, linestyle="", markersize=5, **look)
        axes.plot(
            match["queries"] - match["all"], place, linestyle="", markersize=5, markerfacecolor="none", **look
        )
    axes.set_yticks([])
    text = "gain in R@1; filled: image alone,\nhollow: match risk, bar: at random"
    _labelled(axes, "What does rejecting a tenth of the queries gain?", text, "")


def _joint(axes: Axes, by_title: Mapping[str, Row], looks: Mapping[str, Look]) -> None:
    for title, row in by_title.items():
        x = first_of(row.recall)
        axes.plot([x, x], [row.low, row.high], color=looks[title]["color"], linewidth=0.8, alpha=0.6)
        axes.plot(x, first_of(row.r_auroc), linestyle="", markersize=8, **looks[title])
    _labelled(axes, "Trained jointly, or with a stop-gradient?", RECALL, "R-AUROC, unseen classes")


def _rows_of(listed: Sequence[Row], entry: str) -> Row:
    return next(row for row in listed if row.entry == entry)


def _labelled(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)


def riskiest(run: Benchmark, track: str, entries: Mapping[str, Any]) -> bytes | None:
    """Return the surest and the riskiest images of unseen classes by three scores; None without a risk head."""
    scores = scores_of_part(run, track, entries, RISK_HEAD, run.suite.seeds[0])
    if scores is None:
        return None
    images = run.sets[track].images(UNSEEN + run.sets[track].track.main)
    lines = []
    for score, title in ((OWN, "risk head"), (GALLERY_DISTANCE, "distance"), (MATCH_RISK, "match risk")):
        order = torch.argsort(scores[score].double(), stable=True)
        low, high = order[:SHOWN], order.flip(0)[:SHOWN]
        lowest, highest = (list(images.select(rows).floats()) for rows in (low, high))
        lines.append(PictureRow(title, lowest, highest))
    return extreme_pictures(lines, "Unseen classes: the surest (blue) and the riskiest (red) sketches")


def scatter(listed: Sequence[Row]) -> bytes:
    """Return a picture of R-AUROC over R@1 of the main set, one point for each row, with intervals over classes."""
    figure = Figure(figsize=(8.4, 4.6), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for number, row in enumerate(listed):
        x, look = first_of(row.recall), _look(number)
        axes.plot([x, x], [row.low, row.high], color=look["color"], linewidth=0.8, alpha=0.6)
        label = row.title.replace("$", r"\$")
        axes.plot(x, first_of(row.r_auroc), linestyle="", label=label, markersize=6, **look)
    axes.axhline(0.5, color="#777777", linewidth=0.8, linestyle=":")
    axes.set(xlabel="R@1", ylabel="R-AUROC")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=7)
    return as_png(figure)
