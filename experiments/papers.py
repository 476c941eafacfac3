"""One page with every number that a paper printed, ours beside it, and why they differ.

    python -m experiments.papers --tables figures/tables --out figures

Ours is read from the tables that `experiments.harness tables` wrote, theirs from `experiments/published_numbers.yaml`,
and the reasons from `experiments/papers.yaml`. A published table without an entry there is an error: no number goes
without a reason.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import write_text
from experiments.arguments import folders

HERE = Path(__file__).resolve().parent
PAPERS = {
    "LAM": "Bayesian Metric Learning for Uncertainty Quantification in Image Retrieval",
    "HIB": "Modeling Uncertainty with Hedged Instance Embedding",
}
NUMBER = re.compile(r"-?\d*\.\d+")


def rows_of(table: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return our entries, by the label of the row and the column, of rows that a published one follows."""
    columns = [name.removesuffix(" ↑").removesuffix(" ↓") for name in table["header"]]
    lines = table["rows"]
    return {
        line["label"]: dict(zip(columns, (entry["text"] for entry in line["entries"]), strict=True))
        for line, after in pairwise(lines)
        if after["kind"] == "published"
    }


def published_order(table: str, descriptions: dict[str, Any]) -> dict[str, str]:
    """Return our label by the published row, of a table of tables.yaml."""
    return {
        row["published"]: row["label"] for row in descriptions["tables"][table]["rows"] if "published" in row
    }


def difference(ours: str, theirs: str) -> str:
    """Return ours minus theirs, with the digits that both have; empty where either has no number."""
    both = [NUMBER.match(text) for text in (ours, theirs)]
    if both[0] is None or both[1] is None:
        return ""
    digits = min(len(match.group().split(".")[1]) for match in both if match)
    return f"{float(both[0].group()) - float(both[1].group()):+.{digits}f}"


def compared(
    name: str, published: dict[str, Any], reason: dict[str, Any], tables: Path, descriptions: dict[str, Any]
) -> list[str]:
    """Return the lines of one published table that was run."""
    ours = rows_of(json.loads((tables / f"{reason['ours']}.json").read_text(encoding="utf-8")))
    label_of = published_order(reason["ours"], descriptions)
    lines = ["| row | metric | paper | ours | difference | seeds |", "|---|---|---|---|---|---|"]
    for row, metrics in published["rows"].items():
        entries = ours.get(label_of.get(row, ""), {})
        for metric, theirs in metrics.items():
            short, _, data = metric.partition("/")
            own = entries.get(short, "not run")
            if data and data not in ("mnist",):  # OOD images that could not be had: another question
                own = "other OOD images"
            seeds = entries.get("seeds", "") if NUMBER.match(own) else ""
            lines.append(f"| {row} | {metric} | {theirs} | {own} | {difference(own, theirs)} | {seeds} |")
    lines += ["", "Why they differ:", ""]
    lines += [
        f"- {'All' if metric == '*' else metric}: {why.strip()}" for metric, why in reason["why"].items()
    ]
    return [*lines, "", f"Ours: [all rows](tables/{reason['ours']}.md)."]


def page(
    tables: Path, published: dict[str, Any], reasons: dict[str, Any], descriptions: dict[str, Any]
) -> str:
    """Return the page."""
    missing = sorted(set(published) - set(reasons))
    if missing:
        raise ValueError(f"experiments/papers.yaml has no reason for: {', '.join(missing)}")
    lines = [
        "# The papers' numbers, and ours",
        "",
        "This page is for readers who compare the papers' tables with ours: every number that a paper printed in these "
        "tables, ours beside it, and why they differ. Ours is the mean over seeds ± one standard deviation. Tables "
        "that were not run are listed with the reason. Numbers that come from defective code are history, not targets "
        "([what was found](../docs/published_code.md)).",
    ]
    for key, title in PAPERS.items():
        lines += ["", f"## {key}: {title}"]
        for name, table in published.items():
            reason = reasons[name]
            if reason["paper"] != key:
                continue
            lines += ["", f"### {table['source']}", ""]
            if "not_run" in reason:
                lines.append(f"Not run: {reason['not_run'].strip()}")
            else:
                lines += compared(name, table, reason, tables, descriptions)
    made_by = "Made by `python -m experiments.papers --tables figures/tables --out figures`."
    return "\n".join([*lines, "", made_by, ""])


def main() -> None:
    """Run the command line."""
    command = folders(__doc__, ("--tables", "--out"))
    options = command.parse_args()
    content = {
        name: yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
        for name in ("published_numbers", "papers", "tables")
    }
    text = page(options.tables, content["published_numbers"], content["papers"], content["tables"])
    write_text(options.out / "papers.md", text)


if __name__ == "__main__":
    main()
