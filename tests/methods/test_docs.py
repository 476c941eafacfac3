"""The page on methods: its code runs, and it names every method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from laplacian_metric import methods
from tests.pages import run_page


def test_the_code_on_the_page_runs(root: Path) -> None:
    names = run_page(root / "docs" / "methods.md")
    both: Any = names["both"]
    assert (int(both.aleatoric.argmax()), int(both.epistemic.argmax())) == (1, 2)


def test_every_method_is_in_the_table(root: Path) -> None:
    text = (root / "docs" / "methods.md").read_text(encoding="utf-8")
    for name in methods._METHODS._places:  # the installed ones
        assert f"| `{name}` |" in text


def test_the_code_of_learning_without_labels_runs(root: Path) -> None:
    names: Any = run_page(root / "docs" / "unlabelled.md")
    assert bool((names["e"].kappa > 0).all())
