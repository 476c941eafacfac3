"""The evidence page: each claim of the pages, the paired difference behind it, its command, and what would falsify it.

    python -m experiments.claims --results figures/results --out docs/evidence.md

The claims are in `experiments/claims.yaml`, the numbers in the result files. A claim that its interval does not bear
out is written down as such.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.common import write_text
from experiments.arguments import folders
from experiments.critical_differences import RIVALS
from experiments.harness.results import OWN, Result, read_results
from experiments.harness.tables.table_columns import find
from laplacian_metric.metrics.resampling import PairedComparison, compare_paired

HERE = Path(__file__).resolve().parent
Pairs = tuple[list[float], list[float], str]  # both sides, one number for each of what they are paired by


def of_cells(compared: dict[str, Any], results: list[Result]) -> Pairs:
    """Return the numbers of two cells, paired by seeds; a number in the place of the second stands for every seed."""
    column = find(compared["metric"], compared.get("out", ""))

    def values(side: Any) -> dict[int, float]:
        cell, score = side if isinstance(side, list) else (side, OWN)
        numbers = {r.seed: column.value(r, score) for r in results if r.cell == cell and r.error is None}
        return {seed: number for seed, number in numbers.items() if math.isfinite(number)}

    first = values(compared["first"])
    chance = isinstance(compared["second"], float)
    second = dict.fromkeys(first, compared["second"]) if chance else values(compared["second"])
    seeds = sorted(set(first) & set(second))
    return [first[s] for s in seeds], [second[s] for s in seeds], "seeds"


def of_settings(compared: dict[str, Any], folder: Path) -> Pairs:
    """Return the numbers of two scores, paired by the settings of `experiments.trust` that have the measure."""
    seeds: dict[str, list[dict[str, dict[str, float]]]] = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        seeds[content["name"]].append(content["scores"])
    first, second = [], []
    for runs in seeds.values():
        means = {
            score: float(np.mean([run[score].get(compared["measure"], math.nan) for run in runs]))
            for score in runs[0]
        }
        rivals = compared.get("among", RIVALS) if compared["second"] == "best" else [compared["second"]]
        if math.isfinite(means[compared["first"]]):
            first.append(means[compared["first"]])
            second.append(max(means[rival] for rival in rivals))
    return first, second, "settings"


def of_situations(compared: dict[str, Any], folder: Path) -> Pairs:
    """Return the numbers of two columns of `experiments.posterior_use`, paired by situations (means over seeds)."""
    runs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if "scores" not in content:
            continue
        place = content["accuracy"] if compared["measure"] == "accuracy" else None
        both = [
            place[name] if place is not None else content["scores"][name][compared["measure"]]
            for name in (compared["first"], compared["second"])
        ]
        runs[path.stem.rsplit("-", 1)[0]].append((both[0], both[1]))
    means = [np.mean(values, axis=0) for values in runs.values()]
    return [float(m[0]) for m in means], [float(m[1]) for m in means], "situations"


def numbers_at(content: Any, path: list[str], paired_by: str = "") -> dict[str, float]:
    """Return the numbers at a path of keys, by what stands in the place of its "*"; of lists the mean of all parts.

    Example:
        >>> content = {"cosine/0": {"recall": 0.5}, "cosine/1": {"recall": 0.7}, "other/0": {"recall": 0.1}}
        >>> numbers_at(content, ["cosine/*", "recall"])
        {'0': 0.5, '1': 0.7}
    """
    if isinstance(content, list):
        parts = [numbers_at(part, path, paired_by) for part in content]
        return {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}
    if not path:
        return {paired_by: float(content)}
    key, rest = path[0], path[1:]
    if "*" not in key:
        return numbers_at(content[key], rest, paired_by)
    start, end = key.split("*")
    numbers: dict[str, float] = {}
    for name, part in content.items():
        if name.startswith(start) and name.endswith(end) and len(name) > len(start) + len(end):
            numbers |= numbers_at(part, rest, name[len(start) : len(name) - len(end)])
    return numbers


def of_numbers(compared: dict[str, Any], folder: Path) -> Pairs:
    """Return the numbers at two paths of a file, paired by what stands in the place of "*" in both."""
    content = json.loads((folder / compared["file"]).read_text(encoding="utf-8"))
    first, second = (numbers_at(content, compared[side]) for side in ("first", "second"))
    names = [name for name in first if name in second and name not in compared.get("without", ())]
    return [first[name] for name in names], [second[name] for name in names], compared["by"]


def verdict(expect: str, paired: PairedComparison, kind: str) -> str:
    """Return what the interval says of a claim."""
    if expect == "alike":
        return (
            f"no difference seen over {paired.num_seeds} {kind}"
            if not paired.differs
            else "**does not hold**"
        )
    wanted = paired.difference if expect == "above" else -paired.difference
    if not paired.differs:
        return f"not decided by {paired.num_seeds} {kind}"
    return "holds" if wanted > 0 else "**does not hold**"


def entry(claim: dict[str, Any], results: list[Result], folder: Path) -> list[str]:
    """Return the lines of one claim."""
    if "cells" in claim:
        first, second, kind = of_cells(claim["cells"], results)
    elif "settings" in claim:
        first, second, kind = of_settings(claim["settings"], folder / "trust")
    elif "numbers" in claim:
        first, second, kind = of_numbers(claim["numbers"], folder)
    else:
        first, second, kind = of_situations(claim["situations"], folder / "posterior_use")
    lines = ["", f"### {claim['id']}", "", claim["claim"], ""]
    if len(first) < 2:
        lines.append(f"- Not decided: {len(first)} {kind} have both numbers, an interval needs two.")
    else:
        paired = compare_paired(first, second)
        lines += [
            f"- Paired difference: {paired.difference:+.3f}, 95 % interval [{paired.low:+.3f}, {paired.high:+.3f}] "
            f"over {paired.num_seeds} {kind} (means {np.mean(first):.3f} and {np.mean(second):.3f}).",
            f"- Verdict: {verdict(claim['expect'], paired, kind)}.",
        ]
    return [*lines, f"- Would be falsified by {claim['falsified']}"]


def page(themes: list[dict[str, Any]], folder: Path) -> str:
    """Return the page of all claims."""
    results = list(read_results(folder))
    lines = [
        "# Evidence",
        "",
        "Each claim of the documentation that compares two things, with the paired "
        "difference behind it, its command, and what would show that it is wrong. Differences are of two scores or "
        "methods on the same seeds, settings or situations, with Student's 95 % interval, which is wide for three "
        "seeds. Settings and situations share data sets and encoders, so that they are not independent and their "
        "intervals are somewhat too narrow. A claim whose interval includes 0 is not decided, and says so. Claims "
        "that no difference exists say only that none was seen. The [glossary](glossary.md) explains the terms.",
        "",
        "Other pages have [the papers' numbers beside ours](../figures/papers.md) and "
        "[mean ranks with critical differences](../figures/critical_differences.md).",
    ]
    for theme in themes:
        files = ", ".join(f"`{name.strip()}`" for name in theme["files"].split(","))
        table = theme["table"]
        lines += ["", f"## {theme['theme']}", ""]
        made_by = (
            f"Made by `{theme['command']}`"
            if theme["command"]
            else "Made by an earlier version, not to be made again"
        )
        lines.append(f"{made_by}; files: {files}; table: [{Path(table).stem}](../{table}).")
        for claim in theme["claims"]:
            lines += entry(claim, results, folder)
    made_by = "Made by `python -m experiments.claims --results figures/results --out docs/evidence.md`."
    return "\n".join([*lines, "", made_by, ""])


def main() -> None:
    """Run the command line."""
    command = folders(__doc__, ("--results", "--out"))
    options = command.parse_args()
    themes = yaml.safe_load((HERE / "claims.yaml").read_text(encoding="utf-8"))
    write_text(options.out, page(themes, options.results))


if __name__ == "__main__":
    main()
