"""What the training loop does differently in many processes of ``torchrun``."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from hessians.checks import widest_dtype
from laplacian_metric.core.batch import device_of
from laplacian_metric.core.method import Learner
from laplacian_metric.core.parallel import reducer, together

if dist.is_available():
    # Its functions have the process group of the moment as their default. DistributedDataParallel imports it too, when
    # the group is there, which they would then keep alive for good.
    import torch.distributed.nn.functional


def processes() -> tuple[int, int]:
    """This process's number and how many there are."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


class LossModule(nn.Module):
    """A learner's loss as a module, which is what DistributedDataParallel wraps."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.module = learner.module
        self._loss = learner.loss

    def forward(self, inputs: Any, labels: Tensor) -> Tensor:
        return self._loss(inputs, labels)


def loss_function(learner: Learner) -> Any:
    """What gives the loss of a batch, and, in many processes, averages the gradients when it is differentiated."""
    if processes()[1] == 1:
        return learner.loss
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(LossModule(learner))


@contextmanager
def letting_go() -> Iterator[None]:
    """Afterwards nothing holds the process group any more that DistributedDataParallel held.

    It is in cycles of references, which Python clears at some time or other. Until then `destroy_process_group` leaves
    the threads of the group running, and a process that ends while one of them tidies up after the last exchange is
    aborted.
    """
    try:
        yield
    finally:
        if processes()[1] > 1:
            gc.collect()


def all_or_none() -> AbstractContextManager[None]:
    """Where one process fails inside, all do, and none waits for it; costs nothing in one process."""
    return together(reducer())


def read(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches as long as every process can read its own."""
    reader = iter(batches)
    while True:
        with all_or_none():
            batch = next(reader, None)
        if batch is None:
            return
        yield batch


def gathered(tensor: Tensor) -> list[Tensor]:
    """Every process's tensor, of one shape, on every process."""
    count = processes()[1]
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    tensors = [torch.empty_like(tensor, device=device) for _ in range(count)]
    dist.all_gather(tensors, tensor.to(device))
    return [entry.cpu() for entry in tensors]


def same_everywhere(name: str, number: int) -> None:
    """Refuse to go on where a number, below 2^63, is not the same in all processes."""
    numbers = [int(entry) for entry in gathered(torch.tensor(number))]
    if len(set(numbers)) > 1:
        raise ValueError(f"{name} is not the same in all processes: {', '.join(map(str, numbers))}")


def of_the_first(numbers: dict[str, float]) -> dict[str, float]:
    """The numbers that the first process has, in all."""
    values = gathered(torch.tensor(list(numbers.values()), dtype=torch.float64))[0].tolist()
    return dict(zip(numbers, values, strict=True))


def share_buffers(module: nn.Module) -> None:
    """Give every process the first one's buffers, such as the running statistics of batch normalisation.

    Each process has seen other images, and DistributedDataParallel makes the buffers alike before a step, not after it.
    """
    for buffer in module.buffers():
        buffer.copy_(gathered(buffer)[0])


def mean_over_processes(total: float, count: int, learner: Learner) -> float:
    """The mean of sums over counts of all processes."""
    device = device_of(learner.module)
    both = torch.tensor([total, float(count)], dtype=widest_dtype(device), device=device)
    dist.all_reduce(both)
    return float(both[0] / both[1])
