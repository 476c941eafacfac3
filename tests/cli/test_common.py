"""What all commands have in common: help with an example, errors, JSON, and starting quickly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from safetensors import SafetensorError

from laplacian_metric.cli import app, common
from laplacian_metric.report import model_evaluation
from tests.cli.conftest import Place
from tests.cli.running import lam, refused, worked

COMMANDS = (
    "demo",
    "fit",
    "train",
    "pretrain-risk",
    "embed",
    "index",
    "query",
    "evaluate",
    "report",
    "compare",
    "serve",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    assert f"Example: lam {command}" in " ".join(worked(command, "--help").out.split())


def test_all_commands_are_here() -> None:
    group = typer.main.get_command(app)
    assert set(group.commands) == set(COMMANDS)  # type: ignore[attr-defined]


def test_debug_shows_where(place: Place) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file"):
        lam("--debug", "compare", place.root / "none.json")


@pytest.mark.parametrize(
    "defect", [AttributeError("no x"), KeyError("files"), AssertionError(), StopIteration()]
)
def test_a_defect_is_said_to_be_one(place: Place, monkeypatch: pytest.MonkeyPatch, defect: Exception) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise defect

    monkeypatch.setattr(model_evaluation, "evaluate", broken)
    said = refused("evaluate", place.flat_model, place.test_features)
    assert f"unexpected {type(defect).__name__}" in said
    assert "lam --debug COMMAND shows where" in said
    with pytest.raises(type(defect)):
        lam("--debug", "evaluate", place.flat_model, place.test_features)


def test_a_damaged_safetensors_file_is_a_mistake(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*arguments: object, **options: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(model_evaluation, "evaluate", damaged)
    said = refused("evaluate", place.flat_model, place.test_features)
    assert said == "error: No space left on device"


def test_torch_says_it_in_a_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("CUDA out of memory\nTried to allocate\n a lot")

    monkeypatch.setattr(model_evaluation, "evaluate", broken)
    assert refused("evaluate", place.flat_model, place.test_features) == "error: CUDA out of memory"


@pytest.mark.parametrize("command", [("evaluate", "m", "d"), ("fit", "--features", "f.npy", "--out", "m")])
def test_devices_that_are_not_there(tmp_path: Path, command: tuple[str, ...]) -> None:
    out = () if command[0] == "fit" else ("--out", tmp_path / "e.json")
    said = refused(*command, *out, "--device", "no-such-device")
    assert "there is no device 'no-such-device'" in said
    assert "no device 'meta'" in refused(*command, *out, "--device", "meta")


def test_what_the_library_calls_things_is_said_as_flags() -> None:
    assert common.message_of(ValueError("load with skip_unreadable=True")) == "load with --skip-broken"
    assert common.message_of(ValueError()) == "ValueError"
    assert common.message_of(ValueError("a.yaml: expected ']'\n  in line 1:\n    a: [1\n      ^")) == (
        "a.yaml: expected ']' in line 1: a: [1 ^"
    )
    assert common.message_of(OSError(28, "No space left on device", "m")) == "m: No space left on device"


def test_standard_output_is_json_alone(place: Place, root: Path) -> None:
    command = [sys.executable, "-m", "laplacian_metric.cli", "evaluate", str(place.model), str(place.photos)]
    done = subprocess.run(
        [*command, "--resamples", "0", "--samples", "0", "--json"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("{")
    assert done.stdout.endswith("}\n")
    assert done.stderr.startswith("warning: the model was fitted to 96 of the 120 images")
    assert "\r" not in done.stderr  # no progress bar where nobody watches
    assert len(done.stderr.splitlines()) == 2


def test_a_mistake_in_a_shell(root: Path) -> None:
    command = [sys.executable, "-m", "laplacian_metric.cli", "evaluate", "nowhere", "sample-mnist"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "error: there is no model folder nowhere\n"


def test_completion_can_be_installed() -> None:
    assert "--install-completion" in worked("--help").out


def test_what_is_said_as_flags_is_what_the_library_says(root: Path) -> None:
    sources = [path for path in (root / "laplacian_metric").rglob("*.py") if path.name != "common.py"]
    said = "".join(path.read_text(encoding="utf-8") for path in sources)
    assert [text for text in common.FLAGS if text not in said] == []
