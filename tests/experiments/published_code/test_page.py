"""The page on the published code: its code runs, its options exist, and the tests that it names are there."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from pathlib import Path

import pytest

from experiments.published import PublishedContrastiveLoss, Switches
from laplacian_metric.methods import make
from laplacian_metric.training import TrainingOptions
from tests.pages import run_page

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "published_code.md").read_text(encoding="utf-8")


def names_in(path: Path) -> list[str]:
    """Their names, without what all of them begin with."""
    return re.findall(r"^def test_(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_code_on_the_page_runs_and_shows_what_the_page_says(root: Path) -> None:
    names = run_page(root / "docs" / "published_code.md")
    errors = names["errors"]
    assert errors["sign", "fixed"] == 0
    assert min(errors["sign", "full"], errors["sign", "positive"]) > 1
    assert errors["negatives beyond the margin", "positive"] == 0
    assert errors["negatives beyond the margin", "fixed"] > 0.05
    assert all(errors["value", each] == 0 for each in ("full", "fixed", "positive"))
    assert errors["as published", "positive"] == errors["sign", "positive"]
    value = names["value"]
    assert math.isfinite(value)


def test_every_test_that_is_named_is_there(page: str) -> None:
    named = re.findall(r"`(\w+): (\w+)`", page)
    assert len(named) > 30
    for file, begins in named:
        tests = names_in(FOLDER / f"test_{file}.py")
        assert any(test.startswith(begins) for test in tests), f"{file}: {begins}"


def test_every_option_exists(page: str) -> None:
    for call, options in re.findall(r"`make\((\"[\w-]+\"), ([^)]+)\)`", page):
        make(call.strip('"'), **dict(_option(part) for part in options.split(", ")))
    for kind in (PublishedContrastiveLoss, Switches, TrainingOptions):
        field_names = {field.name for field in fields(kind)}
        named = re.findall(rf"`{kind.__name__}\((\w+)=\)`", page)
        assert named
        assert set(named) <= field_names


def _option(text: str) -> tuple[str, str | int]:
    name, value = text.split("=")
    return name, value.strip('"') if value.startswith('"') else int(value)
