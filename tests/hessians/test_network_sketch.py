"""The sketched diagonal: exact over all sign vectors, unbiased over random ones."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from hessians import Pairs
from hessians.capture import Inputs, trace
from hessians.network import ggn_diagonal
from hessians.sketch import sketched_diagonal
from tests.hessians.jacobians import brute_force, make_loss, random_input, randomise

LABELS = [0, 0, 1, 1]
DIM = 2


def small_network() -> nn.Module:
    return randomise(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, DIM)))


def all_signs() -> Tensor:
    """Every vector of signs, (2^(N Z), N, Z)."""
    signs = itertools.product((-1.0, 1.0), repeat=len(LABELS) * DIM)
    return torch.tensor(list(signs), dtype=torch.float64).view(-1, len(LABELS), DIM)


@pytest.mark.parametrize("approximation", ["full", "fixed", "positive", "clipped"])
@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_the_mean_over_all_signs_is_the_diagonal(distance: str, approximation: str) -> None:
    model, inputs, pairs = small_network(), random_input(len(LABELS), 3), Pairs.from_labels(LABELS)
    loss = make_loss(distance)
    names = [name for name, _ in model.named_parameters()]
    traced = trace(model, Inputs.of(inputs), names, [])
    hessian = loss.output_hessian(traced.u, pairs, approximation)
    actual = sketched_diagonal(traced, names, hessian, all_signs())
    for name, (diagonal, absolute) in brute_force(model, inputs, pairs, loss, approximation).items():
        assert bool(((actual[name] - diagonal).abs() <= 1e-12 * absolute).all()), name


@pytest.mark.statistical
@pytest.mark.parametrize("approximation", ["full", "clipped"])
def test_the_mean_over_random_signs_is_near_the_diagonal(approximation: str) -> None:
    model, inputs, pairs, loss = small_network(), random_input(4, 3), Pairs.from_labels(LABELS), make_loss()
    exact = ggn_diagonal(model, inputs, pairs, loss, approximation)
    means = []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        sketch = ggn_diagonal(
            model, inputs, pairs, loss, approximation, "sketch", probes=25, generator=generator, check=False
        )
        means.append(torch.cat([values.flatten() for values in sketch.values()]))
    each = torch.stack(means)
    expected = torch.cat([values.flatten() for values in exact.values()])
    error = each.std(0) / len(each) ** 0.5
    # Five standard errors: a false alarm in about 1 of 50,000 runs for these 26 entries; the seeds are fixed.
    assert bool(((each.mean(0) - expected).abs() <= 5 * error + 1e-12).all())


def test_a_positive_semidefinite_sketch_is_never_negative() -> None:
    arguments = (small_network(), random_input(4, 3), Pairs.from_labels(LABELS), make_loss())
    generator = torch.Generator().manual_seed(0)
    diagonal = ggn_diagonal(*arguments, "clipped", "sketch", probes=1, generator=generator)
    assert all(bool((values >= 0).all()) for values in diagonal.values())


def test_a_generator_makes_the_sketch_repeatable() -> None:
    arguments = (small_network(), random_input(4, 3), Pairs.from_labels(LABELS), make_loss())
    one, same, other = (
        ggn_diagonal(*arguments, method="sketch", probes=3, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    torch.testing.assert_close(one, same, rtol=0, atol=0)
    assert not torch.equal(one["0.weight"], other["0.weight"])
