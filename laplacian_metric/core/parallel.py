"""Sums over the processes of ``torchrun``, and errors that all of them get to know.

A sum over processes waits for all of them, by itself for the time-out of the group, which is half an hour. Inside of
`watched` every process leaves a sign of life in the group's store each second, and the error that it fails with. A
process that waits for a sum looks at both: one that fails or is killed ends the wait of the others within seconds, by
its name.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

Reduce = Callable[[Tensor], Tensor]

# Numbers below it can be squared and summed over 2,048 processes in 64 bits.
CHECKSUMS = 1 << 20
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


def reducer() -> Reduce | None:
    """How a tensor is added up over all processes; None in one process."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    return all_sum


def all_sum(tensor: Tensor) -> Tensor:
    """The sum of every process's tensor, on every process."""
    # NCCL adds up tensors on the GPU only; features that are mapped from a file are not there.
    device = torch.device("cuda") if dist.get_backend() == "nccl" and not tensor.is_cuda else tensor.device
    total = tensor.to(device, copy=True)
    work = dist.all_reduce(total, async_op=True)
    if _Watch.current is None:
        work.wait()
    else:
        _Watch.current.wait(work)
    return total.to(tensor.device)


def gathered(tensor: Tensor, reduce: Reduce | None) -> tuple[Tensor, int]:
    """The rows of all processes one after the other, and which of them is the first of this process.

    Example:
        >>> gathered(torch.ones(2), None)
        (tensor([1., 1.]), 0)
    """
    if reduce is None:
        return tensor, 0
    rank = dist.get_rank()
    counts = torch.zeros(dist.get_world_size(), dtype=torch.long)
    counts[rank] = len(tensor)
    counts = reduce(counts)
    start = int(counts[:rank].sum())
    # Sums with zeros lose no digit.
    rows = tensor.new_zeros(int(counts.sum()), *tensor.shape[1:])
    rows[start : start + len(tensor)] = tensor
    return reduce(rows), start


def share() -> tuple[int, int]:
    """The rank of this process and the number of processes, (0, 1) of a single one.

    Example:
        >>> share()
        (0, 1)
    """
    return (0, 1) if reducer() is None else (dist.get_rank(), dist.get_world_size())


def own_folder() -> str:
    """The name of this process's folder among those of all processes; empty in one process."""
    return "" if reducer() is None else f"process-{dist.get_rank()}-of-{dist.get_world_size()}"


@contextmanager
def together(reduce: Reduce | None) -> Iterator[None]:
    """Let no process go on where one fails inside: it would wait for that one's sums for ever.

    Example:
        >>> with together(None):
        ...     pass
    """
    if reduce is None:
        yield
        return
    rank, processes = share()
    failed = torch.zeros(processes, dtype=torch.long)
    try:
        yield
    except Exception:
        failed[rank] = 1
        reduce(failed)
        raise
    others = reduce(failed).nonzero().flatten().tolist()
    if others:
        names = ", ".join(map(str, others))
        raise OtherProcessError(f"process {names} of {processes} cannot go on: see its error")


def check_agreement(reduce: Reduce, settings: str) -> None:
    """Refuse to add up what is not of the same kind: all processes have to have the same settings."""
    own = int.from_bytes(hashlib.sha256(settings.encode()).digest()[:8], "little") % CHECKSUMS
    count, total, squares = reduce(torch.tensor([1, own, own * own])).tolist()
    if count * squares != total * total:
        raise OtherProcessError(
            f"the processes do not fit the same: this one has {settings}, another one something else; make all LAMs "
            "alike, and broadcast the parameters and buffers of one encoder to the others"
        )
