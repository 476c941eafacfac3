"""Tables of the results: by setting, beside every rival, and by the number of validation queries."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from experiments.trust.measure import BOOSTING, LEARNED, MEASURES, NOVELTY, OWN, RIVAL, TRUST
from laplacian_metric.core.files import atomic_write

LEAST_WRONG = 50  # settings with fewer errors are printed, not judged
ORIGIN = (
    "Made by `python -m experiments.trust --data DATA --cache CACHE --out figures` from the files in "
    "`figures/results/trust`."
)
LEARNED_NAMES = (*LEARNED.values(), BOOSTING)
Result = dict[str, Any]
Settings = dict[str, list[Result]]


def write_tables(results: Path, tables: Path) -> None:
    """Write the tables of all result files."""
    settings: Settings = defaultdict(list)
    for path in sorted(results.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        settings[result["name"]].append(result)
    tables.mkdir(parents=True, exist_ok=True)
    for name, title, text in (
        ("trust", "Trust, setting by setting", settings_table(settings)),
        ("trust_rivals", "Trust beside every rival", rivals_table(settings)),
        ("trust_queries", "Trust with fewer and more validation queries", queries_table(settings)),
        (
            "trust_promise",
            "A guaranteed error rate, by Trust and by the learned rival",
            promise_table(settings),
        ),
    ):
        with atomic_write(tables / f"{name}.md") as temporary:
            temporary.write_text(f"# {title}\n\n{text.rstrip()}\n\n{ORIGIN}\n", encoding="utf-8")


def score_of(seeds: list[Result], name: str, measure: str) -> float:
    """Return a measure of a score, the mean over seeds; NaN where the setting does not have it."""
    return float(np.mean([seed["scores"][name].get(measure, np.nan) for seed in seeds]))


def error_of(seeds: list[Result], name: str) -> float:
    """Return a calibration error, the mean over seeds."""
    return float(np.mean([seed["ECE"][name] for seed in seeds]))


def free_scores(seeds: list[Result]) -> list[str]:
    """Return the names of the scores that cost nothing."""
    return [name for name in seeds[0]["scores"] if name not in (*OWN, *LEARNED_NAMES)]


def best_of(seeds: list[Result], measure: str, names: list[str]) -> tuple[float, str]:
    """Return the best of some rivals in this setting, chosen with hindsight."""
    return max((score_of(seeds, name, measure), name) for name in names)


def judged(settings: Settings) -> Settings:
    """Return the settings with enough errors."""
    return {
        name: seeds for name, seeds in settings.items() if np.mean([s["wrong"] for s in seeds]) >= LEAST_WRONG
    }


def shown(value: float, sign: bool = False) -> str:
    """Return a number with three digits, "-" for none."""
    return "-" if np.isnan(value) else f"{value:+.3f}" if sign else f"{value:.3f}".replace("0.", ".", 1)


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def settings_table(settings: Settings) -> str:
    """Return one line for each setting, and what they say together."""
    rows = []
    for name, seeds in sorted(settings.items(), key=lambda item: (not item[1][0]["development"], item[0])):
        free = free_scores(seeds)
        row = [name + (" (dev.)" if seeds[0]["development"] else ""), str(len(seeds))]
        row.append(f"{np.mean([s['wrong'] for s in seeds]):.0f} of {np.mean([s['test'] for s in seeds]):.0f}")
        for measure in ("R", "O"):
            best, best_name = best_of(seeds, measure, free)
            learned, learned_name = best_of(seeds, measure, list(LEARNED_NAMES))
            row += [shown(score_of(seeds, TRUST, measure)), shown(score_of(seeds, RIVAL, measure))]
            row += [f"{shown(learned)} ({learned_name})", f"{shown(best)} ({best_name})"]
        for kind in ("near", "far"):
            row += [shown(score_of(seeds, NOVELTY, kind)), shown(best_of(seeds, kind, free)[0])]
        row += [shown(error_of(seeds, TRUST)), shown(error_of(seeds, RIVAL))]
        rows.append([*row, f"{100 * np.mean([s['flagged'] for s in seeds]):.1f} %"])
    of_measure = ["Trust", "logistic of 3", "best learned", "best free score"]
    head = ["setting", "seeds", "wrong", *(f"{m}: {name}" for m in ("R", "O") for name in of_measure)]
    head += [
        "near: novelty",
        "best free",
        "far: novelty",
        "best free",
        "ECE: Trust",
        "logistic of 3",
        "flagged",
    ]
    intro = (
        "R: AUROC of wrong answers among known queries. O: open-set AUROC, known and out-of-distribution (OOD) queries "
        "in equal weight, where every answer to an OOD query is wrong. Near and far: AUROC of held-out classes and of "
        "other data. 300 validation queries (fewer where a setting has fewer). The best rivals are chosen for each "
        "setting with hindsight. Anything was chosen on the settings marked dev. only.\n\n"
    )
    return intro + table(head, rows) + "\n" + summary(judged(settings))


def summary(settings: Settings) -> str:
    """Return means over settings, with their standard errors and the least of them."""

    def line(label: str, values: list[float]) -> str:
        kept = [value for value in values if not np.isnan(value)]
        error = np.std(kept) / np.sqrt(len(kept))
        return f"- {label}: {np.mean(kept):+.3f} ± {error:.3f} (least {min(kept):+.3f}, {len(kept)} settings)"

    def ahead(measure: str, own: str, rivals: Any) -> list[float]:
        return [score_of(s, own, measure) - best_of(s, measure, rivals(s))[0] for s in settings.values()]

    everything = lambda s: [*free_scores(s), *LEARNED_NAMES]  # noqa: E731
    lines = [
        line("R above the logistic of 3", ahead("R", TRUST, lambda _: [RIVAL])),
        line("R above the best learned rival", ahead("R", TRUST, lambda _: list(LEARNED_NAMES))),
        line("O above the best free score", ahead("O", TRUST, free_scores)),
        line("O above the best of all rivals", ahead("O", TRUST, everything)),
        line("near OOD, novelty above the best free score", ahead("near", NOVELTY, free_scores)),
        line("far OOD, novelty above the best free score", ahead("far", NOVELTY, free_scores)),
    ]
    means = {name: np.mean([error_of(seeds, name) for seeds in settings.values()]) for name in (TRUST, RIVAL)}
    own = {m: np.mean([score_of(seeds, TRUST, m) for seeds in settings.values()]) for m in ("R", "O")}
    flagged = [np.mean([s["flagged"] for s in seeds]) for seeds in settings.values()]
    return (
        f"Over {len(settings)} settings with at least {LEAST_WRONG} errors, mean ± standard error over settings:\n\n"
        f"- R {own['R']:.3f}, O {own['O']:.3f}\n" + "\n".join(lines) + "\n"
        f"- calibration error: {means[TRUST]:.3f}, of the logistic of 3 {means[RIVAL]:.3f}\n"
        f"- known queries flagged: {min(flagged):.3f} to {max(flagged):.3f}\n"
    )


def rivals_table(settings: Settings) -> str:
    """Return paired differences to every rival."""
    chosen = list(judged(settings).values())
    rows = []
    for name in [*LEARNED_NAMES, *free_scores(chosen[0])]:
        rows.append([name, *(paired(chosen, name, measure) for measure in MEASURES)])
    return (
        "How much Trust's probability (R, O) and its novelty (near, far) are above each rival: the mean over settings "
        "with its 95 % interval from paired bootstraps over queries (over classes for zero-shot settings), and in how "
        "many settings Trust is better and worse beyond two standard errors.\n\n"
        + table(["rival", *MEASURES], rows)
    )


def paired(settings: list[list[Result]], name: str, measure: str) -> str:
    """Return the mean difference to a rival with its interval, and the wins and losses."""
    values, errors = [], []
    for seeds in settings:
        found = [s["differences"][measure][name] for s in seeds if name in s["differences"].get(measure, {})]
        if found:
            values.append(float(np.mean([one["value"] for one in found])))
            errors.append(float(np.sqrt(np.sum([one["se"] ** 2 for one in found])) / len(found)))
    if not values:
        return "-"
    half = 1.96 * np.sqrt(np.sum(np.square(errors))) / len(values)
    wins = sum(value > 2 * error for value, error in zip(values, errors, strict=True))
    losses = sum(value < -2 * error for value, error in zip(values, errors, strict=True))
    return f"{np.mean(values):+.3f} ± {half:.3f}, {wins} : {losses}"


def queries_table(settings: Settings) -> str:
    """Return how the measures depend on the number of validation queries."""
    rows = []
    for size in ("60", "100", "300", "1000"):
        for name in (TRUST, RIVAL, LEARNED[8]):
            cells: dict[str, list[float]] = defaultdict(list)
            spreads: dict[str, list[float]] = defaultdict(list)
            for seeds in judged(settings).values():
                draws = [draw for seed in seeds for draw in seed["by number of queries"].get(size, [])]
                for key in ("R", "O", "ECE"):
                    values = [draw[name][key] for draw in draws if key in draw[name]]
                    if values:
                        cells[key].append(float(np.mean(values)))
                        spreads[key].append(float(np.std(values)))
            if cells:
                numbers = [
                    f"{shown(float(np.mean(cells[k])))} ± {np.mean(spreads[k]):.3f}"
                    for k in ("R", "O", "ECE")
                ]
                rows.append([size, str(len(cells["R"])), name, *numbers])
    head = ["validation queries", "settings", "score", "R", "O", "ECE"]
    return (
        "Means over the settings that have so many validation queries ± the mean standard deviation over ten draws of "
        "fewer of them (and over seeds).\n\n" + table(head, rows)
    )


def promise_table(settings: Settings) -> str:
    """Return how often the guarantee is broken and how much is answered."""
    rows = []
    for name, seeds in judged(settings).items():
        row = [name, shown(float(np.mean([s["guarantee"]["error"] for s in seeds])))]
        for score in (TRUST, RIVAL):
            for key in ("broken", "answered"):
                row.append(shown(float(np.mean([s["guarantee"][score][key] for s in seeds]))))
        rows.append(row)
    means = [shown(float(np.mean([float(row[place]) for row in rows]))) for place in range(2, 6)]
    rows.append(["mean", "", *means])
    head = ["setting", "promised error", "Trust: broken", "answered", "logistic of 3: broken", "answered"]
    return (
        "Over 200 splits of the test queries: one half chooses a threshold that promises, with confidence .9, half of "
        "the error rate of answering everything; the other half is answered, and the promise counts as broken where "
        "more of its answers are wrong. The observed share of one half varies around the true one, so that some "
        "promises that hold count as broken.\n\n" + table(head, rows)
    )
