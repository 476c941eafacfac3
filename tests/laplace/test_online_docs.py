"""The page about online LAM: its code runs, from top to bottom, and it names every option."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

from experiments.published import Switches
from laplacian_metric.laplace.online import OnlineLAM
from tests.pages import run_page


def page(root: Path) -> str:
    return (root / "docs" / "online.md").read_text(encoding="utf-8")


def test_the_code_on_the_page_runs(root: Path) -> None:
    names = run_page(root / "docs" / "online.md")
    online, recall = names["online"], names["recall"]
    assert isinstance(online, OnlineLAM)
    assert online.steps > online.warmup
    assert isinstance(recall, float)
    assert recall > 0.5


def test_the_table_has_every_switch_and_the_page_every_option(root: Path) -> None:
    text = page(root)
    for field in fields(Switches):
        assert f"| `{field.name}` |" in text
    for name in set(inspect.signature(OnlineLAM).parameters) - {"encoder", "optimizer", "loss"}:
        assert name in text, name
