"""The call path of a fit is no longer than the page on the architecture says, and the page names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import walks

PAGE = (walks.ROOT / "docs" / "contributing" / "architecture.md").read_text(encoding="utf-8")


def test_the_walk_of_a_fit_is_as_short_as_its_page_says() -> None:
    counts = walks.walked(walks.lam)
    row = re.search(r"\| fit, prior, embed \| (\d+) \| (\d+) \|", PAGE)
    assert row is not None
    assert counts["files"] <= int(row[1])
    assert counts["functions"] <= int(row[2])


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`([a-z_/]+\.py)`", PAGE))
    assert named
    places = (walks.ROOT, walks.ROOT / "laplacian_metric")
    assert [name for name in named if not any((place / name).is_file() for place in places)] == []


def test_what_is_cached_is_forgotten_between_both_runs() -> None:
    calls: list[Path] = []

    def task(folder: Path) -> None:
        from laplacian_metric.vmf.angle import gauss_legendre

        calls.append(folder)
        gauss_legendre(3)

    assert ("laplacian_metric/vmf/angle.py", "gauss_legendre") in walks.called(task)
    assert len(set(calls)) == 2
