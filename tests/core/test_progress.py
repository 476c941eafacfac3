"""Progress bars: nothing of them changes what is iterated, and nothing is shown where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from laplacian_metric.core.progress import track


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


def test_an_error_passes_through() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise RuntimeError("broken loader")

    for show in (True, False):
        with pytest.raises(RuntimeError, match="broken loader"):
            list(track(failing(), "counting", show=show))


def test_items_are_taken_when_they_are_asked_for() -> None:
    taken = []

    def items() -> Iterator[int]:
        for i in range(5):
            taken.append(i)
            yield i

    bar = track(items(), "counting", show=False)
    assert (next(bar), next(bar), taken) == (0, 1, [0, 1])
