"""Tables of the results: by setting, beside every rival, and by the number of validation queries."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.trust.measure import MEASURES, NOVELTY, OWN, TRUST
from laplacian_metric.core.files import atomic_write

LEAST_WRONG = 50  # settings with fewer errors are printed, not judged
DETECTORS = ("gallery distance", "feature distance", "kNN feature distance", "LOF", "Mahalanobis")
SIZES = ("100", "300", "1000")
Result = dict[str, Any]


ORIGIN = (
    "Made by `python -m experiments.trust --data DATA --cache CACHE --out figures` from the files in "
    "`figures/results/trust`."
)


def write_tables(results: Path, tables: Path) -> None:
    """Write the tables of all result files."""
    by_name: dict[str, list[Result]] = defaultdict(list)
    for path in sorted(results.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        by_name[result["name"]].append(result)
    further = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted((results / "further").glob("*.json"))
    ]
    tables.mkdir(parents=True, exist_ok=True)
    for name, title, text in (
        ("trust", "Trust, setting by setting", settings_table(by_name)),
        ("trust_rivals", "Trust beside scores that cost nothing", rivals_table(by_name)),
        ("trust_queries", "Trust with fewer and more validation queries", queries_table(by_name)),
        ("trust_promise", "A promised error rate, by the score that refuses", promise_table(further)),
        ("trust_posterior", "What a posterior adds to Trust", posterior_table(further)),
    ):
        with atomic_write(tables / f"{name}.md") as temporary:
            temporary.write_text(f"# {title}\n\n{text.rstrip()}\n\n{ORIGIN}\n", encoding="utf-8")


def mean_of(seeds: list[Result], value: Callable[[Result], float]) -> float:
    """Return the mean over the seeds of a setting."""
    return float(np.mean([value(seed) for seed in seeds]))


def score_of(seeds: list[Result], name: str, measure: str) -> float:
    """Return a measure of a score, the mean over seeds; NaN where the setting does not have it."""
    return mean_of(seeds, lambda seed: seed["scores"][name].get(measure, np.nan))


def best_of(seeds: list[Result], measure: str, names: tuple[str, ...]) -> tuple[float, str]:
    """Return the best of some rivals in this setting, with hindsight."""
    return max((score_of(seeds, name, measure), name) for name in names)


def rivals_of(seeds: list[Result]) -> tuple[str, ...]:
    """Return the names of the free scores."""
    return tuple(name for name in seeds[0]["scores"] if name not in OWN)


def judged(by_name: dict[str, list[Result]]) -> dict[str, list[Result]]:
    """Return the settings with enough errors."""
    return {
        name: seeds for name, seeds in by_name.items() if mean_of(seeds, lambda s: s["wrong"]) >= LEAST_WRONG
    }


def shown(value: float, sign: bool = False) -> str:
    """Return a number with three digits, "-" for none."""
    return "-" if np.isnan(value) else f"{value:+.3f}" if sign else f"{value:.3f}".replace("0.", ".", 1)


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def settings_table(by_name: dict[str, list[Result]]) -> str:
    """Return one line for each setting."""
    rows = []
    for name, seeds in sorted(by_name.items(), key=lambda item: (not item[1][0]["development"], item[0])):
        rivals = rivals_of(seeds)
        best, best_name = best_of(seeds, "O", rivals)
        row = [name + (" (dev.)" if seeds[0]["development"] else ""), str(len(seeds))]
        row.append(f"{mean_of(seeds, lambda s: s['wrong']):.0f} of {mean_of(seeds, lambda s: s['test']):.0f}")
        row += [shown(score_of(seeds, TRUST, "R")), shown(score_of(seeds, "vote", "R"))]
        row += [shown(score_of(seeds, TRUST, "O")), f"{shown(best)} ({best_name})"]
        for kind in ("near", "far"):
            row += [shown(score_of(seeds, NOVELTY, kind)), shown(best_of(seeds, kind, DETECTORS)[0])]
        row += [shown(score_of(seeds, score, "error at 80 %")) for score in (TRUST, "gallery distance")]
        row += [shown(score_of(seeds, score, "error at 40 %")) for score in (TRUST, "gallery distance")]
        interval = "-".join(
            shown(mean_of(seeds, lambda s, e=end: s["announced"][e])) for end in ("low", "high")
        )
        row += [shown(mean_of(seeds, lambda s: s["ECE"])), interval]
        row.append(f"{100 * mean_of(seeds, lambda s: s['flagged']):.1f} %")
        rows.append(row)
    head = [
        "setting",
        "seeds",
        "wrong",
        "R",
        "R of the vote",
        "O",
        "best O of a rival",
        "near",
        "best",
        "far",
        "best",
    ]
    head += [
        "error at 80 %",
        "by distance",
        "error at 40 %, half OOD",
        "by distance",
        "ECE",
        "announced",
        "flagged",
    ]
    return (
        "R: AUROC of wrong nearest items. O: open-set AUROC, known and OOD queries in equal weight. Near and far: "
        "AUROC of held-out classes and of other data by novelty, beside the best, with hindsight, of distance, kNN, "
        "LOF and "
        "Mahalanobis. ECE: of the probability on test queries, beside the interval that 300 validation queries (fewer "
        "where the setting has fewer) announce. Anything was chosen on the settings marked dev. only.\n\n"
        + table(head, rows)
        + "\n"
        + summary(by_name)
    )


def spread(values: list[float]) -> str:
    """Return a mean with its standard error over settings."""
    numbers = [value for value in values if not np.isnan(value)]
    error = np.std(numbers, ddof=1) / np.sqrt(len(numbers)) if len(numbers) > 1 else np.nan
    return f"{np.mean(numbers):+.3f} ± {error:.3f} (least {min(numbers):+.3f})"


def summary(by_name: dict[str, list[Result]]) -> str:
    """Return the sums that the table is judged by, over settings with at least 50 errors."""
    lines = []
    for label, chosen in (
        ("all settings", judged(by_name)),
        (
            "settings on which nothing was chosen",
            {n: s for n, s in judged(by_name).items() if not s[0]["development"]},
        ),
    ):
        seeds = list(chosen.values())
        open_set = [score_of(s, TRUST, "O") - best_of(s, "O", rivals_of(s))[0] for s in seeds]
        risk = [score_of(s, TRUST, "R") - score_of(s, "vote", "R") for s in seeds]
        lines.append(
            f"Over {len(seeds)} {label} with at least {LEAST_WRONG} errors, mean ± standard error over settings:\n"
        )
        lines.append(f"- O above the best rival, chosen with hindsight in each setting: {spread(open_set)}")
        lines.append(f"- R above the vote in the features: {spread(risk)}")
        for kind in ("near", "far"):
            gaps = [score_of(s, NOVELTY, kind) - best_of(s, kind, DETECTORS)[0] for s in seeds]
            lines.append(
                f"- {kind} OOD, novelty above the best of the detectors, with hindsight: {spread(gaps)}"
            )
        errors = [mean_of(s, lambda r: r["ECE"]) for s in seeds]
        lines.append(f"- calibration error: {np.mean(errors):.3f}, at most {max(errors):.3f}")
        flagged = [mean_of(s, lambda r: r["flagged"]) for s in seeds]
        lines.append(f"- known queries flagged: {min(flagged):.3f} to {max(flagged):.3f}\n")
    return "\n".join(lines)


def rivals_table(by_name: dict[str, list[Result]]) -> str:
    """Return the mean of each measure and rank over settings, and the paired difference to each rival."""
    chosen = judged(by_name)
    names = [*OWN, *rivals_of(next(iter(chosen.values())))]
    ranks: dict[str, list[list[float]]] = {name: [] for name in names}
    for seeds in chosen.values():
        ordered = {m: sorted(-score_of(seeds, name, m) for name in names) for m in ("R", "S", "O")}
        for name in names:
            ranks[name].append([ordered[m].index(-score_of(seeds, name, m)) + 1 for m in ("R", "S", "O")])
    rows = []
    for name in names:
        row = [name]
        for i, measure in enumerate(("R", "S", "O")):
            value = np.mean([score_of(seeds, name, measure) for seeds in chosen.values()])
            row.append(f"{shown(float(value))} ({np.mean(ranks[name], axis=0)[i]:.1f})")
        for measure in MEASURES:
            row.append("" if name in OWN else paired(list(chosen.values()), name, measure))
        rows.append(row)
    head = [
        "score",
        "R (rank)",
        "S (rank)",
        "O (rank)",
        *(f"{measure}: ours less its" for measure in MEASURES),
    ]
    return (
        f"Means and mean ranks over {len(chosen)} settings. Differences are paired: of the probability for R and O, "
        "of the novelty for S, near and far; the mean over settings with the 95 % interval of a bootstrap over queries "
        "(over classes for zero-shot settings), and in how many settings ours is better and worse beyond two standard "
        "errors.\n\n" + table(head, rows)
    )


def paired(settings: list[list[Result]], name: str, measure: str) -> str:
    """Return the mean difference to a rival with its interval, and the wins and losses."""
    values, variances, wins, losses = [], [], 0, 0
    for seeds in settings:
        differences = [seed["differences"][measure][name] for seed in seeds if measure in seed["differences"]]
        if not differences:
            continue
        value = float(np.mean([one["value"] for one in differences]))
        error = float(np.sqrt(np.sum([one["se"] ** 2 for one in differences])) / len(differences))
        values.append(value)
        variances.append(error**2)
        wins += value > 2 * error
        losses += value < -2 * error
    half = 1.96 * np.sqrt(np.sum(variances)) / len(values)
    return f"{np.mean(values):+.3f} ± {half:.3f}, {wins} : {losses}"


def queries_table(by_name: dict[str, list[Result]]) -> str:
    """Return how the measures depend on the number of validation queries."""
    rows = []
    for size in SIZES:
        cells: dict[str, list[float]] = defaultdict(list)
        spreads: dict[str, list[float]] = defaultdict(list)
        settings = 0
        for seeds in judged(by_name).values():
            if not all(set(SIZES) <= set(seed["by number of queries"]) for seed in seeds):
                continue
            draws = [seed["by number of queries"][size] for seed in seeds]
            settings += 1
            for key in ("R", "S", "O", "ECE", "inside", "flagged"):
                cells[key].append(float(np.mean([d[key] for of_seed in draws for d in of_seed])))
                spreads[key].append(float(np.mean([np.std([d[key] for d in of_seed]) for of_seed in draws])))
        if not settings:
            continue
        row = [size, str(settings)]
        row += [
            f"{shown(float(np.mean(cells[key])))} ± {np.mean(spreads[key]):.3f}"
            for key in ("R", "S", "O", "ECE")
        ]
        row += [shown(float(np.mean(cells["inside"]))), shown(float(np.mean(cells["flagged"])))]
        rows.append(row)
    head = [
        "validation queries",
        "settings",
        "R",
        "S (novelty)",
        "O",
        "ECE",
        "ECE inside its interval",
        "flagged",
    ]
    return (
        "Means over settings with 1,000 validation queries ± the mean standard deviation over ten draws of fewer of "
        "them.\n\n" + table(head, rows)
    )


def promise_table(further: list[Result]) -> str:
    """Return how often the promise is broken and how much each score answers."""
    chosen = [result["promise"] for result in further if result["wrong"] >= LEAST_WRONG]
    names = [name for name in chosen[0] if name not in ("alpha", "delta", "splits")]
    rows = []
    for name in names:
        broken = [one[name]["broken"] for one in chosen]
        answered = [one[name]["answered"] for one in chosen]
        ahead = sum(one[TRUST]["answered"] > one[name]["answered"] for one in chosen)
        rows.append(
            [name, shown(float(np.mean(broken))), shown(max(broken)), shown(float(np.mean(answered)))]
        )
        rows[-1].append("" if name == TRUST else f"{ahead} of {len(chosen)}")
    head = ["score", "promise broken", "at most", "share answered", "ours answers more in"]
    return (
        f"Over {chosen[0]['splits']} splits of the test queries of each of {len(chosen)} settings: one half chooses a "
        "threshold that promises, with probability .9, half of the error rate of answering everything; the other half "
        "is answered.\n\n" + table(head, rows)
    )


def posterior_table(further: list[Result]) -> str:
    """Return what the inputs of the Laplace posterior add."""
    rows = []
    chosen = [result for result in further if "posterior" in result]
    for result in chosen:
        values = result["posterior"]
        cells = [
            f"{values[m]['value']:+.3f} ± {1.96 * values[m]['se']:.3f}" if m in values else "-"
            for m in MEASURES
        ]
        rows.append([result["name"], *cells])
    means = []
    for measure in MEASURES:
        differences = [
            result["posterior"][measure]["value"] for result in chosen if measure in result["posterior"]
        ]
        means.append(f"{np.mean(differences):+.3f}")
    rows.append(["mean", *means])
    return (
        "What the log variance and log 1/kappa of a diagonal last-layer posterior change when they join the match "
        "inputs, and the log variance the novelty: R and O of the probability, the others of the novelty, with the "
        "95 % interval of a paired bootstrap. Settings with a trained or computed head and one set of classes; "
        "seed 0.\n\n" + table(["setting", *MEASURES], rows)
    )
