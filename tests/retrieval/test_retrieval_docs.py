"""The page on retrieval: its code runs, and what it says about it is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pages import run_page

pytest.importorskip("pyarrow", reason="the page exports to Parquet, which needs pyarrow")


def test_the_code_on_the_page_runs(root: Path) -> None:
    names: Any = run_page(root / "docs" / "retrieval.md")
    assert names["wrong"][names["answered"]].mean() < names["wrong"].mean()
    assert names["report"].alarm
    assert len(names["clean"]) < len(names["index"])
