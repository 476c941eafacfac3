"""Draws of the weights that all images and batches share, one of them in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from laplacian_metric.laplace.network.posterior import NetworkPosterior


class Draws:
    """Draws of the deviations from theta*, each made again from its seed whenever it is asked for.

    Args:
        posterior: over the deviations.
        count: how many draws.
        generator: of the seeds.
        memory_budget: bytes; draws that fit into it together are kept.
    """

    def __init__(
        self,
        posterior: NetworkPosterior,
        count: int,
        generator: torch.Generator | None = None,
        memory_budget: int = 0,
    ) -> None:
        device = "cpu" if generator is None else generator.device
        self.posterior = posterior
        self.seeds: list[int] = torch.randint(2**62, (count,), generator=generator, device=device).tolist()
        sizes = [tensor.numel() * tensor.element_size() for tensor in posterior.theta.values()]
        self._keeps = count * sum(sizes) <= memory_budget
        self._kept: dict[int, dict[str, Tensor]] = {}

    def __len__(self) -> int:
        return len(self.seeds)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for seed in self.seeds:
            yield self._kept[seed] if seed in self._kept else self._made(seed)

    def _made(self, seed: int) -> dict[str, Tensor]:
        device = next(iter(self.posterior.theta.values())).device
        deviation = self.posterior.draw(torch.Generator(device).manual_seed(seed))
        if self._keeps:
            self._kept[seed] = deviation
        return deviation
