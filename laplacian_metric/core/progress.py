"""Progress of long work: bars on a terminal, logged lines elsewhere, an estimate at first; nothing of quick work.

The lines go to the logger "laplacian_metric.progress" with level INFO, which the commands show.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

LOGGER = logging.getLogger("laplacian_metric.progress")
MEASURED = 1.0  # seconds of work from which its whole time is estimated
LONG = 10.0  # seconds from which on it is worth a line
BETWEEN = 20.0  # seconds between two lines


def on_terminal() -> bool:
    """Whether standard error is a terminal, which can show bars."""
    return sys.stderr is not None and sys.stderr.isatty()


def duration(seconds: float) -> str:
    """Return a length of time in words.

    Example:
        >>> duration(8), duration(200), duration(9000)
        ('8 s', '3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Pace:
    """How fast work goes: logs how long it will take and, where no bar shows it, how far it is.

    The first step is not measured, since it is slower than the others.

    Args:
        description: what is done.
        total: how many steps there are, where that is known.
        lines: whether to log how far it is.
        clock: seconds, as `time.monotonic`.

    Example:
        >>> pace = Pace("features", total=100, lines=True, clock=iter([0.0, 1.0, 3.0, 23.0]).__next__)
        >>> pace.advance(1), pace.advance(2), pace.advance(20)
        (None, 'features: 100 steps, about 3 min', 'features: 20 of 100 steps, about 2 min left')
    """

    def __init__(
        self,
        description: str,
        total: int | None,
        *,
        lines: bool,
        unit: str = "steps",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.description, self.total, self.lines, self.unit, self.clock = (
            description,
            total,
            lines,
            unit,
            clock,
        )
        self.begun = self.last = clock()
        self.first: tuple[int, float] | None = None
        self.estimated = False

    def advance(self, done: int) -> str | None:
        """Note that so many steps are done; return the line that was logged, if there is one."""
        now = self.clock()
        if self.first is None:
            self.first = (done, now)
            return None
        seconds = (now - self.first[1]) / max(1, done - self.first[0])
        if not self.estimated and self.total is not None and now - self.first[1] >= MEASURED:
            self.estimated, whole = True, seconds * self.total
            if whole >= LONG:
                return self._log(f"{self.total} {self.unit}, about {duration(whole)}", now)
        if not self.lines or now - self.last < BETWEEN or done == self.total:
            return None
        if self.total is None:
            return self._log(f"{done} {self.unit}", now)
        left = duration(seconds * max(0, self.total - done))
        return self._log(f"{done} of {self.total} {self.unit}, about {left} left", now)

    def _log(self, text: str, now: float) -> str:
        self.last, line = now, f"{self.description}: {text}"
        LOGGER.info("%s", line)
        return line


def track(
    items: Iterable[T],
    description: str,
    *,
    total: int | None = None,
    show: bool | None = None,
    unit: str = "batches",
) -> Iterator[T]:
    """Iterate with a progress bar on a terminal, and with logged lines elsewhere.

    Args:
        items: what to go through.
        description: what is done with them.
        total: how many there are; their length where they have one.
        show: None shows the bar where standard error is a terminal; False shows and logs nothing.
        unit: what the items are.

    Example:
        >>> list(track([1, 2], "counting", show=False))
        [1, 2]
    """
    if show is False:
        yield from items
        return
    bar = on_terminal() if show is None else show
    if total is None and isinstance(items, Sized):
        with suppress(TypeError):  # a loader of a stream has a len() that does not work
            total = len(items)
    shown: Iterable[T] = items
    if bar:
        from rich.console import Console
        from rich.progress import track as rich_track

        console = Console(stderr=True, force_terminal=show)
        shown = rich_track(items, description=description, total=total, console=console, transient=True)
    pace = Pace(description, total, lines=not bar, unit=unit)
    for done, item in enumerate(shown, 1):
        yield item
        pace.advance(done)


class Bar:
    """Steps of an epoch, with what is known so far; with ``show=False`` it shows and logs nothing.

    Example:
        >>> with Bar(1, show=False) as bar:
        ...     bar.begin(1, steps=2)
        ...     bar.step(0.5)
    """

    def __init__(self, epochs: int, show: bool | None = None) -> None:
        self.shown = on_terminal() if show is None else show
        self.logged = show is not False
        self._pace: Pace | None = None
        self._done = 0
        self.epochs = epochs
        self.recall = "-"
        self._bar: Any = None
        self._task: Any = None
        if self.shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]}  validation recall@1 {task.fields[recall]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True, force_terminal=show),
                transient=True,
            )

    def __enter__(self) -> Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, epoch: int, steps: int, done: int = 0) -> None:
        """An epoch, ``done`` of whose steps were taken before."""
        if self.logged and self._pace is None:
            left = (self.epochs - epoch + 1) * steps - done
            self._pace = Pace("training", left, lines=not self.shown)
        if self._bar is None:
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        fields = {"epoch": epoch, "epochs": self.epochs, "loss": "-", "recall": self.recall}
        self._task = self._bar.add_task("", total=steps, completed=done, **fields)

    def step(self, loss: float) -> None:
        """One more step; the mean loss of the epoch so far."""
        self._done += 1
        if self._pace is not None:
            self._pace.advance(self._done)
        if self._bar is not None:
            self._bar.update(self._task, advance=1, loss=f"{loss:.4f}")

    def finished(self, entry: dict[str, Any]) -> None:
        """An epoch is over, and this was measured."""
        # Where validation images have no labels nothing was measured.
        self.recall = f"{entry['recall@1']:.3f}" if "recall@1" in entry else "-"
