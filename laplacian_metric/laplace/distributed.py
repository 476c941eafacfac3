"""Sums over the processes of ``torchrun``."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch import distributed as dist


def reducer() -> Callable[[Tensor], Tensor] | None:
    """How a tensor is added up over all processes; None in one process."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    return all_sum


def all_sum(tensor: Tensor) -> Tensor:
    """The sum of every process's tensor, on every process."""
    total = tensor.clone()
    dist.all_reduce(total)
    return total
