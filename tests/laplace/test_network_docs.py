"""The page about deeper layers: its code runs, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import torch


def test_the_code_on_the_page_runs(root: Path) -> None:
    text = (root / "docs" / "deeper_layers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1
    names: dict[str, object] = {}
    exec(compile(blocks[0], "docs/deeper_layers.md", "exec"), names)
    z = names["z"]
    assert isinstance(z, torch.Tensor)
    assert z.shape == (10, 10, 3)
