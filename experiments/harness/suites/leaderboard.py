"""From the parts of a suite to a leaderboard: means over seeds, spreads, intervals and ranks, and their tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pandas as pd

from experiments.harness.suites.judging import GALLERY, GALLERY_DISTANCE, IMAGE, LABELLED, MATCH_RISK, TRUST
from experiments.harness.suites.measuring import BESIDE
from experiments.harness.suites.sets import SEEN, UNSEEN
from experiments.harness.tables.table_text import plain_table
from experiments.harness.work import write_text
from laplacian_metric.metrics.evaluation import OWN

NOT_RUN, NAME = "not run", "leaderboard"
SHOWN_OF_GALLERY = (GALLERY_DISTANCE, MATCH_RISK, TRUST)


@dataclass(frozen=True)
class Row:
    """One score of one entry on one track, means over seeds; NaN where something is not measured.

    Attributes:
        track, entry, title: whose.
        score: which of its scores.
        group: "image alone", "image and gallery", or "beside the method" for what its network gives without it.
        labels: whether the score needs the labels of the gallery.
        rule: the choice of the setting, "V1" or "V2".
        setting: that it took.
        note: why another rule chose, where it did.
        seeds: how many there are.
        recall, r_auroc: by set of unseen classes.
        spread: the standard deviation of the main set's R-AUROC over seeds.
        low, high: the interval of the main set's R-AUROC over classes, mean over seeds.
        mean_r_auroc: over the sets of unseen classes.
        rank: the mean over these sets of the rank among rows of the same group; the first has rank 1.
        within: R-AUROC within classes of the main set.
        nausc: normalised area under the sparsification curve of the main set.
        unseen: AUROC of unseen against seen classes.
        crop: share of crops that are more uncertain than their image.
        corruption: AUROC of corrupted images against clean ones, the mean over kinds and strengths.
        people: rank correlation with the entropy of people's labels.
        upstream: R-AUROC of test images of the training classes.
        milliseconds: for an image.
        parameters: of all networks.
    """

    track: str
    entry: str
    title: str
    score: str
    group: str
    labels: bool = False
    rule: str = "V1"
    setting: int = 0
    note: str = ""
    seeds: int = 0
    recall: dict[str, float] = field(default_factory=dict)
    r_auroc: dict[str, float] = field(default_factory=dict)
    spread: float = math.nan
    low: float = math.nan
    high: float = math.nan
    mean_r_auroc: float = math.nan
    rank: float = math.nan
    within: float = math.nan
    nausc: float = math.nan
    unseen: float = math.nan
    crop: float = math.nan
    corruption: float = math.nan
    people: float = math.nan
    upstream: float = math.nan
    milliseconds: float = math.nan
    parameters: float = math.nan


def rows(results: Mapping[str, Any], rule: str = "V1") -> list[Row]:
    """Return the rows of `Benchmark.results`, ranked within each track and group.

    An entry that was not run has a row without numbers.
    """
    listed: list[Row] = []
    for track, content in results["tracks"].items():
        of_track = [
            row for name, one in content["entries"].items() for row in _of_entry(track, name, one, rule)
        ]
        listed += ranked(of_track)
    return listed


def _of_entry(track: str, name: str, entry: Mapping[str, Any], rule: str) -> list[Row]:
    base = Row(track, name, entry["title"], entry["score"], IMAGE, rule=rule)
    parts = list(entry["seeds"].get(rule, {}).values())
    if not parts:
        return [replace(base, note=NOT_RUN)]
    chosen = entry["chosen"][rule]
    base = replace(base, setting=chosen["setting"], note=chosen["note"], seeds=len(parts))
    groups = parts[0]["groups"]
    wanted = [(entry["score"], IMAGE)]
    if (
        entry["method"]["name"] == "deterministic"
    ):  # what costs nothing is shown once, beside the networks themselves
        wanted += [(score, BESIDE) for score, group in groups.items() if group == BESIDE]
        wanted += [(score, GALLERY) for score, group in groups.items() if group == GALLERY]
    else:
        wanted += [(score, GALLERY) for score in SHOWN_OF_GALLERY]
    return [row_of(replace(base, score=score, group=group), parts) for score, group in wanted]


def row_of(base: Row, parts: Sequence[Mapping[str, Any]]) -> Row:
    """Return the row of one score from the parts of all seeds."""
    unseen = [name for name in parts[0]["sets"] if name.startswith(UNSEEN)]
    main = unseen[0]
    interval_name = OWN if base.group == IMAGE else base.score

    def of_set(name: str, key: str) -> list[float]:
        return [
            _number(part["sets"].get(name, {}).get("scores", {}).get(base.score, {}).get(key))
            for part in parts
        ]

    def of_image(key: str) -> float:
        return _mean(_number(part["image"].get(base.score, {}).get(key)) for part in parts)

    def end(key: str) -> float:
        return _mean(
            _number(part["intervals"].get(main, {}).get(interval_name, {}).get(key)) for part in parts
        )

    corrupted = [part["image"].get(base.score, {}).get("corruption") for part in parts]
    r_auroc = {name.removeprefix(UNSEEN): _mean(of_set(name, "r_auroc")) for name in unseen}
    defined = [value for value in of_set(main, "r_auroc") if not math.isnan(value)]
    return replace(
        base,
        labels=base.score in LABELLED,
        recall={
            name.removeprefix(UNSEEN): _mean(p["sets"][name]["recall@1"] for p in parts) for name in unseen
        },
        r_auroc=r_auroc,
        spread=stdev(defined) if len(defined) > 1 else math.nan,
        low=end("low"),
        high=end("high"),
        mean_r_auroc=_mean(r_auroc.values()),
        within=_mean(of_set(main, "r_auroc_within")),
        nausc=_mean(of_set(main, "nausc")),
        unseen=of_image("unseen_auroc"),
        crop=of_image("crop_test"),
        corruption=_mean(_mean(map(_number, one.values())) for one in corrupted if one),
        people=of_image("people"),
        upstream=_mean(of_set(SEEN, "r_auroc")),
        milliseconds=_mean(sum(part["ms"].values()) for part in parts),
        parameters=_mean(float(part["parameters"]) for part in parts),
    )


def ranked(listed: Sequence[Row]) -> list[Row]:
    """Return rows with their mean ranks within their group; rows without numbers have none.

    Example:
        >>> two = [Row("t", n, n, "own", IMAGE, r_auroc={"a": v}) for n, v in (("x", 0.6), ("y", 0.7))]
        >>> [row.rank for row in ranked(two)]
        [2.0, 1.0]
    """
    done = []
    for row in listed:
        group = [other for other in listed if other.group == row.group and other.r_auroc]
        places = [
            1 + sum(other.r_auroc.get(name, -1.0) > value for other in group)
            for name, value in row.r_auroc.items()
            if not math.isnan(value)
        ]
        done.append(replace(row, rank=float(mean(places)) if places else math.nan))
    return done


def frame(listed: Sequence[Row]) -> pd.DataFrame:
    """Return rows as a table, those entries that are by set each in a column of its own.

    Example:
        >>> frame([Row("t", "x", "X", "own", IMAGE, r_auroc={"a": 0.6})])["r_auroc a"].tolist()
        [0.6]
    """
    flat: list[dict[str, Any]] = []
    for row in listed:
        values: dict[str, Any] = {}
        for name, value in vars(row).items():
            values |= (
                {f"{name} {key}": one for key, one in value.items()}
                if isinstance(value, dict)
                else {name: value}
            )
        flat.append(values)
    return pd.DataFrame(flat)


# --- as text ---


def shown(value: float | None, digits: int = 3) -> str:
    """Return a number as text; a dash where there is none.

    Example:
        >>> shown(0.6934), shown(float("nan")), shown(1.5, 1)
        ('0.693', '–', '1.5')
    """
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def first_of(values: Mapping[str, float]) -> float:
    """Return the number of the main set, which is the first; NaN where there is none."""
    return next(iter(values.values()), math.nan)


def of_group(listed: Sequence[Row], group: str) -> str:
    """Return the table of one group of scores, the best R-AUROC on the main set first."""
    chosen = [row for row in listed if row.group == group and row.seeds]
    chosen.sort(key=lambda row: -first_of(row.r_auroc))
    sets = list(chosen[0].recall) if chosen else []
    header = ["method", "score", "seeds", "R@1", *(f"R-AUROC {name}" for name in sets)]
    header += ["interval", "rank", "within", "nAUSC", "unseen/seen", "crops", "corrupted", "people", "ms"]
    lines = []
    for row in chosen:
        values = [shown(row.r_auroc[name]) for name in sets]
        values[0] += "" if math.isnan(row.spread) else f" ± {shown(row.spread)}"
        ends = "–" if math.isnan(row.low) else f"{shown(row.low)} to {shown(row.high)}"
        score = row.score + (" (labels)" if row.labels else "")
        numbers = (row.within, row.nausc, row.unseen, row.crop, row.corruption, row.people)
        line = [
            row.title,
            score,
            str(row.seeds),
            shown(first_of(row.recall)),
            *values,
            ends,
            shown(row.rank, 1),
        ]
        lines.append([*line, *map(shown, numbers), shown(row.milliseconds, 1)])
    return plain_table(header, lines)


def choices(content: Mapping[str, Any], first: Sequence[Row], second: Sequence[Row]) -> str:
    """Return the table of what chose the settings of a track, by both rules."""
    others = {row.entry: row for row in second if row.group == IMAGE}
    lines = []
    for row in first:
        if row.group != IMAGE or not row.seeds:
            continue
        settings, other = content["entries"][row.entry]["settings"], others[row.entry]
        by_rule = [
            text
            for one in (row, other)
            for text in (_options(settings[one.setting]), shown(first_of(one.r_auroc)))
        ]
        lines.append([row.title, *by_rule, row.note or "–"])
    return plain_table(["method", "setting by V1", "R-AUROC", "by V2", "R-AUROC (one seed)", "remark"], lines)


def _options(setting: Mapping[str, Any]) -> str:
    sections = setting["options"].values()
    return ", ".join(f"{key} {value}" for section in sections for key, value in section.items()) or "–"


def track_text(results: Mapping[str, Any], track: str) -> list[str]:
    """Return the tables of one track in Markdown: its groups of scores, and what chose the settings."""
    content = results["tracks"][track]
    first, second = ([row for row in rows(results, rule) if row.track == track] for rule in ("V1", "V2"))
    parts = [f"# {content['title']}\n", f"Suite {results['suite']}, version {results['version']}.\n"]
    if missing := [row.title for row in first if row.note == NOT_RUN]:
        parts.append(f"Not run: {', '.join(missing)}.\n")
    for group in (IMAGE, BESIDE, GALLERY):
        parts += [f"## {group.capitalize()}\n", of_group(first, group)]
    return [*parts, "## What chose the settings\n", choices(content, first, second)]


def write(results: Mapping[str, Any], own: Sequence[Row], out: Path) -> str:
    """Write the leaderboard as Markdown, CSV and JSON into a folder, and return the Markdown."""
    every = [*own, *rows(results, "V1"), *(row for row in rows(results, "V2") if row.seeds)]
    parts = []
    if own:
        parts += ["# Yours\n", *(of_group(own, group) for group in (IMAGE, GALLERY))]
    for track in results["tracks"]:
        parts += track_text(results, track)
    parts.append(f"Commit {results['commit']}.\n")
    table = frame(every)
    kept = table.astype(object).where(table.notna(), None)
    texts = {
        "md": "\n".join(parts),
        "csv": table.to_csv(index=False),
        "json": json.dumps({**results, "rows": kept.to_dict("records")}, indent=1, ensure_ascii=False) + "\n",
    }
    out.mkdir(parents=True, exist_ok=True)
    for suffix, text in texts.items():
        write_text(out / f"{NAME}.{suffix}", text)
    return "\n".join(parts)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _mean(values: Iterable[float]) -> float:
    """Return the mean of what is known; NaN where nothing is."""
    defined = [value for value in values if not math.isnan(value)]
    return mean(defined) if defined else math.nan
