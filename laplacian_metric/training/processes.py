"""What the training loop does differently in many processes of ``torchrun``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from laplacian_metric.inputs import device_of
from laplacian_metric.method import Learner


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


def gathered(tensor: Tensor) -> list[Tensor]:
    """Every process's tensor, of one shape, on every process."""
    count = processes()[1]
    if count == 1:
        return [tensor]
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    found = [torch.empty_like(tensor, device=device) for _ in range(count)]
    dist.all_gather(found, tensor.to(device))
    return [entry.cpu() for entry in found]


def mean_over_processes(total: float, count: int, learner: Learner) -> float:
    """The mean of sums over counts of all processes."""
    if processes()[1] == 1:
        return total / count
    device = device_of(learner.module)
    both = torch.tensor([total, float(count)], dtype=torch.float64, device=device)
    dist.all_reduce(both)
    return float(both[0] / both[1])


def barrier() -> None:
    """Wait for the others."""
    if processes()[1] > 1:
        dist.barrier()
