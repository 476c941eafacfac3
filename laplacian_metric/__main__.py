"""The command `lam`, which says in one sentence what is missing where only the base is installed."""

from __future__ import annotations

import sys

from laplacian_metric import NEEDED


def main() -> None:
    """Run the command line."""
    try:
        from laplacian_metric.cli import main as run
    except ModuleNotFoundError as missing:
        if missing.name not in NEEDED:
            raise
        sys.exit(_refused(missing.name))
    run()


def _refused(name: str | None) -> int:
    sys.stderr.write(f'lam needs {name}: pip install ".[lam]" in a clone of the repository\n')
    return 2


if __name__ == "__main__":
    main()
