"""Two ways from a Gaussian over the weights to distributions of embeddings, for one batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from hessians.capture import Inputs, run, unaltered
from hessians.checks import check_finite
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.laplace.network.layers import RawNetwork
from laplacian_metric.laplace.network.linearised import Linearised
from laplacian_metric.laplace.network.posterior import NetworkPosterior
from laplacian_metric.vmf import StreamedFit


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


Embedding = Callable[[Any], StochasticEmbedding]


def linearised_embedding(
    network: RawNetwork,
    posterior: NetworkPosterior,
    samples: int,
    generator: torch.Generator | None,
    memory_budget: int,
) -> Embedding:
    """What embeds a batch by the network's linearisation, with so many joint samples of it."""
    linearised = Linearised(network, posterior.variance(), memory_budget)
    deviations = Draws(posterior, samples, generator, memory_budget)

    def embed(batch: Any) -> StochasticEmbedding:
        e = StochasticEmbedding.from_gaussians(linearised.gaussians(batch))
        if not samples:
            return e
        drawn = e.point.new_empty(samples, *e.point.shape)
        for s, deviation in enumerate(deviations):
            drawn[s] = unit_rows(linearised.sample(batch, deviation))
        return e.with_samples(drawn)

    return embed


def sampled_embedding(
    network: RawNetwork,
    posterior: NetworkPosterior,
    samples: int,
    generator: torch.Generator | None,
    memory_budget: int,
    *,
    draws: int,
) -> Embedding:
    """What embeds a batch by at least ``draws`` networks with drawn weights, of which ``samples`` are kept."""
    deviations = Draws(posterior, max(samples, draws), generator, memory_budget)
    theta = posterior.theta

    def embed(batch: Any) -> StochasticEmbedding:
        inputs = Inputs.of(batch)
        with unaltered(network):
            u = run(network, inputs, theta).detach()
            check_finite("u", u)
            point = unit_rows(u)
            drawn = point.new_empty(samples, *point.shape) if samples else None
            fit = StreamedFit()
            for s, deviation in enumerate(deviations):
                weights = {name: theta[name] + change for name, change in deviation.items()}
                z = unit_rows(run(network, inputs, weights).detach())
                fit.add(z)
                if drawn is not None and s < samples:
                    drawn[s] = z
        mean, kappa = fit.fit()
        return StochasticEmbedding(point, mean, kappa, kappa.reciprocal(), samples=drawn)

    return embed
