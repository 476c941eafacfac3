"""The demo's parts: the network, its training, the comparison with autograd, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.func import jacrev
from torch.nn import functional as F

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.data import embedded_sample
from laplacian_metric.demo import curvature
from laplacian_metric.demo.compute import compute, split
from laplacian_metric.demo.curvature import Curvature, brute_force, compare, pair_loss
from laplacian_metric.demo.refusal import refuse
from laplacian_metric.demo.run import run_demo
from laplacian_metric.demo.story import tell
from laplacian_metric.demo.training import extract_features, train
from laplacian_metric.demo.uncertainty import assess
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.networks import fashion_network
from laplacian_metric.laplace.features import Features
from laplacian_metric.laplace.posthoc import LAM

LOSS = ContrastiveLoss(margin=0.7, distance="arccos", negatives="active")


def small_layer() -> tuple[torch.Tensor, torch.Tensor, torch.nn.Linear]:
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(12, 7, generator=generator)
    head = torch.nn.Linear(7, 3)
    with torch.no_grad():
        head.weight.copy_(torch.randn(3, 7, generator=generator))
        head.bias.copy_(torch.randn(3, generator=generator))
    return features, torch.arange(12) % 3, head


def test_the_network_is_that_of_the_paper() -> None:
    backbone, head = fashion_network(seed=0)
    shapes = [tuple(parameter.shape) for parameter in (*backbone.parameters(), *head.parameters())]
    assert shapes == [(32, 1, 3, 3), (32,), (64, 32, 3, 3), (64,), (3, 9216), (3,)]
    assert head(backbone(torch.zeros(2, 1, 28, 28))).shape == (2, 3)


def test_a_seed_decides_the_network_and_leaves_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    (first, _), (second, _), (third, _) = (fashion_network(seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first[0].weight, second[0].weight)
    assert not torch.equal(first[0].weight, third[0].weight)


def test_one_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="dimensions is 1"):
        fashion_network(dimensions=1)


def test_training_lowers_the_loss_and_is_reproducible() -> None:
    sample = embedded_sample("mnist", "test")
    steps: list[tuple[int, int]] = []
    first = train(sample, LOSS, epochs=2, seed=3, on_step=lambda done, total, _: steps.append((done, total)))
    second = train(sample, LOSS, epochs=2, seed=3)
    other = train(sample, LOSS, epochs=2, seed=4)
    assert steps == [(done, 16) for done in range(1, 17)]
    assert first.losses == second.losses
    assert torch.equal(first.head.weight, second.head.weight)
    assert first.losses != other.losses
    pairs = Pairs.from_labels(sample.labels)
    backbone, head = fashion_network(seed=3)
    with torch.no_grad():
        before = LOSS(head(extract_features(backbone, sample.floats())), pairs)
        after = LOSS(first.head(extract_features(first.backbone, sample.floats())), pairs)
    assert after < before


def test_no_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="epochs is 0"):
        train(embedded_sample("mnist", "test"), LOSS, epochs=0, seed=0)


def test_the_pair_loss_is_the_loss() -> None:
    features, labels, head = small_layer()
    u = head(features).detach().double()
    value = pair_loss(F.normalize(u, dim=1), labels, margin=0.7, positive_only=False)
    expected = ContrastiveLoss(margin=0.7)(u, Pairs.from_labels(labels))
    assert float(value) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
def test_brute_force_is_the_hessian_where_both_must_agree(distance: str) -> None:
    """With a linear map from the weights to the raw embeddings, "full" arccos is the plain Hessian of the loss."""
    features, labels, head = small_layer()
    features, weight, bias = features.double(), head.weight.detach().double(), head.bias.detach().double()
    diagonal, scale = brute_force(features, weight, bias, labels, 0.7, distance, "full")

    def value(flat: torch.Tensor) -> torch.Tensor:
        u = F.linear(features, flat[:21].reshape(3, 7), flat[21:])
        return pair_loss(F.normalize(u, dim=1), labels, 0.7, positive_only=False)

    plain = jacrev(jacrev(value))(torch.cat([weight.flatten(), bias])).diagonal()
    deviation = float(((diagonal - plain).abs() / scale).max())
    assert deviation < 1e-12 if distance == "arccos" else deviation > 1e-3


def test_every_variant_agrees_with_brute_force() -> None:
    features, labels, head = small_layer()
    found = compare(features, labels, head, margin=0.7)
    assert {(each.distance, each.approximation) for each in found} == {
        (distance, approximation)
        for distance in ("arccos", "euclidean")
        for approximation in ("full", "fixed", "positive", "clipped")
    }
    assert max(each.deviation for each in found) < 1e-10


def test_a_wrong_closed_form_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = curvature.last_layer_ggn_diagonal

    def wrong(*arguments: object, **options: object) -> curvature.Parts:
        weight, bias = right(*arguments, **options)  # type: ignore[arg-type]
        return weight * 1.001, bias

    monkeypatch.setattr(curvature, "last_layer_ggn_diagonal", wrong)
    assert max(each.deviation for each in compare(*small_layer(), margin=0.7)) > 1e-5


def test_negative_share_and_trace_count_weight_and_bias() -> None:
    found = Curvature("arccos", "full", 4, 0.1, torch.tensor([[1.0, -2.0], [0.0, 3.0]]), torch.tensor([-1.0]))
    assert found.pairs == 6
    assert found.negative_share == pytest.approx(2 / 5)
    assert found.trace == pytest.approx(1.0)


@pytest.mark.slow
def test_the_demo_computes_what_its_page_says(long_form: bool) -> None:
    result = compute(seed=5, epochs=14 if long_form else 1)
    assert max(each.deviation for each in result.agreements) < 1e-8
    assert result.inside.recall > (0.7 if long_form else 0.4)
    by_name = {(each.distance, each.approximation): each for each in result.curvatures}
    assert len(by_name) == 8
    assert by_name["arccos", "fixed"].images == 2500
    assert by_name["arccos", "full"].images == 256
    assert by_name["euclidean", "positive"].negative_share < 1e-3
    page = tell(result).html()
    assert f"{result.inside.recall:.3f}" in page
    for each in result.curvatures:
        assert f"{each.trace:.4g}" in page
    told = result.uncertainty
    assert told.inside.kappa.shape == told.outside.kappa.shape == (1000,)
    for name in told.scores:
        assert name in page
    promised = result.refusal
    assert f"{promised.error:.1%} of the nearest items" in page
    assert promised.calibration == promised.queries == 500
    if promised.answered is None:
        assert promised.reason is not None
        assert not long_form, promised.reason
    elif long_form:
        assert promised.answered_error is not None
        assert promised.answered_error < promised.error
        assert promised.strangers_answered is not None
        assert promised.strangers_answered < promised.answered


def layer_features(wide: float, generator: torch.Generator) -> Features:
    labels = torch.arange(300) % 3
    directions = torch.eye(3).repeat(1, 4)[labels]
    return Features(directions + 0.3 * wide * torch.randn(300, 12, generator=generator), labels)


def test_what_the_demo_says_of_its_uncertainty_is_what_the_library_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    train, validation, test, strangers = (layer_features(wide, generator) for wide in (1.0, 1.0, 1.0, 4.0))
    encoder = Encoder(torch.nn.Identity(), torch.nn.Linear(12, 3))
    found = assess(encoder, LOSS, train, validation, test, strangers, seed=0)
    lam = LAM(encoder, LOSS, structure="lowrank")
    lam.fit_features(train, generator=torch.Generator().manual_seed(0), check_mode=False)
    lam.optimize_prior_precision()
    lam.fit_confidence(train, validation)
    inside, outside = lam.embed_features(test), lam.embed_features(strangers)
    torch.testing.assert_close(found.inside.kappa, inside.kappa)
    torch.testing.assert_close(found.outside.uncertainty, outside.uncertainty)
    by_kappa = found.scores["1/kappa, without the confidence"]
    torch.testing.assert_close(by_kappa.strangers["MNIST"], 1 / outside.kappa)
    assert found.consensus.num_samples == 50


def test_refusing_keeps_its_promise_on_what_was_not_calibrated_on() -> None:
    generator = torch.Generator().manual_seed(1)
    train, validation, strangers = (layer_features(wide, generator) for wide in (1.0, 1.0, 4.0))
    labels = torch.arange(1200) % 3
    spread = torch.where(torch.arange(1200) % 2 == 0, 0.2, 2.0)[:, None]
    raw = torch.eye(3).repeat(1, 4)[labels] + spread * torch.randn(1200, 12, generator=generator)
    test = Features(raw, labels)
    head = torch.nn.Linear(12, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(3).repeat(1, 4) / 4)
    told = assess(Encoder(torch.nn.Identity(), head), LOSS, train, validation, test, strangers, seed=0)
    found = refuse(told.lam, train, test, told.inside, told.outside, seed=0)
    assert (found.items, found.calibration, found.queries) == (300, 600, 600)
    assert found.reason is None
    assert found.answered is not None
    assert 0 < found.answered < 1
    assert found.answered_error is not None
    assert found.answered_error < min(0.13, found.error)
    assert found.covered > 0.85
    assert found.uncertain_classes > found.certain_classes


def test_what_cannot_be_promised_is_said() -> None:
    generator = torch.Generator().manual_seed(1)
    train, validation, test, strangers = (layer_features(wide, generator) for wide in (1.0, 1.0, 1.0, 4.0))
    labels = test.labels[torch.randperm(300, generator=generator)]
    encoder = Encoder(torch.nn.Identity(), torch.nn.Linear(12, 3))
    told = assess(encoder, LOSS, train, validation, test, strangers, seed=0)
    found = refuse(told.lam, train, Features(test.features, labels), told.inside, told.outside, seed=0)
    assert found.reason is not None
    assert "no threshold" in found.reason
    assert found.answered is None
    assert found.error > 0.4


def test_validation_images_are_the_last_of_every_class() -> None:
    sample = embedded_sample("fashion-mnist", "train")
    training, validation = split(sample, 500)
    assert (len(training), len(validation)) == (2500, 500)
    assert torch.bincount(validation.labels).tolist() == [50] * 10
    assert sorted([*training.indices.tolist(), *validation.indices.tolist()]) == sorted(
        sample.indices.tolist()
    )
    for label in range(10):
        rows = sample.indices[sample.labels == label]
        assert torch.equal(validation.indices[validation.labels == label], rows[-50:])


def test_a_failing_demo_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int, total: int, loss: float) -> None:
        raise RuntimeError(f"stopped at {done} of {total}")

    with pytest.raises(RuntimeError, match="stopped at 1 of 20"):
        run_demo(tmp_path / "out", epochs=1, on_step=stop)
    assert list(tmp_path.iterdir()) == []
