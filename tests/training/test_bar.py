"""The bar shows the loss and the validation recall on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.training.cases import Case


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, folder: Path, show: bool | None) -> str:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", stream)
    Case(options={"epochs": 3}).run(folder, progress=show)
    return stream.getvalue()


def test_a_terminal_shows_loss_and_recall(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Without a pause between refreshes every state would have to be caught by chance.
    import rich.progress

    update = rich.progress.Progress.update

    def at_once(self: rich.progress.Progress, *args: object, **fields: object) -> None:
        update(self, *args, **{**fields, "refresh": True})  # type: ignore[arg-type]

    monkeypatch.setattr(rich.progress.Progress, "update", at_once)
    shown = written(monkeypatch, Terminal(), tmp_path, None)
    history = Case(options={"epochs": 3}).run(tmp_path, progress=False).history
    assert "epoch 1/3" in shown
    assert "epoch 3/3" in shown
    assert "6/6" in shown
    assert "validation recall@1 -" in shown  # none is known in the first epoch
    for entry in history[:2]:
        assert f"validation recall@1 {entry['recall@1']:.3f}" in shown
    for entry in history:
        assert f"loss {entry['loss']:.4f}" in shown
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("stream", "show", "shown"),
    [
        (io.StringIO(), None, False),
        (Terminal(), False, False),
        (io.StringIO(), False, False),
        (io.StringIO(), True, True),
    ],
)
def test_elsewhere_it_is_shown_only_if_asked_for(
    stream: io.StringIO, show: bool | None, shown: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = written(monkeypatch, stream, tmp_path, show)
    assert ("validation recall@1" in output) == bool(output) == shown
