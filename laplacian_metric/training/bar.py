"""The progress of a training: a bar on a terminal, logged lines elsewhere, with loss and validation recall."""

from __future__ import annotations

from typing import Any

from laplacian_metric.core.progress import Pace, on_terminal


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
        self.recall = f"{entry['recall@1']:.3f}"
