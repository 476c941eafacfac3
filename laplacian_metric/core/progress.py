"""Progress bars for long work: on a terminal only, on standard error, and never from quick work."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")


def track(
    items: Iterable[T], description: str, *, total: int | None = None, show: bool | None = None
) -> Iterator[T]:
    """Iterate with a progress bar.

    Args:
        items: what to go through.
        description: what is done with them.
        total: how many there are; their length where they have one.
        show: None shows the bar where standard error is a terminal.

    Example:
        >>> list(track([1, 2], "counting", show=False))
        [1, 2]
    """
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not (on_terminal if show is None else show):
        yield from items
        return
    from rich.console import Console
    from rich.progress import track as rich_track

    length = len(items) if total is None and isinstance(items, Sized) else total
    console = Console(stderr=True, force_terminal=show)
    yield from rich_track(items, description=description, total=length, console=console, transient=True)
