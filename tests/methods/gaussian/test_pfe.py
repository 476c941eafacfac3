"""Probabilistic face embeddings: the head, what is trained, and what is learned."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessians import Pairs
from laplacian_metric.core.embedding import unit_rows
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.uncertainty import (
    LARGEST_LOG_VARIANCE,
    LinearUncertaintyHead,
    UncertaintyHead,
)
from laplacian_metric.methods.gaussian.mutual_likelihood import (
    mutual_likelihood_loss,
    mutual_likelihood_of_pairs,
)
from laplacian_metric.methods.gaussian.pfe import PFELearner, harmonic_mean
from tests.generators import seeded
from tests.methods.learning import NOTHING, epoch
from tests.methods.learning import learner_of as make_learner


def learner_of(encoder: Encoder, **options: Any) -> PFELearner:
    return make_learner("pfe", encoder, **options)


def small_encoder() -> Encoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        return Encoder(backbone, nn.Linear(8, 3)).double()


def images(num: int = 12) -> tuple[Tensor, Tensor]:
    return torch.randn(num, 2, generator=seeded(1), dtype=torch.float64), torch.arange(num) % 3


# --- the head ---


def test_the_head_is_its_layers_by_hand() -> None:
    head = UncertaintyHead(4, 3, hidden=5, scale=0.7, shift=-1.5, seed=0).double()
    h = torch.randn(6, 4, generator=seeded(), dtype=torch.float64)

    def standardised(x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()

    hidden = standardised(h @ head.first.weight.T).clamp(min=0)
    expected = 0.7 * standardised(hidden @ head.second.weight.T) - 1.5
    # Float64 of the scale in float32.
    torch.testing.assert_close(head(h), torch.log(1e-6 + expected.exp()), rtol=1e-6, atol=1e-6)


def test_variances_stay_within_bounds_and_have_gradients_there() -> None:
    head = LinearUncertaintyHead(1, 1, variance=0.3).double()
    assert float(head(torch.zeros(1, 1, dtype=torch.float64)).detach()) == pytest.approx(math.log(0.3))
    with torch.no_grad():
        head.linear.weight.fill_(1.0)
    variances = head(torch.tensor([[-1e4], [1e4]], dtype=torch.float64)).detach().flatten()
    torch.testing.assert_close(
        variances, torch.tensor([math.log(1e-6), LARGEST_LOG_VARIANCE], dtype=torch.float64)
    )


@pytest.mark.parametrize("variance", [1e-6, 1e20, math.nan, math.inf])
def test_a_variance_that_no_head_can_begin_with_is_refused(variance: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"variance is {variance}, a number above 1e-06")):
        LinearUncertaintyHead(1, 1, variance=variance)


# --- the method ---


def test_only_the_head_is_trained_and_the_encoder_stays_as_it_was() -> None:
    encoder = small_encoder()
    before = copy.deepcopy(encoder.state_dict())
    learner = learner_of(encoder, hidden=6)
    inputs, labels = images()
    epoch(learner, inputs, labels, steps=3)
    # The running statistics of the encoder's own batch norm too.
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert not any(part.training for part in encoder.modules())
    assert learner.network.uncertainty.training
    trained = {id(p) for p in learner.parameters()}
    assert trained == {id(p) for p in learner.network.uncertainty.parameters()}
    assert {f"encoder.{name}" for name in before} < set(learner.module.state_dict())


def test_the_loss_is_the_mutual_likelihood_of_unit_embeddings() -> None:
    inputs, labels = images()
    learner = learner_of(small_encoder(), shift=-2.0)
    learner.train_mode()
    encoder, head = learner.network.encoder, copy.deepcopy(learner.network.uncertainty)
    z = unit_rows(encoder.raw(inputs))
    expected = mutual_likelihood_loss(z, head(encoder.features(inputs)).exp(), Pairs.from_labels(labels))
    torch.testing.assert_close(learner.loss(inputs, labels), expected)


def test_it_starts_where_equal_variances_are_the_most_likely() -> None:
    inputs, labels = images()
    learner = learner_of(small_encoder())
    learner.train_mode()
    # A batch that cannot tell is passed over.
    learner.loss(inputs[:3], torch.arange(3))
    assert not learner.network.is_started
    learner.loss(inputs, labels)
    assert learner.network.is_started
    variance = float(learner.network.uncertainty.origin.exp())
    z, pairs = unit_rows(learner.points(inputs)), Pairs.from_labels(labels)
    values = [
        float(mutual_likelihood_loss(z, torch.full_like(z, factor * variance), pairs))
        for factor in (0.99, 1.0, 1.01)
    ]
    assert values[1] == min(values)
    learner.loss(inputs[:6], labels[:6])
    assert float(learner.network.uncertainty.origin.exp()) == variance
    learner = learner_of(small_encoder(), shift=-7.0)
    learner.train_mode()
    learner.loss(inputs, labels)
    assert float(learner.network.uncertainty.origin) == -7.0


def test_cached_features_give_what_images_give() -> None:
    inputs, labels = images()
    encoder = small_encoder().eval()
    whole = learner_of(copy.deepcopy(encoder))
    cached = learner_of(Encoder(nn.Identity(), copy.deepcopy(encoder.head)))
    features = encoder.features(inputs).detach()
    assert epoch(whole, inputs, labels, 3) == epoch(cached, features, labels, 3)
    one, other = whole.embedder(NOTHING).embed(inputs), cached.embedder(NOTHING).embed(features)
    assert torch.equal(one.uncertainty, other.uncertainty)


def test_an_embedding_has_the_frozen_points_and_the_harmonic_mean() -> None:
    inputs, labels = images()
    encoder = small_encoder().eval()
    expected = unit_rows(encoder.raw(inputs)).detach()
    learner = learner_of(encoder)
    epoch(learner, inputs, labels, 2)
    e = learner.embedder(NOTHING).embed([(inputs[:5], labels[:5]), (inputs[5:], labels[5:])])
    torch.testing.assert_close(e.point, expected)
    torch.testing.assert_close(unit_rows(learner.points(inputs)).detach(), expected)
    torch.testing.assert_close(e.uncertainty, 3 / (1 / e.variance).sum(1))
    torch.testing.assert_close(
        harmonic_mean(torch.tensor([[1.0, 2.0, 4.0], [2.0, 2.0, 2.0]])), torch.tensor([12 / 7, 2.0])
    )
    samples = learner.embedder(NOTHING).embed(inputs, samples=4, generator=seeded()).samples
    assert samples.shape == (4, 12, 3)


def test_similarity_is_the_mutual_likelihood() -> None:
    inputs, _ = images()
    embedder = learner_of(small_encoder()).embedder(NOTHING)
    e = embedder.embed(inputs)
    similarity = embedder.similarity(e[:4], e[4:])
    expected = [
        [
            mutual_likelihood_of_pairs(e.point[i], e.variance[i], e.point[j], e.variance[j])
            for j in range(4, 12)
        ]
        for i in range(4)
    ]
    torch.testing.assert_close(similarity, torch.tensor(expected, dtype=torch.float64))
