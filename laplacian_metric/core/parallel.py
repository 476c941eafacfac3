"""Sums over the processes of ``torchrun``, and errors that all of them get to know."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch import distributed as dist

from laplacian_metric.core.watch import OtherProcessError, wait

Reduce = Callable[[Tensor], Tensor]

# Numbers below it can be squared and summed over 2,048 processes in 64 bits.
CHECKSUMS = 1 << 20


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
    wait(dist.all_reduce(total, async_op=True))
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


def check_agreement(reduce: Reduce | None, settings: str) -> None:
    """Refuse to add up what is not of the same kind: all processes have to have the same settings.

    Example:
        >>> check_agreement(None, "diag of 3 x 4")
    """
    if reduce is None:
        return
    own = int.from_bytes(hashlib.sha256(settings.encode()).digest()[:8], "little") % CHECKSUMS
    count, total, squares = reduce(torch.tensor([1, own, own * own])).tolist()
    if count * squares != total * total:
        raise OtherProcessError(
            f"the processes do not fit the same: this one has {settings}, another one something else; make all LAMs "
            "alike, and broadcast the parameters and buffers of one encoder to the others"
        )
