"""The command `lam`: what it prints, what it leaves, and how it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace as Box
from typing import Any, ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

import laplacian_metric
from laplacian_metric.cli import app
from laplacian_metric.demo import page


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
    assert "digits that are unlike anything seen" in done.stdout
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
    figures = {"recall@1": 0.75, "probability_ece": 0.03, "r_auroc": 0.9}

    class Evaluation(dict[str, float]):
        scores: ClassVar = {"novelty": Box(ood={"MNIST": {"auroc": 0.98}})}

    def run_demo(*arguments: Any, **options: Any) -> Any:
        options["on_stage"]("training")
        reasons = np.array(["unlike anything seen", "trusted"])
        return Box(
            trained=Box(seconds=1.5),
            seconds=2.5,
            gallery=range(2500),
            test="test",
            ood=Box(answer=Box(reason=reasons)),
            evaluation=Evaluation(figures),
            share_answered=lambda queries: answered if queries == "test" or answered is None else 0.0,
            answered_error=0.125,
            curvatures=[Box(deviation=1e-13), Box(deviation=2e-13)],
        )

    monkeypatch.setattr(page, "run_demo", run_demo)
    code, output = lam("demo", "--out", "pages")
    assert code == 0
    assert "2,500 images trained on in 1.5 s, everything in 2.5 s" in output
    assert "training ..." in output
    assert said in output
    assert "2.0e-13" in output
    stdout = CliRunner().invoke(app, ["demo", "--out", "pages", "--json"]).stdout
    assert json.loads(stdout) == {
        "report": str(Path("pages") / "report.html"),
        "training_seconds": 1.5,
        "seconds": 2.5,
        "error": 0.25,
        "probability_ece": 0.03,
        "r_auroc": 0.9,
        "ood_auroc": 0.98,
        "ood_unlike_anything_seen": 0.5,
        "answered": answered,
        "answered_error": 0.125,
        "ood_answered": None if answered is None else 0.0,
        "curvature_deviation": 2e-13,
    }
