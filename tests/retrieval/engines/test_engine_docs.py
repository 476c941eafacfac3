"""The page on vector databases: its code runs, and does what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.pages import run_page


def test_the_code_on_the_page_runs(root: Path) -> None:
    names: Any = run_page(root / "docs" / "vector_databases.md")
    assert names["answers"].ids.shape == (5, 3)
    rows = [int(name.split()[1]) for name in names["answers"].ids.ravel()]
    assert set(np.array(rows) % 3) <= {0, 1}
    assert names["again"].threshold is not None
    assert names["collection"].threshold is None
    assert len(names["collection"]) == 618
