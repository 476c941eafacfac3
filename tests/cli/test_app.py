"""The command `lam`: what it prints, what it leaves, and how it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace as Box
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import laplacian_metric
from laplacian_metric.cli import app
from laplacian_metric.demo import run


def lam(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and everything that was printed, in one line, without the colours that some environments ask for."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", result.output)
    return result.exit_code, " ".join(plain.split())


def test_version() -> None:
    assert lam("--version") == (0, f"laplacian_metric {laplacian_metric.__version__}")


def test_help_names_the_commands() -> None:
    code, output = lam("--help")
    assert code == 0
    assert "demo" in output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["demo"], "--out"),
        (["demo", "--out", "x", "--seed", "-1"], "--seed"),
        (["demo", "--out", "x", "--epochs", "0"], "--epochs"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], expected: str) -> None:
    code, output = lam(*arguments)
    assert code == 2
    assert expected in output
    assert "Traceback" not in output


def test_a_full_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    code, output = lam("demo", "--out", tmp_path)
    assert code == 1
    assert "is not empty" in output
    assert "--force" in output
    assert "Traceback" not in output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    code, output = lam("demo", "--out", tmp_path / "out", "--force")
    assert code == 1
    assert "is a file" in output
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.slow
def test_the_demo_from_a_shell(tmp_path: Path, root: Path, long_form: bool) -> None:
    epochs = [] if long_form else ["--epochs", "1"]
    command = [sys.executable, "-m", "laplacian_metric.cli", "demo", "--out", str(tmp_path / "out"), *epochs]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "recall@1" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert str(tmp_path) not in page
    assert str(root) not in page
    assert str(Path.home()) not in page


@pytest.mark.parametrize(("answered", "said"), [(None, "none can be promised"), (0.5, "50.0%")])
def test_the_demo_says_its_figures_to_people_and_machines(
    answered: float | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_demo(*arguments: Any, **options: Any) -> Any:
        return Box(
            training=Box(seconds=1.5),
            seconds=2.5,
            train_images=2500,
            inside=Box(recall=0.75),
            uncertainty=Box(
                inside=Box(uncertainty=torch.tensor([0.1, 0.2])), outside=Box(uncertainty=torch.tensor([0.3]))
            ),
            refusal=Box(error=0.25, answered=answered, answered_error=0.125, strangers_answered=0.0),
            agreements=[Box(deviation=1e-13), Box(deviation=2e-13)],
        )

    monkeypatch.setattr(run, "run_demo", run_demo)
    code, output = lam("demo", "--out", "pages")
    assert code == 0
    assert "2,500 images trained on in 1.5 s, everything in 2.5 s" in " ".join(output.split())
    assert said in output
    assert "2.0e-13" in output
    code, output = lam("demo", "--out", "pages", "--json")
    found = json.loads(output)
    assert found.pop("report") == str(Path("pages") / "report.html")
    assert found == {
        "training_seconds": 1.5,
        "seconds": 2.5,
        "recall@1": 0.75,
        "strangers_auroc": 1.0,
        "error": 0.25,
        "answered_error": 0.125,
        "answered": answered,
        "strangers_answered": 0.0,
        "curvature_deviation": 2e-13,
    }
