"""Processes that watch each other: one that fails or is killed ends the others' wait within seconds, by its name.

A sum over processes waits for all of them, by itself for the time-out of the group, which is half an hour. Inside of
`watched` every process leaves a sign of life in the group's store each second, and the error that it fails with. A
process that waits for a sum looks at both.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import distributed as dist

SECONDS_BETWEEN_SIGNS = 1.0
SECONDS_UNTIL_GONE = 18.0  # without a sign of life
LONGEST_PAUSE = 0.02


class OtherProcessError(RuntimeError):
    """Another process cannot go on, or has other settings: see its own error."""


class _Watch:
    """The signs of life of all processes, and what they failed with."""

    number = 0
    current: _Watch | None = None

    def __init__(self) -> None:
        _Watch.number += 1
        self.rank, self.processes = dist.get_rank(), dist.get_world_size()
        store = dist.distributed_c10d._get_default_store()
        self.store = dist.PrefixStore(f"laplacian_metric/{_Watch.number}", store)
        self.signs: dict[int, tuple[bytes, float]] = {}
        self.looked = time.monotonic()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def start(self) -> None:
        """Begin to leave signs of life."""
        self.store.set(f"name/{self.rank}", f"{socket.gethostname()}, process id {os.getpid()}")
        self._thread.start()

    def stop(self, error: BaseException | None) -> None:
        """Leave the error that this process fails with, if any, and no further signs of life."""
        self._left.set()
        self._thread.join()
        try:
            if error is None or isinstance(
                error, OtherProcessError
            ):  # what another one failed with has its name
                self.store.set(f"done/{self.rank}", "")
            else:
                self.store.set(f"failed/{self.rank}", f"{type(error).__name__}: {error}")
        except (RuntimeError, OSError):  # whoever keeps the store is gone, and the others know
            return

    def _live(self) -> None:
        count = 0
        while True:
            try:
                self.store.set(f"sign/{self.rank}", str(count))
            except (RuntimeError, OSError):
                return
            if self._left.wait(SECONDS_BETWEEN_SIGNS):
                return
            count += 1

    def wait(self, work: Any) -> None:
        """Wait for a sum, as long as all processes live."""
        pause = 1e-5
        try:
            while not work.is_completed():
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                self.look()
            work.wait()
        except OtherProcessError:
            raise
        except RuntimeError as error:  # of a connection that another process has closed
            until = time.monotonic() + SECONDS_UNTIL_GONE + 3 * SECONDS_BETWEEN_SIGNS
            while time.monotonic() < until:
                self.look()
                time.sleep(SECONDS_BETWEEN_SIGNS / 4)
            raise OtherProcessError("the connection to another process is gone: see its error") from error

    def look(self) -> None:
        """Raise the error of another process that has failed, or is gone."""
        now = time.monotonic()
        if now - self.looked < SECONDS_BETWEEN_SIGNS:
            return
        self.looked = now
        try:
            for rank in range(self.processes):
                if rank != self.rank and not self.store.check([f"done/{rank}"]):
                    self._look_at(rank, now)
        except (dist.DistError, OSError) as error:
            raise OtherProcessError(
                "the store of the process group cannot be reached: the process that keeps it is gone, by default "
                "process 0"
            ) from error

    def _look_at(self, rank: int, now: float) -> None:
        if self.store.check([f"failed/{rank}"]):
            text = self.store.get(f"failed/{rank}").decode()
            raise OtherProcessError(f"{self._name(rank)} cannot go on: {text}")
        if not self.store.check([f"sign/{rank}"]):
            return  # it has not come here yet
        sign = self.store.get(f"sign/{rank}")
        before, since = self.signs.get(rank, (b"", now))
        self.signs[rank] = (sign, since if sign == before else now)
        if now - self.signs[rank][1] > SECONDS_UNTIL_GONE:
            raise OtherProcessError(
                f"{self._name(rank)} is gone: it has given no sign of life for {SECONDS_UNTIL_GONE:g} s; it was "
                "killed, or its machine stands still"
            )

    def _name(self, rank: int) -> str:
        where = self.store.get(f"name/{rank}").decode()
        return f"process {rank} of {self.processes} ({where})"


@contextmanager
def watched() -> Iterator[None]:
    """Have the processes of a group watch each other inside; nothing in one process, and nothing new inside of itself.

    Example:
        >>> with watched():
        ...     pass
    """
    grouped = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if not grouped or _Watch.current is not None:
        yield
        return
    watch = _Watch.current = _Watch()
    watch.start()
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        _Watch.current = None
        watch.stop(failure)


def wait(work: Any) -> None:
    """Wait for a sum over processes that was begun, watching the others where that was asked for."""
    if _Watch.current is None:
        work.wait()
    else:
        _Watch.current.wait(work)
