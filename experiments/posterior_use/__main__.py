"""Where does a posterior over the last layer pay? Few labels, few items a class, wrong labels, labels to be chosen.

    python -m experiments.posterior_use --data DATA --cache CACHE --out figures

CACHE, outside of the repository, keeps features; `experiments.trust` shares it. Written are
OUT/results/posterior_use/*.json, one for each situation and seed that is not there yet, and from all of them
OUT/tables/posterior_use.md. Nothing is chosen on test or OOD queries: what is tuned, the sharpness of votes and the
size of the noise, is tuned for every kind of vote alike on 300 validation queries.
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

from experiments.arguments import folders
from experiments.posterior_use.active import FIRST, MORE, ROUNDS, STRATEGIES, curve
from experiments.posterior_use.measure import VOTES, measured
from experiments.posterior_use.situations import SITUATIONS, situation
from hessians.checks import CurvatureWarning
from laplacian_metric.core.files import atomic_write

SEEDS = range(5)
SOURCES = ("cifar", "fashion")
OWN = "joint samples"
Run = dict[str, Any]
Results = dict[str, list[Run]]  # the runs of each situation, one for each seed
RIVALS = tuple(name for name in VOTES if name != OWN)


def write(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text(f"{text}\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Return a result with five digits."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list) else round(value, 5)


def difference(values: list[float]) -> str:
    """Return the mean of paired differences with the half width of its 95 % interval (Student's t)."""
    spread = np.std(values, ddof=1) / np.sqrt(len(values))
    mean, half = float(np.mean(values)), float(student.ppf(0.975, len(values) - 1) * spread)
    text = f"{mean:+.3f} ± {half:.3f}"
    return f"**{text}**" if abs(mean) > half else text


def row(cells: list[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


def table(
    results: Results,
    value: Callable[[Run, str], float],
    own: str,
    rivals: tuple[str, ...],
) -> list[str]:
    """Return what ``own`` has in each situation, and how much that is above each rival, paired by seeds."""
    lines = [row(["situation", own, *(f"above {name}" for name in rivals)]), row(["---"] * (len(rivals) + 2))]
    means: dict[str, list[float]] = defaultdict(list)
    for name, seeds in results.items():
        cells = [f"{np.mean([value(seed, own) for seed in seeds]):.3f}"]
        for rival in rivals:
            differences = [value(seed, own) - value(seed, rival) for seed in seeds]
            means[rival].append(float(np.mean(differences)))
            cells.append(difference(differences))
        lines.append(row([name, *cells]))
    return [
        *lines,
        row(["mean, and its interval over situations", "", *(difference(means[r]) for r in rivals)]),
    ]


def compared(
    results: Results, title: str, value: Callable[[Run, str], float], own: str, rivals: tuple[str, ...]
) -> list[str]:
    """Return a section with the table of one comparison; see `table`."""
    return ["", f"## {title}", "", *table(results, value, own, rivals)]


def sets_section(results: Results) -> list[str]:
    """Return the sizes of sets of answers, and how often they hold the true class."""
    lines = [
        "",
        "## Sets of answers",
        "",
        "Mean number of classes in sets that shall hold the true one with probability 0.9 (split conformal, 300 "
        "validation queries), less is better; in brackets the share of queries whose set holds it. In unseen sketches "
        "it is lower, because validation classes are fewer than those of the gallery.",
        "",
        row(["situation", *VOTES]),
        row(["---"] * (len(VOTES) + 1)),
    ]
    for name, runs in results.items():
        sets = [
            {key: np.mean([run["sets"][v][key] for run in runs]) for key in ("size", "coverage")}
            for v in VOTES
        ]
        lines.append(row([name, *(f"{each['size']:.2f} ({each['coverage']:.3f})" for each in sets)]))
    return lines


def labelling_section(active: dict[str, dict[str, list[list[float]]]]) -> list[str]:
    """Return how accurate answers are after each way of choosing images to be labelled, beside chance."""
    lines = [
        "",
        "## Images to be labelled",
        "",
        f"Accuracy of the nearest labelled image after {FIRST} random and {ROUNDS} rounds of {MORE} chosen images, the "
        "mean over the rounds; differences to random choice. *Joint samples*: the mutual information of weights "
        "and class.",
        "",
        row(["pool", "random", *(f"{name} above random" for name in STRATEGIES[1:])]),
        row(["---"] * (len(STRATEGIES) + 1)),
    ]
    for source, curves in active.items():
        area = {name: [float(np.mean(c[1:])) for c in runs] for name, runs in curves.items()}
        cells = [
            difference([a - b for a, b in zip(area[name], area["random"], strict=True)])
            for name in STRATEGIES[1:]
        ]
        lines.append(row([source, f"{np.mean(area['random']):.3f}", *cells]))
    return lines


def page(results: Results, active: dict[str, dict[str, list[list[float]]]]) -> str:
    """Return the page of all tables."""
    votes, own = tuple(f"vote, {name}" for name in RIVALS), f"vote, {OWN}"
    joined, trusted = "trust with joint samples", ("trust", own)

    def score(measure: str) -> Callable[[Run, str], float]:
        return lambda run, name: float(run["scores"][name][measure])

    return "\n".join(
        [
            "# Where a posterior over the last layer pays",
            "",
            "Where votes over 30 joint samples of the diagonal last-layer posterior pay, beside votes that need none. "
            "Frozen EfficientNet-Lite0 features, a head of 32 dimensions trained anew for each of "
            f"{len(next(iter(results.values())))} seeds. Differences are paired by seeds, with 95 % intervals "
            "(Student's t); bold: the interval excludes 0. A vote sums over all items with weights "
            "exp(cosine / sharpness). Its sharpness is tuned for each kind by the likelihood of 300 validation "
            "queries. *Noise*: weights drawn around the head's with one variance for all, tuned too. *Five heads*: "
            "trained from other starts and batches. *Both spaces*: the mean of the votes in features and embedding.",
            *compared(
                results,
                "Accuracy of the answer",
                lambda run, name: float(run["accuracy"][name]),
                own,
                ("nearest item", *votes),
            ),
            *compared(
                results,
                "Wrong nearest items: R-AUROC",
                score("R"),
                own,
                ("gallery distance", "margin", *votes),
            ),
            *compared(
                results,
                "Open-set AUROC: wrong and OOD answers, in equal weight",
                score("O"),
                own,
                ("gallery distance", "feature distance", *votes),
            ),
            *compared(results, "As an input of Trust: R-AUROC", score("R"), joined, trusted),
            *compared(results, "As an input of Trust: open-set AUROC", score("O"), joined, trusted),
            *sets_section(results),
            *labelling_section(active),
            "",
            "Made by `python -m experiments.posterior_use --data DATA --cache CACHE --out figures` from the files in "
            "`figures/results/posterior_use`.",
        ]
    )


def main() -> None:
    """Run the command line."""
    options = folders(__doc__).parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CurvatureWarning)  # rounds of labelling begin with classes of one image
    folder = options.out / "results" / "posterior_use"

    def kept(name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a result, computed where its file does not exist."""
        path = folder / f"{name.replace(',', '').replace(' ', '-')}.json"
        if not path.is_file():
            print(path.stem, flush=True)
            write(path, json.dumps(rounded(compute())))
        return dict(json.loads(path.read_text(encoding="utf-8")))

    results: Results = defaultdict(list)
    active: dict[str, dict[str, list[list[float]]]] = {s: defaultdict(list) for s in SOURCES}
    for seed in SEEDS:
        for name in SITUATIONS:
            results[name].append(
                kept(f"{name}-{seed}", lambda: measured(situation(options.data, options.cache, name, seed)))  # noqa: B023
            )
        for source in SOURCES:
            for strategy in STRATEGIES:
                run = kept(
                    f"label-{source}-{strategy.replace('/', '-over-')}-{seed}",
                    lambda: curve(options.data, options.cache, source, strategy, seed),  # noqa: B023
                )
                active[source][strategy].append(run["accuracy"])
    write(options.out / "tables" / "posterior_use.md", page(results, active))


if __name__ == "__main__":
    main()
