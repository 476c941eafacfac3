"""Long work says how long it will take and, where there is no bar, how far it is; quick work says nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from laplacian_metric.cli import app
from laplacian_metric.core import progress
from laplacian_metric.core.progress import Bar, Pace, track


def clock(seconds_per_call: float) -> Callable[[], float]:
    now = [0.0]

    def read() -> float:
        now[0] += seconds_per_call
        return now[0]

    return read


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Every look at the clock takes 6 seconds."""
    monkeypatch.setattr(progress.time, "monotonic", clock(6.0))
    monkeypatch.setattr(Pace.__init__, "__kwdefaults__", {"unit": "steps", "clock": progress.time.monotonic})
    caplog.set_level(logging.INFO, "laplacian_metric.progress")
    return caplog


def test_an_estimate_comes_first_and_then_how_far_it_is(slow: pytest.LogCaptureFixture) -> None:
    assert list(track(range(10), "features")) == list(range(10))
    assert slow.messages == [
        "features: 10 batches, about 60 s",
        "features: 6 of 10 batches, about 24 s left",
    ]


def test_a_bar_shows_how_far_it_is_itself(slow: pytest.LogCaptureFixture) -> None:
    list(track(range(10), "features", show=True))
    assert slow.messages == ["features: 10 batches, about 60 s"]


def test_of_unknown_length_only_what_is_done_is_said(slow: pytest.LogCaptureFixture) -> None:
    list(track(iter(range(6)), "reading"))
    assert slow.messages == ["reading: 4 batches"]


def test_nothing_is_said_of_quick_work_and_where_nobody_wants_it(
    slow: pytest.LogCaptureFixture, caplog: pytest.LogCaptureFixture
) -> None:
    list(track(range(10), "features", show=False))
    quick = Pace("features", 5, lines=True, clock=clock(0.5))
    assert [quick.advance(done) for done in range(1, 6)] == [None] * 5
    assert caplog.messages == []


def test_a_training_says_how_long_all_its_epochs_take(slow: pytest.LogCaptureFixture) -> None:
    with Bar(3) as bar:
        for epoch in (1, 2, 3):
            bar.begin(epoch, steps=4)
            for _ in range(4):
                bar.step(0.5)
    assert slow.messages[0] == "training: 12 steps, about 72 s"
    assert len(slow.messages) == 3


def test_commands_show_the_lines_on_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace.__init__, "__kwdefaults__", {"unit": "steps", "clock": clock(6.0)})

    def reading(*_: object, **__: object) -> None:
        list(track(range(3), "features"))
        raise ValueError("enough")

    monkeypatch.setattr("laplacian_metric.serve.index.Index.load", reading)
    result = CliRunner().invoke(app, ["query", "index", "queries.npz"])
    assert "features: 3 batches, about 18 s" in result.stderr
    assert result.stdout == ""
    assert logging.getLogger("laplacian_metric.progress").level == logging.NOTSET
