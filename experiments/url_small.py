"""The results of the suite `url-small`: compact files, tables, and the answers to the questions of the URL papers.

    python -m experiments.url_small --benchmark url-small --data data --out figures

reads the folder that `lam benchmark --suite url-small --out url-small` keeps. What was not run says so.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from laplacian_metric.core import tensor_file
from laplacian_metric.core.files import atomic_write
from laplacian_metric.core.method import FitData
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.encoder import Encoder
from laplacian_metric.metrics import statistics
from laplacian_metric.metrics.evaluation import OWN
from laplacian_metric.metrics.resampling import bootstrap_all
from laplacian_metric.report.leaderboard import scatter, shown
from laplacian_metric.runs.suites import Benchmark, Row, as_csv, load, rows
from laplacian_metric.runs.suites.fitting import Part
from laplacian_metric.runs.suites.judging import GALLERY, GALLERY_DISTANCE, IMAGE, MATCH_RISK, TRUST, Searched
from laplacian_metric.runs.suites.leaderboard import NOT_RUN
from laplacian_metric.runs.suites.measuring import BESIDE
from laplacian_metric.runs.suites.running import PARTS, SCORES, V1, WORK
from laplacian_metric.runs.suites.sets import TRAIN, UNSEEN, Sets
from laplacian_metric.runs.work import read_json, write_json

RESAMPLES = 300
DIGITS = 4
PAIRS = (  # first entry and score, second entry and score
    ("risk-head", OWN, "softmax", OWN),
    ("loss-head", OWN, "softmax", OWN),
    ("risk-head", OWN, "laplace-diag", OWN),
    ("risk-head", MATCH_RISK, "risk-head", GALLERY_DISTANCE),
    ("deterministic", MATCH_RISK, "deterministic", GALLERY_DISTANCE),
    ("risk-head", MATCH_RISK, "deterministic", MATCH_RISK),
    ("risk-head", TRUST, "risk-head", MATCH_RISK),
)


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    parts = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*parts, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def of_group(listed: Sequence[Row], group: str) -> str:
    """Return the table of one group of scores, the best R-AUROC on the main set first."""
    chosen = [row for row in listed if row.group == group and row.seeds]
    chosen.sort(key=lambda row: -_first(row.r_auroc))
    sets = list(chosen[0].recall) if chosen else []
    header = [
        "method",
        "score",
        "seeds",
        "R@1",
        *(f"R-AUROC {name}" for name in sets),
        "interval",
        "rank",
        "within",
    ]
    header += ["nAUSC", "unseen/seen", "crops", "corrupted", "people", "ms"]
    lines = []
    for row in chosen:
        values = [shown(row.r_auroc[name]) for name in sets]
        values[0] += "" if math.isnan(row.spread) else f" ± {shown(row.spread)}"
        ends = "–" if math.isnan(row.low) else f"{shown(row.low)} to {shown(row.high)}"
        numbers = (row.within, row.nausc, row.unseen, row.crop, row.corruption, row.people)
        score = row.score + (" (labels)" if row.labels else "")
        lines.append(
            [
                *(
                    row.title,
                    score,
                    str(row.seeds),
                    shown(_first(row.recall)),
                    *values,
                    ends,
                    shown(row.rank, 1),
                ),
                *(*map(shown, numbers), shown(row.milliseconds, 1)),
            ]
        )
    return table(header, lines)


def choices(content: Mapping[str, Any], first: Sequence[Row], second: Sequence[Row]) -> str:
    """Return the table of what chose the settings."""
    others = {row.entry: row for row in second if row.group == IMAGE}
    lines = []
    for row in first:
        if row.group != IMAGE or not row.seeds:
            continue
        settings, other = content["entries"][row.entry]["settings"], others[row.entry]
        lines.append(
            [
                row.title,
                _options(settings[row.setting]),
                shown(_first(row.r_auroc)),
                _options(settings[other.setting]),
                shown(_first(other.r_auroc)),
                row.note or "–",
            ]
        )
    return table(["method", "setting by V1", "R-AUROC", "by V2", "R-AUROC (one seed)", "remark"], lines)


def _options(setting: Mapping[str, Any]) -> str:
    sections = setting["options"].values()
    return ", ".join(f"{key} {value}" for section in sections for key, value in section.items()) or "–"


# --- comparisons over the same draws of classes ---


def compared(
    run: Benchmark, track: str, entries: Mapping[str, Any], pair: tuple[str, str, str, str]
) -> dict[str, Any] | None:
    """Return the difference of two scores' R-AUROC on the main set: means over seeds, and a paired interval.

    Each score is judged by the errors of its own space; every draw has the same classes for both. None where a part
    was not run.
    """
    differences, draws = [], []
    for seed in run.suite.seeds:
        sides = [_scores(run, track, entries, entry, seed) for entry in (pair[0], pair[2])]
        if sides[0] is None or sides[1] is None:
            continue
        first, second = (
            partial(_area, side, score) for side, score in zip(sides, (pair[1], pair[3]), strict=True)
        )
        ones = torch.ones(len(sides[0]["right"])).double()
        differences.append(float(first(ones) - second(ones)))
        draws.append(
            bootstrap_all(
                {"gap": lambda w, a=first, b=second: a(w) - b(w)},
                len(ones),
                resamples=RESAMPLES,
                groups=sides[0]["classes"],
            )["gap"]
        )
    if not differences:
        return None
    low, high = (sum(getattr(one, end) for one in draws) / len(draws) for end in ("low", "high"))
    return {
        "difference": sum(differences) / len(differences),
        "low": low,
        "high": high,
        "seeds": len(differences),
        "standard error": (high - low) / 3.92,
    }


def _area(side: Mapping[str, Tensor], score: str, weights: Tensor) -> Tensor:
    return statistics.auroc(side[score].double(), (~side["right"]).double(), weights)


def _scores(
    run: Benchmark, track: str, entries: Mapping[str, Any], entry: str, seed: int
) -> dict[str, Tensor] | None:
    chosen = entries.get(entry, {}).get("chosen", {})
    if V1 not in chosen:
        return None
    place = Part(track, entry, chosen[V1]["setting"], seed).place(run.out / WORK) / SCORES
    return tensor_file.load(place)[0] if place.is_file() else None


# --- questions ---


def across_models(listed: Sequence[Row]) -> list[list[str]]:
    """Return over the methods the rank correlation of R-AUROC on the main set with other columns."""
    own = [row for row in listed if row.group in (IMAGE, BESIDE) and row.seeds]
    columns: dict[str, Callable[[Row], float]] = {
        "R-AUROC of seen classes (upstream)": lambda row: row.upstream,
        "crops": lambda row: row.crop,
        "people": lambda row: row.people,
        "corrupted": lambda row: row.corruption,
        "unseen/seen": lambda row: row.unseen,
        "R@1": lambda row: _first(row.recall),
    }
    columns |= {
        f"R-AUROC {name}": (lambda row, name=name: row.r_auroc[name]) for name in list(own[0].r_auroc)[1:]
    }
    lines = []
    for name, column in columns.items():
        pairs = [(_first(row.r_auroc), column(row)) for row in own if not math.isnan(column(row))]
        if len(pairs) > 2:
            correlation = spearmanr(*zip(*pairs, strict=True))
            lines.append(
                [
                    name,
                    shown(float(correlation.statistic), 2),
                    shown(float(correlation.pvalue), 2),
                    str(len(pairs)),
                ]
            )
    return lines


def by_strength(content: Mapping[str, Any]) -> list[list[str]]:
    """Return the AUROC of corrupted images of growing strength, the mean over kinds, for every method's score."""
    lines = []
    for entry in content["entries"].values():
        parts = list(entry["seeds"].get(V1, {}).values())
        if not parts:
            continue
        numbers = [part["image"][entry["score"]] for part in parts]
        strengths = sorted({name.rsplit("-", 1)[1] for name in numbers[0]["corruption"]}, key=float)
        means = [
            _mean(
                value
                for one in numbers
                for name, value in one["corruption"].items()
                if name.endswith(f"-{s}")
            )
            for s in strengths
        ]
        lines.append(
            [entry["title"], *map(shown, means), shown(_mean(one["unseen_auroc"] for one in numbers))]
        )
    return lines


def safe(content: Mapping[str, Any]) -> list[list[str]]:
    """Return R@1 where a tenth of the queries is rejected, a tenth of the gallery dropped, or both."""
    lines = []
    for entry in content["entries"].values():
        parts = list(entry["seeds"].get(V1, {}).values())
        for score in (OWN, MATCH_RISK, TRUST) if parts else ():
            keys = ("all", "queries", "queries, at random", "gallery", "both", "both, at random")
            means = [_mean(part["safe"][score][key] for part in parts) for key in keys]
            lines.append([entry["title"], entry["score"] if score == OWN else score, *map(shown, means)])
    return lines


def many_shot(run: Benchmark, track: str, seeds: Sequence[int]) -> list[float]:
    """Return the R-AUROC of a risk head that was trained on half of the unseen images, on the other half.

    No method may do this: it says how much the features hold.
    """
    from laplacian_metric.methods.risk.loss_prediction import LossPrediction, pretrain

    kept_in = run.out / PARTS / track / "many-shot.json"
    if (known := read_json(kept_in)) is not None and known["seeds"] == list(seeds):
        return list(known["r_auroc"])
    sets = run.sets[track]
    images = sets[UNSEEN + sets.track.main]
    head = run.fitting.fit(Part(track, "untrained", run.choose(track, "untrained", V1).setting, 0)).encoder
    points = nn.functional.normalize(head.raw(images.inputs).detach())
    right = torch.from_numpy(Searched.of(points, images.labels).right)
    values = []
    for seed in seeds:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        half, rest = order[: len(order) // 2], order[len(order) // 2 :]
        train, kept = half[: 9 * len(half) // 10], half[9 * len(half) // 10 :]
        data = FitData(_rows(images, train), _rows(images, kept))
        risk, _ = pretrain(Encoder(nn.Identity(), head.head), data, LossPrediction(seed=seed), progress=False)
        with torch.inference_mode():
            uncertainty = risk(images.inputs[rest]).flatten()
        wrong = (~right[rest]).double()
        values.append(float(statistics.auroc(uncertainty.double(), wrong, torch.ones(len(rest)).double())))
    write_json(kept_in, {"seeds": list(seeds), "r_auroc": values})
    return values


def _rows(images: Dataset, rows_: Tensor) -> Dataset:
    return Dataset(images.inputs[rows_], images.labels[rows_], split="train")


def caching(sets: Sets, content: Mapping[str, Any]) -> str:
    """Return in words what cached features save: the backbone's time against that of a head's training."""
    parts = [
        (entry["title"], part)
        for name, entry in content["entries"].items()
        for part in entry["seeds"].get(V1, {}).values()
        if name == "risk-head"
    ]
    if not parts:
        return "not run\n"
    backbone = _mean(part["ms"]["backbone"] for _, part in parts)
    fit = _mean(part["seconds"]["fit"] for _, part in parts)
    number, epochs = len(sets[TRAIN]), 6
    once = backbone * number / 1000
    whole = epochs * once + fit
    return (
        f"The backbone takes {backbone:.1f} ms for an image on this machine while it is busy: {once:.0f} s for the "
        f"{number:,} training images, and {epochs * once:.0f} s for {epochs} epochs without a cache. The risk head's "
        f"fit on cached features took {fit:.0f} s, so that the cache saves a factor of {whole / (once + fit):.1f} with "
        f"the first pass counted, and {whole / fit:.0f} for every further head.\n"
    )


def acceptance(
    run: Benchmark, track: str, listed: Sequence[Row], pairs: Mapping[str, Any]
) -> list[list[str]]:
    """Return what the suite was expected to show, and what it shows."""
    best = [row for row in listed if row.group == GALLERY and row.score == MATCH_RISK and row.seeds]
    lines = []
    for row in best:
        value = _first(row.r_auroc)
        lines.append(
            [f"match risk of {row.title} is at least 0.69", shown(value), "yes" if value >= 0.69 else "no"]
        )
    for name, pair in pairs.items():
        if MATCH_RISK in name and GALLERY_DISTANCE in name and pair is not None:
            ok = pair["difference"] >= 0.03 and pair["difference"] > 2 * pair["standard error"]
            lines.append(
                [f"{name}: at least 0.03 and two standard errors", _interval(pair), "yes" if ok else "no"]
            )
        if name.startswith("risk-head: own less softmax") and pair is not None:
            ok = pair["difference"] > 2 * pair["standard error"]
            lines.append([f"{name}: by two standard errors", _interval(pair), "yes" if ok else "no"])
    risk = next(
        (row for row in listed if row.entry == "risk-head" and row.group == IMAGE and row.seeds), None
    )
    if risk is not None:
        value = _first(risk.r_auroc)
        lines.append(["risk head is at least 0.645", shown(value), "yes" if value >= 0.645 else "no"])
        inside = "yes" if 0.47 <= risk.unseen <= 0.53 else "no"
        lines.append(["risk head, unseen against seen, is within 0.47 and 0.53", shown(risk.unseen), inside])
    return lines


def _interval(pair: Mapping[str, float]) -> str:
    return f"{pair['difference']:+.3f} ({pair['low']:+.3f} to {pair['high']:+.3f})"


def _first(values: Mapping[str, float]) -> float:
    return next(iter(values.values()), math.nan)


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def rounded(content: Any) -> Any:
    """Return plain values with numbers of four digits."""
    if isinstance(content, dict):
        return {key: rounded(value) for key, value in content.items()}
    if isinstance(content, list):
        return [rounded(value) for value in content]
    return round(content, DIGITS) if isinstance(content, float) and math.isfinite(content) else content


def text_of(run: Benchmark, track: str, results: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the tables and answers of one track in Markdown, and what else was computed for them."""
    content = results["tracks"][track]
    first = [row for row in rows(results, "V1") if row.track == track]
    second = [row for row in rows(results, "V2") if row.track == track]
    pairs = {
        f"{a}: {b} less {c}: {d}": compared(run, track, content["entries"], (a, b, c, d))
        for a, b, c, d in PAIRS
    }
    missing = [row.title for row in first if row.note == NOT_RUN]
    ceiling = many_shot(run, track, run.suite.seeds) if run.suite.tracks[track].network.frozen else []
    parts = [f"# {content['title']}\n", f"Suite {results['suite']}, version {results['version']}.\n"]
    if missing:
        parts.append(f"Not run: {', '.join(missing)}.\n")
    for group in (IMAGE, BESIDE, GALLERY):
        parts += [f"## {group.capitalize()}\n", of_group(first, group)]
    parts += ["## What chose the settings\n", choices(content, first, second)]
    header = ["expected", "measured", "so"]
    parts += ["## Expected and measured\n", table(header, acceptance(run, track, first, pairs))]
    lines = [
        [name, "–" if one is None else _interval(one), "–" if one is None else str(one["seeds"])]
        for name, one in pairs.items()
    ]
    parts += [
        "## Differences of R-AUROC over the same draws of classes\n",
        table(["first less second", "difference", "seeds"], lines),
    ]
    header = ["column", "rank correlation with R-AUROC on the main set", "p", "scores"]
    parts += ["## Does R-AUROC rank scores as other columns do?\n", table(header, across_models(first))]
    strengths = list(map(str, run.suite.tracks[track].strengths))
    parts += ["## Corruptions of growing strength, and unseen against seen classes\n"]
    parts += [table(["method", *strengths, "unseen/seen"], by_strength(content))]
    header = ["method", "score", "all", "a tenth of queries rejected", "... at random"]
    header += ["a tenth of the gallery dropped", "both", "... at random"]
    parts += ["## R@1 of safe retrieval\n", table(header, safe(content))]
    if ceiling:
        parts += [
            "## Many-shot ceiling\n",
            f"A risk head that is trained on half of the unseen images detects the errors of the "
            f"other half with an R-AUROC of {shown(_mean(ceiling))} ({', '.join(map(shown, ceiling))} by seed).\n",
        ]
        parts += ["## What caching saves\n", caching(run.sets[track], content)]
    return "\n".join(parts), {"pairs": pairs, "many-shot": ceiling}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the compact results and the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmark", type=Path, required=True, help="folder of `lam benchmark`")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of figures")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    run = Benchmark(load("url-small"), options.benchmark, options.data)
    results = run.results()
    texts: dict[Path, str | bytes] = {}
    for track in results["tracks"]:
        name = track.replace("-", "_")
        text, more = text_of(run, track, results)
        texts[options.out / "tables" / f"url_small_{name}.md"] = text
        compact = {**results, "tracks": {track: results["tracks"][track]}, "compared": more}
        compact["digests"] = results["digests"][track]
        place = options.out / "results" / "url_small"
        texts[place / f"{name}.json"] = json.dumps(rounded(compact), separators=(",", ":")) + "\n"
        texts[place / f"{name}.csv"] = as_csv(
            [row for rule in ("V1", "V2") for row in rows(results, rule) if row.track == track]
        )
        listed = [
            row for row in rows(results, "V1") if row.track == track and row.seeds and row.group == IMAGE
        ]
        picture = scatter(listed, f"{results['tracks'][track]['title']}: scores of the image alone")
        texts[options.out / "plots" / f"url_small_{name}.png"] = picture.png
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_bytes(text.encode() if isinstance(text, str) else text)


if __name__ == "__main__":
    main()
