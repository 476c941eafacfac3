"""Hostile inputs, kills, threads, full disks and readers beside writers, counted: x of y behaved.

`python -m tests.attack.attack` runs all of it at full size and prints a line for each; `test_attack.py` runs the same
at a reduced size and demands that every count is complete.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.attack.counting import Count
from tests.attack.damaged_files import models
from tests.attack.malformed import malformed
from tests.attack.processes import disk_full, kills, readers, threads

FULL: dict[str, Callable[[], Count]] = {
    "threads": lambda: threads(36),
    "kills": lambda: kills(20),
    "readers": lambda: readers(10_000),
    "disk full": disk_full,
    "malformed": lambda: malformed(100),
    "models": lambda: models(400),
}


def page(counts: Sequence[Count], before: str = "") -> str:
    """Return what was counted as Markdown; rows of other attacks are kept from the page as it was ``before``."""
    rows = {
        line.split(" | ")[0].strip("| "): line
        for line in before.splitlines()
        if " of " in line and "|" in line
    }
    for count in counts:
        ends = ", ".join(f"{number:,} {end}" for end, number in sorted(count.ends.items()) if len(end) < 40)
        rows[count.name] = f"| {count.name} | {count.good:,} of {count.trials:,} | {ends} |"
    lines = [
        "# Attacks",
        "",
        "Made by `python -m tests.attack.attack --out figures/attack.md`, which takes some minutes. A trial behaves if",
        "it ends with the right result or is refused in a line or two: no silent error, traceback, hang or signal.",
        "",
        "| attack | behaved | how the trials ended |",
        "|---|---|---|",
        *rows.values(),
    ]
    return (
        "\n".join([*lines, *(f"\n- {count.name}: {text[:200]}" for count in counts for text in count.wrong)])
        + "\n"
    )


def main() -> None:
    """Run attacks by name, or all of them; print the counts, and write a page of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=", ".join(FULL))
    parser.add_argument("--out", type=Path, help="the page")
    options = parser.parse_args()
    counts = []
    for name in options.names or FULL:
        counts.append(FULL[name]())
        sys.stdout.write(f"{counts[-1]}\n")
        sys.stdout.flush()
        if options.out is not None:
            before = options.out.read_text(encoding="utf-8") if options.out.exists() else ""
            options.out.write_text(page(counts, before), encoding="utf-8")


if __name__ == "__main__":
    main()
