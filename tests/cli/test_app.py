"""The command `lam` from a shell, and the demo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import laplacian_metric
from tests.cli.running import lam, refused


def test_version() -> None:
    done = lam("--version")
    assert (done.code, done.out) == (0, f"laplacian_metric {laplacian_metric.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["demo"], "--out"),
        (["demo", "--out", "x", "--seed", "-1"], "--seed"),
        (["demo", "--out", "x", "--epochs", "0"], "--epochs"),
        (["nonsense"], "nonsense"),
        (["--import", "no_such_module", "compare", "x"], "no_such_module"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], named: str) -> None:
    done = lam(*arguments)
    assert done.code == 2
    assert named in done.err
    assert "Traceback" not in done.err


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert "--force" in refused("demo", "--out", tmp_path)
    refused("demo", "--out", tmp_path / "mine.txt", "--force")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.slow
def test_the_demo_from_a_shell(tmp_path: Path, root: Path, long_form: bool) -> None:
    epochs = [] if long_form else ["--epochs", "1"]
    command = [sys.executable, "-m", "laplacian_metric.cli", "demo", "--json", "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, *epochs], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    figures = json.loads(done.stdout)
    assert figures["report"] == str(tmp_path / "out" / "report.html")
    assert 0 < figures["error"] < 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for private in (tmp_path, root, Path.home()):
        assert str(private) not in page
