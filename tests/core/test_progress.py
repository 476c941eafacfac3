"""Progress: what is iterated stays, long work says how long it takes, and nothing is shown where nobody looks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator

import pytest

from laplacian_metric.core import progress
from laplacian_metric.core.progress import Bar, Pace, track


def unsized() -> Iterator[int]:
    yield from range(4)


@pytest.mark.parametrize("show", [True, False, None])
def test_the_items_come_through(show: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track([3, 1, 2], "counting", show=show)) == [3, 1, 2]
    assert list(track(unsized(), "counting", show=show)) == [0, 1, 2, 3]
    assert list(track(unsized(), "counting", total=4, show=show)) == [0, 1, 2, 3]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("counting" in captured.err) == bool(show)


def test_without_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without a console has none."""
    monkeypatch.setattr(sys, "stderr", None)
    assert list(track([1, 2], "counting")) == [1, 2]


def test_items_are_taken_when_they_are_asked_for() -> None:
    taken = []

    def items() -> Iterator[int]:
        for i in range(5):
            taken.append(i)
            yield i

    bar = track(items(), "counting", show=False)
    assert (next(bar), next(bar), taken) == (0, 1, [0, 1])


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
