"""Probabilistic face embeddings: what is trained, what is learned, and how templates are fused."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.core.method import FitData, Setup, Start
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.networks.uncertainty import (
    LARGEST_LOG_VARIANCE,
    LinearUncertaintyHead,
    UncertaintyHead,
)
from laplacian_metric.methods import find, make
from laplacian_metric.methods.gaussian.mutual_likelihood import (
    mutual_likelihood_loss,
    mutual_likelihood_of_pairs,
    published_mutual_likelihood_loss,
)
from laplacian_metric.methods.gaussian.pfe import PFE, PFELearner, fuse, harmonic_mean
from tests.generators import seeded
from tests.methods.learning import epoch

NOTHING = FitData(train=[], validation=[])


def small_encoder(dim: int = 3) -> Encoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        return Encoder(backbone, nn.Linear(8, dim)).double()


def learner_of(encoder: Encoder, lr: float = 0.01, seed: int = 0, **options: Any) -> PFELearner:
    learner = PFE(**options).learner([encoder], Setup(ContrastiveLoss(margin=0.7), num_images=10, seed=seed))
    assert isinstance(learner, PFELearner)
    learner.begin(torch.optim.Adam(learner.parameters(), lr=lr), seeded())
    return learner


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


@pytest.mark.parametrize(("last_norm", "shape"), [("shared", ()), ("separate", (3,)), ("fixed", None)])
def test_what_is_learned_after_the_last_standardisation(
    last_norm: str, shape: tuple[int, ...] | None
) -> None:
    head = UncertaintyHead(4, 3, last_norm=last_norm)
    learned = {name: tuple(p.shape) for name, p in head.named_parameters() if name in ("scale", "shift")}
    assert learned == ({} if shape is None else {"scale": shape, "shift": shape})
    if shape is None:
        assert (float(head.scale), float(head.shift), float(head.origin)) == (1.0, 0.0, 0.0)
        assert {"scale", "shift", "origin"} <= set(head.state_dict())


def test_with_a_small_scale_variances_start_constant_and_add_up_to_a_half() -> None:
    variance = UncertaintyHead(4, 7, scale=1e-4, seed=0)(torch.randn(20, 4, generator=seeded())).exp()
    torch.testing.assert_close(variance.sum(1), torch.full((20,), 0.5), rtol=1e-2, atol=0)


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


def test_the_seed_decides_and_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = (UncertaintyHead(4, 3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.first.weight, same.first.weight)
    assert not torch.equal(one.first.weight, other.first.weight)


# --- the method ---


def test_the_registry_finds_it() -> None:
    assert find("pfe") is PFE
    assert make("pfe", hidden=7) == PFE(hidden=7)
    assert PFE.start is Start.FROZEN


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
    for variant, loss in (
        ("paper", mutual_likelihood_loss),
        ("published", published_mutual_likelihood_loss),
    ):
        learner = learner_of(small_encoder(), variant=variant, shift=-2.0)
        learner.train_mode()
        encoder, head = learner.network.encoder, copy.deepcopy(learner.network.uncertainty)
        z = unit_rows(encoder.raw(inputs))
        expected = loss(z, head(encoder.features(inputs)).exp(), Pairs.from_labels(labels))
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


def test_variants() -> None:
    head = learner_of(small_encoder(dim=5)).network.uncertainty
    assert head.first.out_features == 512
    assert isinstance(head.scale, nn.Parameter)
    assert float(head.scale.detach()) == 1.0
    head = learner_of(small_encoder(dim=5), variant="published").network.uncertainty
    assert head.first.out_features == 5
    assert not isinstance(head.scale, nn.Parameter)
    head = learner_of(
        small_encoder(dim=5), variant="published", hidden=9, last_norm="shared"
    ).network.uncertainty
    assert head.first.out_features == 9
    assert isinstance(head.scale, nn.Parameter)


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
    assert samples is not None
    assert samples.shape == (4, 12, 3)


def test_similarity_is_the_mutual_likelihood() -> None:
    inputs, _ = images()
    embedder = learner_of(small_encoder()).embedder(NOTHING)
    e = embedder.embed(inputs)
    similarity = embedder.similarity(e[:4], e[4:])
    assert similarity is not None
    expected = [
        [
            mutual_likelihood_of_pairs(e.point[i], e.variance[i], e.point[j], e.variance[j])
            for j in range(4, 12)
        ]
        for i in range(4)
    ]
    torch.testing.assert_close(similarity, torch.tensor(expected, dtype=torch.float64))
    bare = StochasticEmbedding(e.point, e.mean, e.kappa, e.uncertainty)
    with pytest.raises(ValueError, match="no Gaussians"):
        embedder.similarity(bare, e)


def two_clusters() -> tuple[Tensor, Tensor, Tensor]:
    """Features of two clusters, of points between them whose label is a coin's, and who is between."""
    g = seeded(3)
    labels = torch.arange(120) % 2
    inputs = 0.2 * torch.randn(120, 2, generator=g, dtype=torch.float64)
    between = torch.arange(120) >= 80
    inputs[:, 0] += torch.where(between, 0.0, 2.0 * (2 * labels - 1))
    inputs[:, 1] += 1.0
    labels = torch.where(between, torch.randint(2, (120,), generator=g), labels)
    return inputs, labels, between


def test_it_is_unsure_between_two_clusters() -> None:
    inputs, labels, between = two_clusters()
    head = nn.Linear(2, 2).double()
    with torch.no_grad():
        head.weight.copy_(torch.eye(2))
        head.bias.zero_()
    learner = learner_of(Encoder(nn.Identity(), head), hidden=16)
    values = epoch(learner, inputs, labels, 200)
    assert values[-1] < values[0] - 0.3
    uncertainty = learner.embedder(NOTHING).embed(inputs).uncertainty
    above = (uncertainty[between, None] > uncertainty[None, ~between]).double().mean()
    assert above > 0.95


def test_training_goes_on_exactly_where_it_was_saved() -> None:
    inputs, labels = images()
    learner = learner_of(small_encoder(), hidden=6)
    epoch(learner, inputs, labels, 3)
    saved = copy.deepcopy((learner.module.state_dict(), learner.optimizer.state_dict(), learner.state()))
    assert all(isinstance(value, Tensor) for value in (*saved[0].values(), *saved[2].values()))
    values = epoch(learner, inputs, labels, 3)
    again = learner_of(small_encoder(), hidden=6, seed=9)
    again.module.load_state_dict(saved[0])
    again.optimizer.load_state_dict(saved[1])
    again.restore(saved[2])
    assert epoch(again, inputs, labels, 3) == values
    embeddings = [each.embedder(NOTHING).embed(inputs) for each in (learner, again)]
    assert torch.equal(embeddings[0].uncertainty, embeddings[1].uncertainty)


def test_a_batch_without_positive_pairs_changes_nothing() -> None:
    inputs, _ = images(4)
    learner = learner_of(small_encoder(), hidden=6)
    before = [p.detach().clone() for p in learner.parameters()]
    assert epoch(learner, inputs, torch.arange(4), 1) == [0.0]
    for parameter, old in zip(learner.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="pfe takes one encoder, 2 are given"):
        PFE().learner([small_encoder()] * 2, Setup(ContrastiveLoss(margin=0.7), num_images=1))
    with pytest.raises(ValueError, match="hidden is 0"):
        PFE(hidden=0)
    with pytest.raises(
        ValueError, match="last_norm is 'common', one of 'shared', 'separate', 'fixed' is needed"
    ):
        PFE(last_norm="common")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="variant is 'lam', one of 'paper', 'published' is needed"):
        PFE(variant="lam")  # type: ignore[arg-type]
    learner = learner_of(small_encoder())
    learner.train_mode()
    inputs, labels = images(1)
    with pytest.raises(ValueError, match=r"a batch of 1 image cannot be standardised: .* drop_last=True"):
        learner.loss(inputs, labels)
    with pytest.raises(ValueError, match="have no direction"):
        learner.loss(torch.full((4, 2), torch.nan, dtype=torch.float64), torch.zeros(4).long())
    with pytest.raises(ValueError, match="the checkpoint holds mean"):
        learner.restore({"mean": torch.zeros(1)})
    # Evaluation is fine with one.
    assert len(learner.embedder(NOTHING).embed(inputs)) == 1


# --- fusion ---


def test_fusion_is_the_product_of_the_densities() -> None:
    g = seeded()
    mean = torch.randn(5, 2, generator=g, dtype=torch.float64)
    variance = torch.rand(5, 2, generator=g, dtype=torch.float64) + 0.2
    template = torch.tensor([7, 3, 7, 7, 3])
    fused = fuse(Gaussians(mean, variance), template)
    x = torch.randn(4, 1, 2, generator=g, dtype=torch.float64)
    for at, name in enumerate((3, 7)):
        own = template == name
        product = torch.distributions.Normal(mean[own], variance[own].sqrt()).log_prob(x).sum((1, 2))
        log_likelihood = (
            torch.distributions.Normal(fused.mean[at], fused.variance[at].sqrt()).log_prob(x).sum((1, 2))
        )
        # The same up to a constant.
        torch.testing.assert_close(product - product[0], log_likelihood - log_likelihood[0])


def test_fusion_of_single_images_changes_nothing() -> None:
    images = Gaussians(torch.eye(3), torch.full((3, 3), 0.2))
    fused = fuse(images, torch.arange(3))
    torch.testing.assert_close(fused.mean, images.mean)
    torch.testing.assert_close(fused.variance, images.variance)


def test_fusion_refuses_what_does_not_fit() -> None:
    images = Gaussians(torch.eye(3), torch.full((3, 3), 0.2))
    with pytest.raises(ValueError, match=r"template has shape \(2,\)"):
        fuse(images, torch.arange(2))
    with pytest.raises(ValueError, match="whole number"):
        fuse(images, torch.zeros(3))
    with pytest.raises(ValueError, match="have covariances"):
        fuse(Gaussians(torch.eye(3), torch.eye(3).expand(3, 3, 3)), torch.arange(3))
