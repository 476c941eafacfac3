"""What `setup.py` declares, and the two commands of the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import laplacian_metric
from tests.pages import code_blocks, run_page


@pytest.fixture(scope="module")
def metadata(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The egg metadata that setup.py makes, by file name."""
    folder = tmp_path_factory.mktemp("metadata")
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(folder)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    (metadata_folder,) = folder.glob("*.egg-info")
    return {
        path.name: path.read_text(encoding="utf-8") for path in metadata_folder.iterdir() if path.is_file()
    }


def requirements(metadata: dict[str, str]) -> list[str]:
    lines = [line.strip() for line in metadata["requires.txt"].splitlines()]
    return [line for line in lines if line and not line.startswith("[")]


def test_every_dependency_has_a_lower_bound_and_none_is_a_url(metadata: dict[str, str]) -> None:
    required = requirements(metadata)
    assert any(line.startswith("torch>=2.6") for line in required)
    for line in required:
        assert re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?>=[0-9.]+", line), line


def test_version_packages_and_command(metadata: dict[str, str], root: Path) -> None:
    assert f"\nVersion: {laplacian_metric.__version__}\n" in metadata["PKG-INFO"]
    assert metadata["top_level.txt"].split() == ["hessians", "laplacian_metric"]
    assert "lam = laplacian_metric.__main__:main" in metadata["entry_points.txt"]
    sources = metadata["SOURCES.txt"].split()
    packages = [
        path.parent for top in ("hessians", "laplacian_metric") for path in (root / top).rglob("*.py")
    ]
    for package in packages:
        assert f"{package.relative_to(root).as_posix()}/__init__.py" in sources
    for top in ("hessians", "laplacian_metric"):
        assert f"{top}/py.typed" in sources


def test_every_file_of_the_sample_is_packaged(metadata: dict[str, str], root: Path) -> None:
    sources = set(metadata["SOURCES.txt"].split())
    folder = root / "laplacian_metric" / "data" / "_sample"
    files = {path.relative_to(root).as_posix() for path in folder.iterdir()}
    assert len(files) == 4
    assert files <= sources


@pytest.mark.parametrize("folder", ["report/templates", "serve/assets"])
def test_every_template_and_script_is_packaged(metadata: dict[str, str], root: Path, folder: str) -> None:
    files = {path.relative_to(root).as_posix() for path in (root / "laplacian_metric" / folder).iterdir()}
    assert len(files) >= 2
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


def test_the_readme_has_a_picture_and_the_papers_are_cited(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[([^\]]{40,})\]\(([^)]+)\)", text)  # with words for whoever does not see it
    assert pictures
    assert all((root / path).is_file() for _, path in pictures)
    cited = " ".join(code_blocks(root / "docs" / "methods.md", "bibtex"))
    for title in ("Bayesian Metric Learning", "Hedged Instance Embedding", "Bayesian Triplet Loss"):
        assert title in cited


def test_the_code_in_the_readme_prints_what_the_readme_shows(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: Any = run_page(root / "README.md")
    assert names["e"].kappa.shape == (1000,)
    shown, printed = code_blocks(root / "README.md", "text")[0], capsys.readouterr().out
    numbers = [
        [float(number) for number in re.findall(r"\d+\.?\d*", text)]
        for text in (shown, printed[: len(shown)])
    ]
    assert numbers[0] == pytest.approx(numbers[1], abs=1.1)  # percent; other processors round otherwise
