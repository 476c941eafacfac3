"""The installed heads: small, of the kind that they say, with cards, and in the wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from laplacian_metric.methods import risk
from laplacian_metric.methods.risk.shipped import FOLDER
from tests.pages import run_page

WIDTHS = {"lite0-cifar10": 1280, "lite0-quickdraw": 1280, "minilm-wordnet": 384}


def test_all_are_installed_by_name() -> None:
    assert risk.names() == tuple(sorted(WIDTHS))
    with pytest.raises(FileNotFoundError, match="lite0-quickdraw"):
        risk.load("lite0")


@pytest.mark.parametrize("name", WIDTHS)
def test_a_head_is_small_and_has_a_card_with_what_it_is_bad_at(name: str) -> None:
    assert sum(path.stat().st_size for path in (FOLDER / name).iterdir()) < 2_000_000
    head = risk.load(name)
    assert head.width == WIDTHS[name]
    uncertainty = head(torch.randn(5, head.width, generator=torch.Generator().manual_seed(0)))
    assert bool(((uncertainty > 0) & (uncertainty < 1)).all())
    assert {"encoder", "trained on", "does not", "made by", "measured"} <= head.card.keys()
    text = risk.card(head)
    for row in head.card["measured"]:
        assert f"| {row['data']} |" in text
        assert (", below chance" in text) == any(row["R-AUROC"] < 0.5 for row in head.card["measured"])
    assert head.card["measured"][0]["R-AUROC"] > 0.5  # on its own data


def test_the_numbers_on_the_page_are_those_of_the_cards(root: Path) -> None:
    page = (root / "docs" / "risk_heads.md").read_text(encoding="utf-8")
    for name in WIDTHS:
        for row in risk.load(name).card["measured"]:
            line = next(
                line for line in page.splitlines() if line.startswith(f"| `{name}` | {row['data']} |")
            )
            assert f"| {row['R-AUROC']:.3f} |" in line.replace("**", "")
            assert f"| {row['distance']:.3f} |" in line


def test_the_code_on_the_page_runs(root: Path) -> None:
    names = run_page(root / "docs" / "risk_heads.md")
    assert names["embedding"].shape == (5, 1280)  # type: ignore[attr-defined]


def test_the_heads_are_in_the_wheel(root: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "egg_info",
        "--egg-base",
        tmp_path,
        "build",
        "--build-base",
        tmp_path / "b",
    ]
    subprocess.run(
        [*command, "bdist_wheel", "-d", tmp_path / "dist"], cwd=root, check=True, capture_output=True
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = (
        "from laplacian_metric.methods import risk; import laplacian_metric; print(laplacian_metric.__file__); "
        "print({name: risk.load(name).width for name in risk.names()})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "installed"), "PATH": ""},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [
        str(tmp_path / "installed" / "laplacian_metric" / "__init__.py"),
        str(WIDTHS),
    ]
