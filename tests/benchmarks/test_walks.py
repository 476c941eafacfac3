"""The walk of a fit is no longer than the page on the house says, and the page names every file of it."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import walks

PAGE = (walks.ROOT / "docs" / "contributing" / "house.md").read_text(encoding="utf-8")


def test_the_walk_of_a_fit_is_as_short_as_its_page_says() -> None:
    counts = walks.walked(walks.lam)
    row = re.search(r"\| fit, prior, embed \| \d+ \| (\d+) \| \d+ \| (\d+) \|", PAGE)
    assert row is not None
    assert counts["files"] <= int(row[1])
    assert counts["functions"] <= int(row[2])


def test_its_page_names_every_file() -> None:
    files = {file.removeprefix("laplacian_metric/") for file, _ in walks.called(walks.lam)}
    section = PAGE[PAGE.index("## The walks, counted") :]
    assert files <= set(re.findall(r"`([a-z_/]+\.py)`", section))


def test_what_is_cached_is_forgotten_between_both_runs() -> None:
    calls: list[Path] = []

    def task(folder: Path) -> None:
        from laplacian_metric.vmf.angle import gauss_legendre

        calls.append(folder)
        gauss_legendre(3)

    assert ("laplacian_metric/vmf/angle.py", "gauss_legendre") in walks.called(task)
    assert len(set(calls)) == 2
