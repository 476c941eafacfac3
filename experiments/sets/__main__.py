"""List published data sets, or check whether their files are found: `python -m experiments.sets [NAME ...]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import experiments.sets  # noqa: F401 (registers them)
from laplacian_metric import data


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each data set; return 1 where one that is named cannot be read."""
    parser = argparse.ArgumentParser(
        description="List published data sets, and check whether they can be read."
    )
    parser.add_argument(
        "names", nargs="*", help="read the first split of these; without names all are listed"
    )
    parser.add_argument("--data-dir", type=Path, help="the folder of the data sets")
    options = parser.parse_args(arguments)
    if not options.names:
        for name in sorted(data.names()):
            about = data.info(name)
            print(f"{name}: {about.title}; {', '.join(about.splits)}; {about.licence}; {about.layout}")
        return 0
    missing = 0
    for name in options.names:
        try:
            line = str(data.load(name, data.info(name).splits[-1], data_dir=options.data_dir))
        except (ValueError, OSError) as error:
            line, missing = f"{name}: {error}", 1
        print(line)
    return missing


if __name__ == "__main__":
    sys.exit(main())
