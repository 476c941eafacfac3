"""What `setup.py` declares, and the two commands of the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import laplacian_metric
from laplacian_metric.metrics import ood_auroc
from tests.pages import code_blocks, run_page


@pytest.fixture(scope="module")
def metadata(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The egg metadata that setup.py makes, by file name."""
    folder = tmp_path_factory.mktemp("metadata")
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(folder)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    (made,) = folder.glob("*.egg-info")
    return {path.name: path.read_text(encoding="utf-8") for path in made.iterdir() if path.is_file()}


def requirements(metadata: dict[str, str]) -> list[str]:
    lines = [line.strip() for line in metadata["requires.txt"].splitlines()]
    return [line for line in lines if line and not line.startswith("[")]


def test_every_dependency_has_a_lower_bound_and_none_is_a_url(metadata: dict[str, str]) -> None:
    found = requirements(metadata)
    assert any(line.startswith("torch>=2.6") for line in found)
    for line in found:
        assert re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?>=[0-9.]+", line), line


def test_version_packages_and_command(metadata: dict[str, str], root: Path) -> None:
    assert f"\nVersion: {laplacian_metric.__version__}\n" in metadata["PKG-INFO"]
    assert metadata["top_level.txt"].split() == ["hessians", "laplacian_metric"]
    assert "lam = laplacian_metric.cli:main" in metadata["entry_points.txt"]
    sources = metadata["SOURCES.txt"].split()
    packages = [
        path.parent for top in ("hessians", "laplacian_metric") for path in (root / top).rglob("*.py")
    ]
    for package in packages:
        assert f"{package.relative_to(root).as_posix()}/__init__.py" in sources
    for package in ("hessians", "laplacian_metric"):
        assert f"{package}/py.typed" in sources


def test_every_file_of_the_sample_is_packaged(metadata: dict[str, str], root: Path) -> None:
    sources = set(metadata["SOURCES.txt"].split())
    folder = root / "laplacian_metric" / "data" / "_sample"
    files = {path.relative_to(root).as_posix() for path in folder.iterdir()}
    assert len(files) == 4
    assert files <= sources


def test_every_style_sheet_and_script_is_packaged(metadata: dict[str, str], root: Path) -> None:
    folder = root / "laplacian_metric" / "report" / "assets"
    files = {path.relative_to(root).as_posix() for path in folder.iterdir()}
    assert {path.rsplit(".", 1)[1] for path in files} == {"css", "js"}
    assert files <= set(metadata["SOURCES.txt"].split())


def test_every_dependency_has_its_line_in_contributing(metadata: dict[str, str], root: Path) -> None:
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for line in requirements(metadata):
        name = re.split(r"[\[>]", line)[0]
        assert f"`{name}` |" in text, name


def test_the_readme_has_two_commands_of_one_line(root: Path) -> None:
    commands = code_blocks(root / "README.md", "sh")
    assert len(commands) == 2
    for command in commands:
        assert command.count("\n") == 1
        assert command.startswith("python3.11 -m venv ")


def test_the_readme_has_a_picture_and_says_whom_to_cite(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[([^\]]{40,})\]\(([^)]+)\)", text)  # with words for whoever does not see it
    assert pictures
    assert all((root / path).is_file() for _, path in pictures)
    cited = " ".join(code_blocks(root / "README.md", "bibtex"))
    for title in ("Bayesian Metric Learning", "Hedged Instance Embedding", "Bayesian Triplet Loss"):
        assert title in cited


def test_the_first_code_is_short_and_shows_digits_that_are_less_sure_than_clothes(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = [code_blocks(root / page)[0] for page in ("README.md", "docs/index.md")]
    assert first[0] == first[1]
    assert len([line for line in first[0].splitlines() if line.strip()]) == 12
    tutorial = code_blocks(root / "docs" / "tutorials" / "posthoc.md")[1]
    assert len([line for line in tutorial.splitlines() if line.strip()]) == 10
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(first[0], names)
    shown = [float(number) for number in re.findall(r"tensor\(([\d.]+)\)", capsys.readouterr().out)]
    claimed = [float(number) for number in re.search(r"about (\d+) and (\d+)", first[0]).groups()]  # type: ignore[union-attr]
    assert shown[0] > 2 * shown[1]
    assert shown == pytest.approx(claimed, rel=0.15)
    clothes, digits = (names["lam"].embed(names[name]).uncertainty for name in ("unseen", "digits"))
    assert ood_auroc(clothes, digits) > 0.95


def test_the_code_in_the_readme_runs(root: Path) -> None:
    assert {"answer", "known", "unknown", "w", "b", "diagonal"} <= set(run_page(root / "README.md"))
