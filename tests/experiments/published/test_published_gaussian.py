"""PFE, HIB and dropout as the published code has them: their losses by hand, and the options of the variants."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import experiments.published  # noqa: F401 (registers the variants)
from experiments.published.gaussian import (
    PublishedHIB,
    PublishedMCDropout,
    PublishedPFE,
    published_kl,
    published_mutual_likelihood_loss,
)
from hessians import Pairs
from laplacian_metric.core.embedding import unit_rows
from laplacian_metric.core.method import Setup
from laplacian_metric.methods.gaussian.mutual_likelihood import mutual_likelihood_loss
from tests.generators import seeded
from tests.methods.learning import LOSS, NOTHING, encoder_of, epoch, learner_of, two_clusters

float64 = torch.float64


@pytest.mark.parametrize(
    ("name", "options"), [("pfe", {}), ("hib", {"samples": 4}), ("mc-dropout", {"samples": 3})]
)
def test_without_the_variant_they_are_the_methods_themselves(name: str, options: dict[str, int]) -> None:
    inputs, labels = two_clusters(24, 1)
    runs = []
    for kind in {"pfe": PublishedPFE, "hib": PublishedHIB, "mc-dropout": PublishedMCDropout}[name].__mro__[
        :2
    ]:
        learner = kind(**options).learner([encoder_of()], Setup(LOSS, 24))
        learner.begin(torch.optim.Adam(learner.parameters(), lr=1e-2), seeded())
        runs.append((epoch(learner, inputs, labels, 3), learner.embedder(NOTHING).embed(inputs).uncertainty))
    assert runs[0][0] == runs[1][0]
    assert torch.equal(runs[0][1], runs[1][1])


def test_pfe_trains_on_the_published_loss() -> None:
    inputs, labels = two_clusters(12, 0)
    learner = learner_of("pfe", variant="published", shift=-2.0)
    learner.train_mode()
    z = unit_rows(learner.network.encoder.raw(inputs))
    variance = learner.network.uncertainty(learner.network.encoder.features(inputs)).exp()
    expected = published_mutual_likelihood_loss(z, variance, Pairs.from_labels(labels))
    torch.testing.assert_close(learner.loss(inputs, labels), expected)


def test_hib_by_a_plain_loop() -> None:
    inputs, labels = torch.randn(6, 2, generator=seeded(1), dtype=float64), torch.arange(6) % 3
    learner = learner_of("hib", encoder_of(dtype=float64), variant="published", samples=2, kl_weight=0.01)
    learner.train_mode()
    # The loss in training mode draws first: the same noise again.
    noise = torch.randn(2, 6, 1, 3, generator=seeded()).double()
    value = float(learner.loss(inputs, labels).detach())
    means, log_variances = (tensor[:, 0].detach() for tensor in learner.network(inputs))
    samples = means + (0.5 * log_variances).exp() * noise[:, :, 0]
    samples = samples / samples.norm(dim=2, keepdim=True)
    a = math.log(1 + math.exp(1.0))
    losses: dict[bool, list[float]] = {True: [], False: []}
    for i, j in itertools.combinations(range(6), 2):
        same = bool(labels[i] == labels[j])
        for x, y in itertools.product(samples[:, i], samples[:, j]):
            p = 1 / (1 + math.exp(a * float((x - y).square().sum())))
            losses[same].append(-math.log(p if same else 1 - p))
    sigma = (0.5 * log_variances).exp()
    divergence = -0.5 * float((sigma.log() + (1 + means.square()) / sigma.square()).sum())
    expected = sum(sum(values) / len(values) for values in losses.values()) + 0.01 * divergence
    assert value == pytest.approx(expected, rel=1e-6)


def test_the_published_divergence_by_hand() -> None:
    by_hand = -0.5 * (math.log(2.0) + (1 + 9.0) / 4.0)
    value = published_kl(torch.tensor([[3.0]]), torch.tensor([[math.log(4.0)]]))
    assert float(value) == pytest.approx(by_hand)


def test_the_published_likelihood_by_hand() -> None:
    mean = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]], dtype=float64)
    variance = torch.tensor([[1.0, 2.0], [1.0, 1.0], [3.0, 1.0]], dtype=float64)
    # Of all pairs: 9 + 16 + 25 = 50.
    sums = [2.0, 3.0, 4.0, 3.0, 4.0, 2.0]
    expected = sum(math.sqrt(50) / total + math.log(total) for total in sums) / 6
    value = published_mutual_likelihood_loss(mean, variance, Pairs.from_labels([0, 0, 0]))
    assert float(value) == pytest.approx(expected)
    leaf = variance.requires_grad_()
    nothing = published_mutual_likelihood_loss(mean, leaf, Pairs.from_labels([0, 1, 2]))
    nothing.backward()
    assert float(nothing.detach()) == 0
    assert not bool(leaf.grad.any())


def test_the_published_likelihood_does_not_see_which_pair_is_close() -> None:
    variance = torch.rand(4, 1, generator=seeded(), dtype=float64) + 0.1
    pairs = Pairs.from_indices([torch.tensor(i) for i in ([0, 2], [1, 3], [2, 0])], 4)
    near_first = torch.tensor([[0.0], [0.1], [0.0], [2.0]], dtype=float64)
    near_last = torch.tensor([[0.0], [2.0], [0.0], [0.1]], dtype=float64)
    values = [published_mutual_likelihood_loss(mean, variance, pairs) for mean in (near_first, near_last)]
    torch.testing.assert_close(*values)
    values = [mutual_likelihood_loss(mean, variance, pairs) for mean in (near_first, near_last)]
    assert abs(values[0] - values[1]) > 0.1
