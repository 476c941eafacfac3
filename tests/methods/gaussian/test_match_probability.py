"""The soft contrastive loss against loops that read like its definition, closed forms and autograd."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hessians import Pairs
from laplacian_metric.methods.gaussian import match_probability as soft_contrastive
from laplacian_metric.methods.gaussian.match_probability import (
    MatchProbability,
    kl_to_standard_normal,
    match_probability,
    paired_match_probability,
    self_mismatch,
    soft_contrastive_loss,
)


def matching(scale: float = 1.7, offset: float = 0.8) -> MatchProbability:
    return MatchProbability(scale, offset).double()


def drawn(count: int, num: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(count, num, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_loop(first: Tensor, second: Tensor, match: MatchProbability, matches: bool, log: bool) -> float:
    """log p or log (1 - p) of one pair of images from its samples (K, Z) and (L, Z), as the paper defines it."""
    a, b = float(match.scale.detach()), float(match.offset.detach())
    values = []
    for x, y in itertools.product(first, second):
        p = 1 / (1 + math.exp(a * float((x - y).norm()) - b))
        values.append(p if matches else 1 - p)
    if log:
        return sum(map(math.log, values)) / len(values)
    return math.log(sum(values) / len(values))


def loss_by_loop(
    samples: Tensor, labels: list[int], match: MatchProbability, balance: str, average: str
) -> float:
    losses: dict[bool, list[float]] = {True: [], False: []}
    for i, j in itertools.combinations(range(len(labels)), 2):
        same = labels[i] == labels[j]
        losses[same].append(-by_loop(samples[:, i], samples[:, j], match, same, average == "log"))
    if balance == "pairs":
        values = losses[True] + losses[False]
        return sum(values) / len(values) if values else 0.0
    return sum(0.5 * sum(values) / len(values) for values in losses.values() if values)


@settings(max_examples=15, deadline=None)
@given(
    labels=st.lists(st.integers(0, 2), min_size=0, max_size=6),
    count=st.integers(1, 3),
    dim=st.integers(1, 3),
    balance=st.sampled_from(["types", "pairs"]),
    average=st.sampled_from(["probability", "log"]),
)
def test_the_loss_is_its_definition(
    labels: list[int], count: int, dim: int, balance: str, average: str
) -> None:
    samples, match = drawn(count, len(labels), dim), matching()
    value = soft_contrastive_loss(samples, Pairs.from_labels(labels), match, balance=balance, average=average)
    assert float(value.detach()) == pytest.approx(
        loss_by_loop(samples, labels, match, balance, average), abs=1e-12
    )


@pytest.mark.parametrize(("elements", "kept"), [(1, 1 << 23), (100, 0), (1 << 19, 0)])
def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, elements: int, kept: int) -> None:
    match, pairs = matching(), Pairs.from_labels([0, 1, 0, 1, 2, 0, 0])

    def value_and_gradients() -> list[Tensor]:
        samples = drawn(3, 7, 2).requires_grad_()
        value = soft_contrastive_loss(samples, pairs, match)
        return [value, *torch.autograd.grad(value, [samples, match.log_scale, match.offset])]

    whole = value_and_gradients()
    monkeypatch.setattr(soft_contrastive, "ELEMENTS_AT_ONCE", elements)
    monkeypatch.setattr(soft_contrastive, "ELEMENTS_KEPT", kept)
    for one, other in zip(whole, value_and_gradients(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("images", [3, 14])  # torch takes a matrix product above 25 points
@pytest.mark.parametrize("dim", [2, 40])  # differences, and the matrix product
@pytest.mark.parametrize("average", ["probability", "log"])
def test_gradients(images: int, dim: int, average: str) -> None:
    pairs = Pairs.from_labels([0, 0, 1] + [2] * (images - 3))
    samples = drawn(2, images, dim).requires_grad_()
    log_scale, offset = torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    match = matching()

    def value(samples: Tensor, log_scale: Tensor, offset: Tensor) -> Tensor:
        settings = {"log_scale": log_scale, "offset": offset}
        bound = Bound(match, settings)
        return soft_contrastive_loss(samples, pairs, bound, average=average)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(value, (samples, log_scale.requires_grad_(), offset.requires_grad_()))


@pytest.mark.parametrize("dim", [8, 33, 128])
@pytest.mark.parametrize(("norm", "apart"), [(1.0, 1e-3), (100.0, 0.03)])
def test_close_points_keep_their_digits_in_single_precision(dim: int, norm: float, apart: float) -> None:
    """Far from the origin, the rounding of the points themselves is what is left."""
    points = norm / dim**0.5 + apart * drawn(1, 60, dim) / dim**0.5
    single, scale = points.float(), 1 / apart
    exact = single.double()
    match = MatchProbability(scale, 1.0)
    labels = torch.arange(60) % 2
    computed, expected = [], []
    for samples, results, own in ((single, computed, match), (exact, expected, match.double())):
        samples = samples.clone().requires_grad_()
        value = soft_contrastive_loss(samples, Pairs.from_labels(labels), own)
        gradient = torch.autograd.grad(value, samples)[0]
        rows = samples.detach()
        results += [value.detach(), gradient, match_probability(rows, rows, own)]
        results.append(paired_match_probability(rows, rows.flip(1), own))
        match = match.float()
    for one, other in zip(computed, expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


class Bound:
    """A module called with tensors in the place of its parameters."""

    def __init__(self, module: MatchProbability, settings: dict[str, Tensor]) -> None:
        self.module, self.settings = module, settings

    def __call__(self, distance: Tensor) -> Tensor:
        called: Tensor = torch.func.functional_call(self.module, self.settings, (distance,))
        return called


def test_equal_samples_have_a_gradient_of_zero_and_no_nan() -> None:
    samples = torch.ones(2, 3, 2, dtype=torch.float64, requires_grad=True)
    value = soft_contrastive_loss(samples, Pairs.from_labels([0, 0, 1]), matching())
    value.backward()
    torch.testing.assert_close(samples.grad, torch.zeros_like(samples))
    # All at distance 0: p = sigma(b).
    p = 1 / (1 + math.exp(-0.8))
    assert float(value.detach()) == pytest.approx(-0.5 * math.log(p) - 0.5 * math.log(1 - p))


def test_far_apart_and_very_sure_stays_finite() -> None:
    samples = torch.tensor([[[0.0], [1e4], [0.0]]], requires_grad=True)
    match = MatchProbability(scale=100.0, offset=500.0)
    value = soft_contrastive_loss(samples, Pairs.from_labels([0, 0, 1]), match)
    value.backward()
    # In float32 the probabilities are 0 and 1. -log p = 1e6 - 500; of both others one is 0 and the other 500.
    assert float(value.detach()) == pytest.approx(0.5 * (1e6 - 500) + 0.5 * 500 / 2)
    assert bool(samples.grad.isfinite().all())  # type: ignore[union-attr]


def test_a_pair_that_is_listed_as_both_counts_as_both() -> None:
    index = [torch.tensor(i) for i in ([0, 0], [1, 2], [1, 2])]
    samples, match = drawn(2, 3, 2), matching()
    value = soft_contrastive_loss(samples, Pairs.from_indices(index, 3), match)
    logs = [
        by_loop(samples[:, 0], samples[:, j], match, same, log=False)
        for j in (1, 2)
        for same in (True, False)
    ]
    assert float(value.detach()) == pytest.approx(-sum(logs) / 4)


def test_match_probability_is_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, match = drawn(2, 3, 2), drawn(4, 5, 2, seed=1), matching()
    probability = match_probability(first, second, match)
    for i, j in itertools.product(range(3), range(5)):
        expected = math.exp(by_loop(first[:, i], second[:, j], match, matches=True, log=False))
        assert float(probability[i, j]) == pytest.approx(expected)
    monkeypatch.setattr(soft_contrastive, "ELEMENTS_AT_ONCE", 20)
    torch.testing.assert_close(match_probability(first, second, match), probability)
    paired = paired_match_probability(first, second[:, :3], match)
    torch.testing.assert_close(paired, probability[:, :3].diagonal())
    mismatch = self_mismatch(first, second[:, :3], match)
    torch.testing.assert_close(mismatch, 1 - probability[:, :3].diagonal())


@pytest.mark.statistical
def test_the_self_mismatch_of_a_point_and_of_a_wide_gaussian() -> None:
    match = matching(scale=2.0, offset=1.0)
    noise = drawn(200, 3, 1), drawn(200, 3, 1, seed=1)
    width = torch.tensor([[0.0], [0.5], [1e6]], dtype=torch.float64)
    actual = self_mismatch(width * noise[0], width * noise[1], match)
    assert float(actual[0]) == pytest.approx(1 / (1 + math.exp(1.0)))
    # z1 - z2 ~ N(0, 2 sigma^2): the integral by a fine grid. 200 x 200 dependent pairs: within 3 %.
    grid = torch.linspace(-6, 6, 20001, dtype=torch.float64)
    density = torch.exp(-0.5 * grid.square()) / math.sqrt(2 * math.pi)
    expected = torch.trapezoid(density * torch.sigmoid(2.0 * 0.5 * math.sqrt(2) * grid.abs() - 1.0), grid)
    assert float(actual[1]) == pytest.approx(float(expected), rel=0.03)
    assert float(actual[2]) == pytest.approx(1.0, abs=1e-3)


def test_the_divergence_is_torch_s() -> None:
    mean, log_variance = drawn(1, 5, 3)[0], drawn(1, 5, 3, seed=1)[0]
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, (0.5 * log_variance).exp()),
        torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean)),
    ).sum(1)
    torch.testing.assert_close(kl_to_standard_normal(mean, log_variance), expected)
    torch.testing.assert_close(kl_to_standard_normal(torch.zeros(1, 2), torch.zeros(1, 2)), torch.zeros(1))


def test_errors_name_what_is_wrong() -> None:
    match, pairs = matching(), Pairs.from_labels([0] * 3)
    with_nan = torch.zeros(2, 3, 2)
    with_nan[1, 2, 0] = torch.nan
    for name, samples in (("samples", torch.zeros(1, 2, 2)), ("samples", with_nan)):
        with pytest.raises(ValueError, match=name):
            soft_contrastive_loss(samples, pairs, match)
    with pytest.raises(ValueError, match="balance"):
        soft_contrastive_loss(torch.zeros(1, 3, 2), pairs, match, balance="halves")


def listed(number: int, seed: int) -> Pairs:
    generator = torch.Generator().manual_seed(seed)
    index = [torch.randint(number, (5,), generator=generator) for _ in range(4)]
    for second in (1, 3):
        index[second] = torch.where(
            index[second] == index[second - 1], (index[second] + 1) % number, index[second]
        )
    return Pairs.from_indices(index, number)


@pytest.mark.parametrize("average", ["probability", "log"])
@pytest.mark.parametrize("balance", ["types", "pairs"])
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.integers(2, 8), st.integers(0, 100))
def test_listed_pairs_have_the_loss_and_gradients_of_the_blocks(
    average: str, balance: str, count: int, number: int, seed: int
) -> None:
    pairs, match = listed(number, seed), MatchProbability(2.0, 1.0).double()
    computed = []
    for elements in (1 << 19, 0):
        z = drawn(count, number, 2, seed).requires_grad_()
        match.zero_grad()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(soft_contrastive, "ELEMENTS_AT_ONCE", elements)
            loss = soft_contrastive_loss(z, pairs, match, balance=balance, average=average)
        loss.backward()
        computed.append([loss.detach(), z.grad, match.log_scale.grad, match.offset.grad])
    for few, blocks in zip(*computed, strict=True):
        torch.testing.assert_close(few, blocks)
