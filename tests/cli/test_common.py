"""What all commands have in common: help with an example, errors, JSON, and starting quickly."""

from __future__ import annotations

import subprocess
import sys

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
    done = worked(command, "--help")
    assert f"Example: lam {command}" in " ".join(done.out.split())


def test_all_commands_are_here() -> None:
    group = typer.main.get_command(app)
    assert set(group.commands) == {*COMMANDS}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (AttributeError("no x"), "unexpected AttributeError: no x"),
        (KeyError("files"), "unexpected KeyError: files"),
        (AssertionError(), "unexpected AssertionError"),
        (SafetensorError("No space left on device"), "error: No space left on device"),
        (RuntimeError("CUDA out of memory\nTried to allocate\n a lot"), "error: CUDA out of memory"),
        (OSError(28, "No space left on device", "m"), "error: m: No space left on device"),
        (
            ValueError("a.yaml: expected ']'\n  in line 1:\n    a: [1\n"),
            "a.yaml: expected ']' in line 1: a: [1",
        ),
        (ValueError("load with skip_unreadable=True"), "load with --skip-broken"),
        (ValueError(), "error: ValueError"),
        (ValueError("\x1b[2J\x07"), "error: \ufffd[2J\ufffd"),
    ],
)
def test_mistakes_and_defects_are_said_in_a_line(
    place: Place, monkeypatch: pytest.MonkeyPatch, raised: Exception, said: str
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise raised

    monkeypatch.setattr(model_evaluation, "evaluate", broken)
    assert said in refused("evaluate", place.flat_model, place.test_features)
    with pytest.raises(type(raised)):
        lam("--debug", "evaluate", place.flat_model, place.test_features)


@pytest.mark.parametrize("device", ["no-such-device", "meta"])
@pytest.mark.parametrize("command", [("evaluate", "m", "d"), ("fit", "--features", "f.npy", "--out", "m")])
def test_devices_that_are_not_there(command: tuple[str, ...], device: str) -> None:
    assert device in refused(*command, "--device", device)


def test_standard_output_is_json_alone(place: Place) -> None:
    command = [sys.executable, "-m", "laplacian_metric.cli", "evaluate", str(place.model), str(place.photos)]
    done = subprocess.run(
        [*command, "--resamples", "0", "--samples", "0", "--json"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("{")
    assert done.stdout.endswith("}\n")
    assert done.stderr.startswith("warning: the model was fitted to 96 of the 120 images")
    assert "\r" not in done.stderr  # no progress bar where nobody watches
    assert len(done.stderr.splitlines()) == 2


def test_a_mistake_in_a_shell() -> None:
    command = [sys.executable, "-m", "laplacian_metric.cli", "evaluate", "nowhere", "sample-mnist"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_tables_hold_any_text(capsys: pytest.CaptureFixture[str]) -> None:
    """No markup, no emoji, nothing that controls a terminal, and no line is broken where nobody watches."""
    common.show("[b]a[/b]", common.table(("", "n"), [("[red]:smile:\x1b[2J", "1"), ("x" * 300, "22")]))
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.endswith(" ") for line in lines)
    assert [line.split() for line in lines] == [
        ["[b]a[/b]"],
        ["n"],
        ["[red]:smile:\ufffd[2J", "1"],
        ["x" * 300, "22"],
    ]
    assert len(lines[2]) == len(lines[3]) == 304
