"""What both commands of the README print in a new clone, as a page that says nothing of the machine.

    .ci/run --transcript figures/transcript.md

calls this with the logs that it keeps while it runs the commands.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import textwrap
from collections.abc import Sequence
from pathlib import Path

from laplacian_metric.core.files import atomic_write

WIDTH = 120
FIRST, LAST = 40, 40  # lines of a long log that are kept
# What pip and venv say on the way; "Successfully installed ..." stays.
ON_THE_WAY = re.compile(
    r"\s*(Looking in|Processing|Collecting|Obtaining|Downloading|Using cached|Requirement already|Installing|Getting"
    r"|Preparing|Checking|Building|Created wheel|Stored in|Attempting|Found existing|Uninstalling"
    r"|Successfully uninstalled|Successfully built|Link requires|WARNING: (Location|Running pip|Skipping)"
    r"|\[notice\]|\d+ location)\b"
)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>)\]]+", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w.~/-])/(?:[\w.+@-]+/)+(?=[\w.+@-]*)")


def cleaned(log: str, folder: Path) -> list[str]:
    """The lines of a log without colours, progress of an installation, addresses, and folders of this machine.

    Args:
        log: what was printed.
        folder: where the command ran, which becomes ".".

    Example:
        >>> clone = Path("/", "clones", "new")
        >>> log = f"Collecting torch\\nrootdir: {clone}\\nsee https://example.org/a and /usr/lib/b.py"
        >>> cleaned(log, clone)
        ['rootdir: .', 'see (address) and b.py']
    """
    names = {platform.node(): "(machine)", str(Path.home()): "~"}
    lines = []
    for line in log.splitlines():
        shown = _COLOURS.sub("", line.rpartition("\r")[2]).rstrip()
        if ON_THE_WAY.match(shown):
            continue
        shown = shown.replace(str(folder), ".")
        shown = _PATH.sub("", _ADDRESS.sub("(address)", shown))
        for name, other in names.items():
            shown = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", other, shown) if len(name) > 1 else shown
        lines += textwrap.wrap(shown, WIDTH) if shown.startswith("Successfully installed") else [shown]
    return lines


def shortened(lines: Sequence[str]) -> list[str]:
    """The first and the last lines, and how many are between them."""
    left_out = len(lines) - FIRST - LAST
    if left_out <= 1:
        return list(lines)
    return [*lines[:FIRST], f"[... {left_out} lines ...]", *lines[-LAST:]]


def page(parts: Sequence[tuple[str, int, Sequence[str]]], commit: str) -> str:
    """Commands, their seconds and their lines as Markdown."""
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    lines = [
        "# Both commands of the README, in a new clone and new environments",
        "",
        f"Made by `.ci/run --transcript figures/transcript.md` at commit {commit}, with {system}.",
        "Left out are what pip says on the way, folders and addresses, and the middle of long outputs.",
    ]
    for command, seconds, shown in parts:
        lines += ["", f"## {seconds} seconds", "", "```console", f"$ {command}", *shortened(shown), "```"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the page")
    parser.add_argument(
        "--run",
        nargs=3,
        action="append",
        required=True,
        metavar=("COMMAND", "SECONDS", "LOG"),
        help="one that was run here",
    )
    options = parser.parse_args(arguments)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    parts = [
        (command, int(seconds), cleaned(Path(log).read_text(encoding="utf-8", errors="replace"), Path.cwd()))
        for command, seconds, log in options.run
    ]
    with atomic_write(options.out) as temporary:
        temporary.write_text(page(parts, commit), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
