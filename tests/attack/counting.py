"""What attacks share: the count of their trials, a limit of time, and files with a few bytes altered."""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

SECONDS = 300  # after which an input counts as hanging
TRACEBACK = ("Traceback (most recent call last)", "unexpected ")


@dataclass
class Count:
    """How many trials there were, how many behaved, and what the others did."""

    name: str
    trials: int = 0
    good: int = 0
    wrong: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)

    def add(self, what: str, end: str, good: bool) -> None:
        """Note how a trial ended."""
        self.trials += 1
        self.good += good
        self.ends[end] += 1
        if not good:
            self.wrong.append(f"{what}: {end}")

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {end}" for end, count in sorted(self.ends.items()) if len(end) < 40)
        return "\n  ".join([f"{self.name}: {self.good} of {self.trials} ({ends})", *self.wrong[:20]])


class TimeUp(BaseException):
    """Nothing came in time. It is no OSError, as TimeoutError is, so that no command takes it for a file's fault."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeUp in the main thread after some seconds."""

    def stop(*_: object) -> None:
        raise TimeUp(f"nothing came for {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def damaged(content: bytes, generator: np.random.Generator, kinds: Sequence[int] = range(5)) -> bytes:
    """Some bytes changed, cut off, doubled or put in between."""
    changed = bytearray(content)
    kind = int(generator.choice(list(kinds)))
    place = int(generator.integers(max(1, len(changed))))
    if kind == 0:
        for _ in range(int(generator.integers(1, 8))):
            changed[int(generator.integers(len(changed)))] = int(generator.integers(256))
    elif kind == 1:
        del changed[place:]
    elif kind == 2:
        changed[place:place] = generator.bytes(int(generator.integers(1, 64)))
    elif kind == 3:
        changed = bytearray(generator.bytes(len(changed)))
    else:  # the beginning, where headers are
        for _ in range(3):
            changed[int(generator.integers(min(64, len(changed))))] = int(generator.integers(256))
    return bytes(changed)
