"""Which scores differ over many settings: average ranks, a Friedman test, and critical differences.

    python -m experiments.critical_differences --results figures/results/trust --out figures

Reads what `experiments.trust` measured of each setting (the mean over its seeds) and writes
OUT/critical_differences.md. Scores are ranked within each setting, 1 is best.
Friedman's test asks whether any differ; by Nemenyi's, two of them do at the level of 5 % where their mean ranks are
further apart than the critical difference (Demsar, Statistical comparisons of classifiers over multiple data sets, JMLR
2006). That test looks at all pairs; ours is compared with each rival by Wilcoxon's signed-rank test too, with Holm's
correction.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import friedmanchisquare, rankdata, studentized_range, wilcoxon

from benchmarks.common import write_text
from experiments.arguments import folders
from experiments.trust.measure import NOVELTY, TRUST

MEASURES = {
    "R": ("wrong answers among known queries", TRUST),
    "far": ("queries of other data", NOVELTY),
    "O": ("both kinds together (open-set)", TRUST),
}
RIVALS = (
    "vote",
    "kernel vote",
    "margin",
    "gallery distance",
    "feature distance",
    "kNN feature distance",
    "LOF",
    "Mahalanobis",
    "relative Mahalanobis",
    "class mean",
    "feature norm",
    "embedding norm",
)
LEARNED = ("logistic of 2", "logistic of 3", "logistic of 5", "logistic of 8", "boosting of 8")
LEVEL = 0.05
Columns = dict[str, NDArray[np.float64]]  # by score, one value for each setting
Values = dict[str, dict[str, dict[str, float]]]  # by setting, score and measure


@dataclass(frozen=True)
class Ranking:
    """The mean ranks of scores over settings, best first.

    Attributes:
        names: of the scores.
        ranks: (K,), the mean of each over settings, ties shared.
        settings: how many.
        p_value: of Friedman's test.
        critical_difference: of Nemenyi's test.
    """

    names: list[str]
    ranks: NDArray[np.float64]
    settings: int
    p_value: float
    critical_difference: float


def ranking(values: Columns) -> Ranking:
    """Return the ranking of scores by values (N,), one for each setting; more is better.

    The critical difference is q sqrt(k (k + 1) / (6 N)) with the quantile q of the studentised range over sqrt(2).
    """
    if len(values) < 3:
        raise ValueError(f"a ranking of {len(values)} scores: Friedman's test compares three or more")
    names = list(values)
    ranks = rankdata(-np.stack([values[name] for name in names]), axis=0).mean(1)
    num, settings = len(names), len(values[names[0]])
    quantile = float(studentized_range.ppf(1 - LEVEL, num, np.inf)) / np.sqrt(2)
    order = np.argsort(ranks, kind="stable")
    return Ranking(
        [names[number] for number in order],
        ranks[order],
        settings,
        float(friedmanchisquare(*values.values()).pvalue),
        quantile * float(np.sqrt(num * (num + 1) / (6 * settings))),
    )


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Return p values corrected for their number, smallest first (Holm 1979).

    Example:
        >>> holm({"vote": 0.01, "margin": 0.04})
        {'vote': 0.02, 'margin': 0.04}
    """
    corrected, least = {}, 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[name]))
        corrected[name] = least
    return corrected


def read(results: Path) -> Values:
    """Return the measures of every score in each setting, the mean over seeds."""
    by_setting: dict[str, list[dict[str, dict[str, float]]]] = defaultdict(list)
    for path in sorted(results.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        by_setting[content["name"]].append(content["scores"])
    return {
        setting: {
            score: {m: float(np.mean([seed[score].get(m, np.nan) for seed in seeds])) for m in MEASURES}
            for score in seeds[0]
        }
        for setting, seeds in by_setting.items()
    }


def page(rankings: dict[str, Ranking], values: dict[str, Columns], settings: list[str]) -> str:
    """Return the page: mean ranks by question, and which rivals ours differs from."""
    lines = [
        "# Mean ranks of scores over settings",
        "",
        f"Which score is best over many data sets? Mean ranks over {len(settings)} settings (1 is best), a Friedman "
        "test, and Nemenyi's critical difference at 5 %: mean ranks that are closer than this do not differ. R: AUROC "
        "of wrong answers among known queries. Far: AUROC of queries of other data. O: open-set AUROC, known and OOD "
        "queries in equal weight. Ours is Trust's probability in R and O, and its novelty in far. *p* is of Wilcoxon's "
        "signed-rank test of ours and the rival, with Holm's correction.",
        "",
        f"Settings: {', '.join(settings)}.",
    ]
    for measure, result in rankings.items():
        about, own = MEASURES[measure]
        columns = values[measure]
        differences = {name: columns[own] - columns[name] for name in (*RIVALS, *LEARNED)}
        corrected = holm({name: float(wilcoxon(each).pvalue) for name, each in differences.items()})
        lines += [
            "",
            f"## {measure}: {about}",
            "",
            f"Friedman p = {result.p_value:.1e}; critical difference {result.critical_difference:.2f}.",
            "",
            f"| score | mean rank | {own} above it, mean | in settings | p | by the critical difference |",
            "|---|---|---|---|---|---|",
        ]
        own_rank = result.ranks[result.names.index(own)]
        for name, rank in zip(result.names, result.ranks, strict=True):
            if name == own:
                lines.append(f"| **{name}** | {rank:.2f} | | | | |")
                continue
            each = differences[name]
            apart = "differs" if abs(rank - own_rank) > result.critical_difference else "does not differ"
            lines.append(
                f"| {name} | {rank:.2f} | {each.mean():+.3f} | {(each > 0).sum()} of {len(each)} "
                f"| {corrected[name]:.4f} | {apart} |"
            )
    made_by = (
        "Made by `python -m experiments.critical_differences --results figures/results/trust --out figures`."
    )
    return "\n".join([*lines, "", made_by])


def main() -> None:
    """Run the command line."""
    command = folders(__doc__, ("--results", "--out"))
    options = command.parse_args()
    values = read(options.results)
    if len(values) < 2:
        command.error(
            f"{options.results} has results of {len(values)} settings; ranks need two: run experiments.trust"
        )
    columns: dict[str, Columns] = {
        measure: {
            name: np.array([scores[name][measure] for scores in values.values()])
            for name in (own, *RIVALS, *LEARNED)
        }
        for measure, (_, own) in MEASURES.items()
    }
    rankings = {measure: ranking(each) for measure, each in columns.items()}
    write_text(options.out / "critical_differences.md", page(rankings, columns, list(values)) + "\n")


if __name__ == "__main__":
    main()
