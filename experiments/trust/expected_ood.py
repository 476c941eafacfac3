"""What it is worth to tell `Trust` which share of the queries will be out-of-distribution (OOD).

    python -m experiments.trust.expected_ood --data DATA --cache CACHE --out figures

For mixtures of test queries and OOD queries in three shares: the calibration error and the Brier score of the
probability as it is, of that times the share of known queries, which costs nothing, and of `Trust.expecting`. How much
longer the tail of OOD queries' novelty is taken to be was chosen on the four development settings.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from experiments.arguments import folders
from experiments.trust.__main__ import QUERIES, inputs_of
from experiments.trust.measure import TRUST, Scored, expecting, measures, scored
from experiments.trust.settings import DEVELOPMENT, NAMES, seeds_of
from laplacian_metric.core.files import atomic_write
from laplacian_metric.trust.calibration import NUM_BINS, sigmoid

SHARES = (0.1, 0.3, 0.5)
FORMS = ("as it is", "times the known share", "expecting the share")
Results = dict[str, list[dict[str, Any]]]  # of each setting, by seeds


def probabilities(queries: Scored, part: str, share: float) -> dict[str, NDArray[np.float64]]:
    """Return the probabilities (N,) of each of `FORMS` for the queries of a part."""
    scores = queries.scores[part]
    plain = sigmoid(-scores[TRUST])
    return dict(zip(FORMS, (plain, (1 - share) * plain, sigmoid(-scores[expecting(share)])), strict=True))


def errors(
    probability: NDArray[np.float64], right: NDArray[Any], weights: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the calibration error in ten bins and the Brier score of weighted queries (N,)."""
    bins = np.minimum((probability * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    gap = np.bincount(bins, weights=weights * (probability - right), minlength=NUM_BINS)
    return float(np.abs(gap).sum()), float((weights * (probability - right) ** 2).sum())


def measured(queries: Scored) -> dict[str, Any]:
    """Return both errors of each form in each mixture, the mean over OOD parts, and R and O of each form."""
    num_inside, result = len(queries.right), {}
    for share in SHARES:
        values: dict[str, list[tuple[float, float]]] = {form: [] for form in FORMS}
        for part in queries.ood():
            test, out = probabilities(queries, "test", share), probabilities(queries, part, share)
            num = len(out[FORMS[0]])
            right = np.append(queries.right, np.zeros(num, dtype=bool))
            weights = np.append(np.full(num_inside, (1 - share) / num_inside), np.full(num, share / num))
            for form in FORMS:
                values[form].append(errors(np.append(test[form], out[form]), right, weights))
        result[str(share)] = {
            form: dict(zip(("ECE", "Brier"), np.mean(each, axis=0).tolist(), strict=True))
            for form, each in values.items()
        }
    names = {"as it is": TRUST, **{str(share): expecting(share) for share in SHARES}}
    ranked = {form: measures(queries, name) for form, name in names.items()}
    return {"mixtures": result, "ranked": {form: {m: v[m] for m in ("R", "O")} for form, v in ranked.items()}}


def paired(values: list[float]) -> str:
    """Return a mean over settings with its 95 % interval (Student's t)."""
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):+.3f} ({np.mean(values) - half:+.3f} to {np.mean(values) + half:+.3f})"


def table(results: Results) -> str:
    """Return the page: means over settings, of development and of others, with paired differences."""
    lines = [
        "# Trust that expects a share of OOD queries",
        "",
        "Mixtures of test and OOD queries. ECE and Brier score of the probability as it is, of that times the share of "
        "known queries, and of `Trust.expecting(share)`; differences are paired by settings, with 95 % intervals; less "
        "is better. The development settings are those on which the tail was chosen. Made by "
        "`python -m experiments.trust.expected_ood --data DATA --cache CACHE --out figures`.",
        "",
        f"| settings | OOD share | {' | '.join(f'ECE {form} | Brier {form}' for form in FORMS)} "
        "| ECE, expecting - as it is | Brier, expecting - as it is | Brier, expecting - times the share |",
        f"|{' --- |' * 11}",
    ]

    def mean(name: str, *keys: str) -> float:
        total = 0.0
        for run in results[name]:
            value: Any = run
            for key in keys:
                value = value[key]
            total += value
        return total / len(results[name])

    groups = {
        "development": [name for name in results if name in DEVELOPMENT],
        "others": [name for name in results if name not in DEVELOPMENT],
    }
    for group, names in groups.items():
        for share in map(str, SHARES):
            values = {
                (form, error): [mean(name, "mixtures", share, form, error) for name in names]
                for form in FORMS
                for error in ("ECE", "Brier")
            }
            cells = [f"{np.mean(each):.3f}" for each in values.values()]
            for error, other in (("ECE", FORMS[0]), ("Brier", FORMS[0]), ("Brier", FORMS[1])):
                pairs = zip(values[FORMS[2], error], values[other, error], strict=True)
                cells.append(paired([a - b for a, b in pairs]))
            lines.append(f"| {group} ({len(names)}) | {float(share):.0%} | {' | '.join(cells)} |")
    lines += [
        "",
        "R: AUROC of wrong answers among known queries. O: open-set AUROC, known and OOD queries in equal weight. Both "
        "beside the probability as it is: whoever expects more OOD queries ranks novel ones further down.",
        "",
        "| setting | R as it is | "
        + " | ".join(f"{share:.0%} OOD" for share in SHARES)
        + " | O as it is | "
        + " | ".join(f"{share:.0%} OOD" for share in SHARES)
        + " |",
        f"|{' --- |' * 9}",
    ]
    for name in results:
        cells = []
        for measure in ("R", "O"):
            plain = mean(name, "ranked", "as it is", measure)
            cells.append(f"{plain:.3f}")
            cells += [f"{mean(name, 'ranked', str(share), measure) - plain:+.3f}" for share in SHARES]
        mark = " (dev.)" if name in DEVELOPMENT else ""
        lines.append(f"| {name}{mark} | {' | '.join(cells)} |")
    for group, names in groups.items():
        cells = []
        for measure in ("R", "O"):
            cells.append(f"{np.mean([mean(name, 'ranked', 'as it is', measure) for name in names]):.3f}")
            for share in map(str, SHARES):
                cells.append(
                    paired(
                        [
                            mean(n, "ranked", share, measure) - mean(n, "ranked", "as it is", measure)
                            for n in names
                        ]
                    )
                )
        lines.append(f"| mean of {group} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure every setting and write a table."""
    options = folders(__doc__).parse_args()
    results: Results = {}
    for name in NAMES:
        results[name] = []
        for seed in seeds_of(name):
            arrays = inputs_of(options.data, options.cache, name, seed)
            results[name].append(measured(scored(arrays, slice(0, QUERIES), free=False, shares=SHARES)))
        print(name, flush=True)
    path = options.out / "results" / "trust_expected_ood.json"
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (options.out / "tables" / "trust_expected_ood.md").write_text(table(results), encoding="utf-8")


if __name__ == "__main__":
    main()
