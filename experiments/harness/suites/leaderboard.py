"""From the parts of a suite to rows: means over seeds, spreads, intervals and ranks, as CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import mean, stdev
from typing import Any

from laplacian_metric.metrics.evaluation import OWN
from experiments.harness.suites.judging import GALLERY, GALLERY_DISTANCE, IMAGE, LABELLED, MATCH_RISK, TRUST
from experiments.harness.suites.measuring import BESIDE
from experiments.harness.suites.sets import SEEN, UNSEEN

NOT_RUN = "not run"
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


def as_csv(listed: Sequence[Row]) -> str:
    """Return rows as the text of a CSV file; what is not measured is empty.

    Example:
        >>> as_csv([Row("t", "x", "X", "own", IMAGE, r_auroc={"a": 0.6})]).splitlines()[1].split(",")[:5]
        ['t', 'x', 'X', 'own', 'image alone']
    """
    flat = [flattened(row) for row in listed]
    header = list(dict.fromkeys(key for row in flat for key in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, header, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return stream.getvalue()


def flattened(row: Row) -> dict[str, Any]:
    """Return the entries of a row by name, those by set each under a name of its own; None for NaN."""
    values: dict[str, Any] = {}
    for entry in fields(row):
        value = getattr(row, entry.name)
        named = (
            {f"{entry.name} {name}": one for name, one in value.items()}
            if isinstance(value, dict)
            else {entry.name: value}
        )
        values |= {
            name: None if isinstance(one, float) and math.isnan(one) else one for name, one in named.items()
        }
    return values


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _mean(values: Iterable[float]) -> float:
    """Return the mean of what is known; NaN where nothing is."""
    defined = [value for value in values if not math.isnan(value)]
    return mean(defined) if defined else math.nan
