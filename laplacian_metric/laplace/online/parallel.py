"""Online training in several processes: the same draws in each, and gradients that are averaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from hessians import Pairs
from hessians.checks import widest_dtype
from laplacian_metric.core.parallel import check_agreement, reducer
from laplacian_metric.encoder import Encoder


def same_start(encoder: Encoder, generator: torch.Generator, settings: Mapping[str, Any]) -> None:
    """Give every process the generator state of process 0; refuse settings and encoders that differ."""
    reduce = reducer()
    if reduce is None:
        return
    check_agreement(reduce, f"{dict(settings)} and encoder {encoder.fingerprint()[:12]}")
    state = generator.get_state().to(encoder.head.weight.device)
    distributed.broadcast(state, 0)
    generator.set_state(state.cpu())


def agreed_numbers(loss: Tensor, square: float, pairs: Pairs) -> tuple[float, float, tuple[float, float]]:
    """The loss and the mean |u|^2 averaged, the counts of positives and negatives added up, over all processes."""
    value, counts = float(loss.detach()), (float(pairs.num_positives), float(pairs.num_negatives))
    reduce = reducer()
    if reduce is None:
        return value, square, counts
    numbers = torch.tensor([value, square, *counts], dtype=widest_dtype(loss.device), device=loss.device)
    total, processes = reduce(numbers).tolist(), distributed.get_world_size()
    return total[0] / processes, total[1] / processes, (total[2], total[3])


def summed_batch(curvature: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the curvature added up over all processes, and the gradient averaged."""
    reduce = reducer()
    if reduce is None:
        return curvature, gradient
    total = reduce(torch.stack([curvature, gradient]))
    return total[0], total[1] / distributed.get_world_size()


def average_gradients(module: nn.Module) -> None:
    """Average gradients over the processes, in place; those that DistributedDataParallel sees to are left alone."""
    reduce = reducer()
    if reduce is None:
        return
    seen_to = {
        id(parameter)
        for part in module.modules()
        if isinstance(part, DistributedDataParallel)
        for parameter in part.parameters()
    }
    kept = [p for p in module.parameters() if p.requires_grad and id(p) not in seen_to]
    # A parameter may have had no part in the loss of one process and have had one in another's.
    participating = reduce(
        torch.tensor([p.grad is not None for p in kept], dtype=torch.float32, device=kept[0].device)
    )
    parameters = [p for p, count in zip(kept, participating.tolist(), strict=True) if count]
    gradients: list[Tensor] = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    by_dtype: dict[torch.dtype, list[int]] = {}
    for at, gradient in enumerate(gradients):
        by_dtype.setdefault(gradient.dtype, []).append(at)
    for indices in by_dtype.values():
        total = reduce(torch.cat([gradients[at].flatten() for at in indices])) / distributed.get_world_size()
        for at, mean in zip(indices, total.split([gradients[at].numel() for at in indices]), strict=True):
            parameters[at].grad = mean.view_as(parameters[at])
