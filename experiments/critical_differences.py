"""Which scores differ over many settings: average ranks, a Friedman test, and critical differences.

    python -m experiments.critical_differences --results figures/results/trust --out figures

Reads what `experiments.trust` measured of each setting (the mean over its seeds) and writes
OUT/critical_differences.md and OUT/plots/critical_differences.png. Scores are ranked within each setting, 1 is best.
Friedman's test asks whether any differ; by Nemenyi's, two of them do at the level of 5 % where their mean ranks are
further apart than the critical difference (Demsar, Statistical comparisons of classifiers over multiple data sets, JMLR
2006). That test looks at all pairs; ours is compared with each rival by Wilcoxon's signed-rank test too, with Holm's
correction.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy.stats import friedmanchisquare, rankdata, studentized_range, wilcoxon

from experiments.trust.measure import NOVELTY, TRUST
from laplacian_metric.core.files import atomic_write

MEASURES = {
    "R": ("wrong answers among known queries", TRUST),
    "S": ("out-of-distribution queries", NOVELTY),
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
    "feature norm",
    "embedding norm",
)
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

    def groups(self) -> list[tuple[int, int]]:
        """Return the first and the last of each longest run of scores that do not differ."""
        runs = []
        for first in range(len(self.ranks)):
            last = int(np.searchsorted(self.ranks, self.ranks[first] + self.critical_difference, "right")) - 1
            if last > first and not (runs and last <= runs[-1][1]):
                runs.append((first, last))
        return runs


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
            score: {m: float(np.mean([seed[score][m] for seed in seeds])) for m in MEASURES}
            for score in seeds[0]
        }
        for setting, seeds in by_setting.items()
    }


def draw(axes: Axes, result: Ranking, own: str, title: str) -> None:
    """Draw mean ranks on a line, and bars over those that do not differ."""
    num = len(result.names)
    half = (num + 1) // 2
    axes.set(xlim=(-1.1, num + 2.1), ylim=(-half - 1.0, 1.4))
    axes.axis("off")
    axes.set_title(title, fontsize=10, loc="left")
    axes.plot([1, num], [0, 0], color="black", linewidth=1)
    for rank in range(1, num + 1):
        axes.plot([rank, rank], [0, 0.1], color="black", linewidth=1)
        axes.text(rank, 0.2, str(rank), ha="center", va="bottom", fontsize=7)
    axes.plot([1, 1 + result.critical_difference], [0.95, 0.95], color="black", linewidth=1)
    axes.text(1, 1.0, f"critical difference {result.critical_difference:.1f}", fontsize=7, va="bottom")
    for place, (name, rank) in enumerate(zip(result.names, result.ranks, strict=True)):
        left = place < half
        depth = -(place if left else num - 1 - place) - 1.4
        end = -1.0 if left else num + 2.0
        color = "tab:red" if name == own else "black"
        axes.plot([rank, rank, end], [0, depth, depth], color=color, linewidth=0.8)
        axes.text(
            end,
            depth,
            f"{name} ({rank:.1f})",
            color=color,
            fontsize=8,
            va="bottom",
            ha="left" if left else "right",
        )
    for number, (first, last) in enumerate(result.groups()):
        height = -0.15 - 0.13 * number
        axes.plot(result.ranks[[first, last]] + [-0.05, 0.05], [height] * 2, color="tab:blue", linewidth=2.5)


def page(rankings: dict[str, Ranking], values: dict[str, Columns], settings: list[str]) -> str:
    """Return the page: mean ranks by question, and which rivals ours differs from."""
    lines = [
        "# Mean ranks of scores over settings",
        "",
        f"Which score is best over many data sets? Mean ranks over {len(settings)} settings (1 is best), a Friedman "
        "test, and Nemenyi's critical difference at 5 %: mean ranks that are closer than this do not differ. R: AUROC "
        "of wrong answers among known queries. S: AUROC of out-of-distribution queries. O: open-set AUROC, both in "
        "equal weight. Ours is Trust's probability in R and O, and its novelty in S. *p* is of Wilcoxon's signed-rank "
        "test of ours and the rival, with Holm's correction.",
        "",
        f"Settings: {', '.join(settings)}.",
        "",
        "![Mean ranks; a bar joins scores whose ranks do not differ](plots/critical_differences.png)",
    ]
    for measure, result in rankings.items():
        about, own = MEASURES[measure]
        columns = values[measure]
        differences = {name: columns[own] - columns[name] for name in RIVALS}
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in ("--results", "--out"):
        parser.add_argument(option, type=Path, required=True)
    options = parser.parse_args()
    values = read(options.results)
    if len(values) < 2:
        parser.error(
            f"{options.results} has results of {len(values)} settings; ranks need two: run experiments.trust"
        )
    columns: dict[str, Columns] = {
        measure: {
            name: np.array([scores[name][measure] for scores in values.values()]) for name in (own, *RIVALS)
        }
        for measure, (_, own) in MEASURES.items()
    }
    rankings = {measure: ranking(each) for measure, each in columns.items()}
    figure, panels = plt.subplots(len(MEASURES), 1, figsize=(8, 8))
    for axes, (measure, result) in zip(panels, rankings.items(), strict=True):
        draw(
            axes,
            result,
            MEASURES[measure][1],
            f"{measure}: {MEASURES[measure][0]}, {result.settings} settings",
        )
    figure.tight_layout()
    (options.out / "plots").mkdir(parents=True, exist_ok=True)
    with atomic_write(options.out / "plots" / "critical_differences.png") as temporary:
        figure.savefig(temporary, dpi=130, format="png")
    plt.close(figure)
    with atomic_write(options.out / "critical_differences.md") as temporary:
        temporary.write_text(page(rankings, columns, list(values)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
