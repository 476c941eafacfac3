"""The picture of which score is for what, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import which_score


def test_the_picture_is_drawn_from_the_results(root: Path, tmp_path: Path) -> None:
    results = root / "figures" / "results" / "trust"
    assert which_score.main(["--results", str(results), "--out", str(tmp_path / "p.png")]) == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    settings = which_score.read(results)
    assert len(settings) >= 10
    table = (root / "figures" / "tables" / "trust.md").read_text(encoding="utf-8")
    row = next(line for line in table.splitlines() if line.startswith("| cifar-lite0 |"))
    assert f"| {settings['cifar-lite0']['trust']['R']:.3f} |".replace(" 0.", " .") in row


def test_what_a_setting_lacks_is_left_out(tmp_path: Path) -> None:
    for name, near in (("a", 0.8), ("b", None)):
        scores = {score: {"R": 0.6, "near": near, "far": 0.7, "O": 0.9} for score in which_score.SCORES}
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name, "scores": scores}))
    assert which_score.means(which_score.read(tmp_path), "near")["vote"] == pytest.approx(0.8)
    with pytest.raises(ValueError, match="no result files"):
        which_score.read(tmp_path / "none")
