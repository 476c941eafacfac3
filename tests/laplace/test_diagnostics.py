"""What tells whether a posterior is to be trusted, against autograd and dense matrices."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from hessians.checks import CurvatureWarning
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.accumulate import accumulate
from laplacian_metric.laplace.diagnostics import diagnose
from laplacian_metric.laplace.fit import Fitted, loss_and_gradient, pull_back
from laplacian_metric.laplace.layer import DiagonalCurvature, LayerCurvature
from laplacian_metric.laplace.options import FitSettings, LamOptions
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.metrics import recall_at_k
from tests.laplace.fit_reference import LOSSES, Layer
from tests.laplace.layer_cases import SMALL, Make, dense_precision, every_structure, float64, gaussian

close = torch.testing.assert_close
LAYER = Layer.random(12, 3, 2)


def value_and_gradient(
    loss: ContrastiveLoss, batches: list[Tensor] | None, bias: bool = True
) -> tuple[float, Tensor]:
    """The value and the gradient of a loss, over all pairs or over those of batches."""
    data = LAYER.data(loss, bias=bias)
    _, parts, population, _ = accumulate(data, FitSettings(LamOptions(), search=False), batches)
    return loss_and_gradient(data, parts, population[1], None)


@pytest.mark.parametrize("negatives", ["all", "active"])
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_of_what_was_trained(name: str, negatives: str) -> None:
    """The gradient is of the loss as it is trained, the value of the one that is curved."""
    loss = replace(LOSSES[name], negatives=negatives)
    theta = torch.cat([LAYER.weight, LAYER.bias[:, None]], 1).requires_grad_()
    pairs = Pairs.from_labels(LAYER.labels)
    u = LAYER.inputs() @ theta.T
    (gradient,) = torch.autograd.grad(loss(u, pairs), theta)
    value, slope = value_and_gradient(loss, None)
    close(slope, gradient)
    assert value == pytest.approx(float(LOSSES[name](u, pairs).detach()))
    _, without = value_and_gradient(loss, None, bias=False)
    close(without, gradient[:, :-1])


@pytest.mark.parametrize("negatives", ["all", "active"])
def test_over_batches(negatives: str) -> None:
    """One average over the pairs of all batches, not a mean of averages."""
    loss = replace(LOSSES["arccos"], negatives=negatives)
    batches = [torch.tensor([0, 3, 1, 7, 5]), torch.tensor([2, 4, 8, 11]), torch.tensor([6, 9, 10])]
    positive, negative = LAYER.counts(batches)
    columns = [torch.tensor([pair[end] for pair in kind]) for kind in (positive, negative) for end in (0, 1)]
    pairs = Pairs.from_indices(columns, 12)
    theta = torch.cat([LAYER.weight, LAYER.bias[:, None]], 1).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(LAYER.inputs() @ theta.T, pairs), theta)
    value, slope = value_and_gradient(loss, batches)
    close(slope, gradient)
    assert value == pytest.approx(float(LOSSES["arccos"](LAYER.u, pairs)))


def test_pull_back_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    features, gradient = gaussian(50, 6, seed=0), gaussian(50, 3, seed=1)
    expected = torch.cat([gradient.T @ features, gradient.sum(0)[:, None]], 1)
    for memory in (1 << 20, 800):
        monkeypatch.setattr("laplacian_metric.laplace.fit.FEATURE_MEMORY", memory)
        close(pull_back(gradient, features, bias=True), expected)
        close(pull_back(gradient, features.float(), bias=False), expected[:, :-1].float())


def fitted_to(curvature: LayerCurvature, gradient: Tensor) -> Fitted:
    return Fitted(
        curvature=curvature,
        gradient=gradient,
        loss_value=0.4,
        num_images=3,
        num_positives=1,
        num_negatives=2,
        num_batches=1,
        bias_is_random=True,
        fingerprint="",
    )


@every_structure
def test_the_step_to_the_mode(make: Make) -> None:
    """The Newton step in standard deviations is sqrt(s^T P^-1 s), s the slope of the negative log posterior."""
    curvature, dense, _ = make(SMALL)
    gradient, theta, scale, prior = gaussian(3, 4, seed=5), gaussian(3, 4, seed=6), 7.0, 0.3
    precision = dense_precision(dense, scale, prior)
    slope = (scale * gradient + prior * theta).flatten()
    fitted = fitted_to(curvature, gradient)
    numbers = diagnose(curvature.posterior(scale, prior), theta, fitted, scale)
    assert numbers.steps_to_mode == pytest.approx(
        float((slope @ torch.linalg.solve(precision, slope)).sqrt())
    )
    effective = float((scale * dense @ torch.linalg.inv(precision)).trace())
    assert numbers.effective_parameters == pytest.approx(effective)
    assert numbers.expected_steps == pytest.approx(math.sqrt(effective))
    assert numbers.prior_to_data == pytest.approx(prior / (scale * float(dense.trace()) / 12))
    assert numbers.gradient_norm == pytest.approx(float(gradient.norm()))
    assert (numbers.parameters, numbers.clamped, numbers.loss_value) == (12, curvature.clamped, 0.4)
    assert numbers.to_dict()["parameters"] == 12


def trained(loss: ContrastiveLoss, steps: int) -> tuple[LAM, Layer]:
    """A linear layer, trained towards a mode of the loss with a weight decay."""
    layer = Layer.random(60, 4, 2, classes=4, seed=1)
    encoder = Encoder(nn.Identity(), nn.Linear(4, 2, dtype=float64))
    with torch.no_grad():
        encoder.head.weight.copy_(layer.weight)
        encoder.head.bias.copy_(layer.bias)
    optimizer = torch.optim.LBFGS(encoder.head.parameters(), max_iter=50, line_search_fn="strong_wolfe")
    pairs, decay = Pairs.from_labels(layer.labels), 1e-3

    def closure() -> Tensor:
        optimizer.zero_grad()
        square = sum(p.square().sum() for p in encoder.head.parameters())
        value = loss(encoder.raw(layer.features), pairs) + decay / 2 * square
        value.backward()
        return value

    for _ in range(steps):
        optimizer.step(closure)
    return LAM(encoder, loss, "positive", weight_decay=decay), layer


@pytest.mark.filterwarnings("error")
def test_a_trained_layer_is_at_a_mode_and_another_is_not() -> None:
    lam, layer = trained(ContrastiveLoss(0.9), 20)
    lam.fit_features(layer.features, layer.labels)
    assert lam.prior_precision == pytest.approx(60 * 1e-3)
    assert lam.diagnostics().is_mode
    assert lam.diagnostics().steps_to_mode < 0.1
    lam, layer = trained(ContrastiveLoss(0.9), 0)
    with pytest.warns(CurvatureWarning, match="mode"):
        lam.fit_features(layer.features, layer.labels)
    assert not lam.diagnostics().is_mode
    lam.fit_features(layer.features, layer.labels, check_mode=False)


def test_recall_lost() -> None:
    """Nothing where the posterior is narrow, all but chance where it knows nothing."""
    lam, layer = trained(ContrastiveLoss(0.9), 5)
    lam.fit_features(layer.features, layer.labels, check_mode=False)

    def lost() -> float:
        generator = torch.Generator().manual_seed(0)
        return lam.recall_lost(layer.features, layer.labels, samples=20, generator=generator)

    point = recall_at_k(lam.embed_features(layer.features).point, layer.labels)
    lam.prior_precision = 1e12
    assert lost() == pytest.approx(0, abs=1e-9)
    lam.prior_precision, lam.n_effective = 1e-8, 1e-9
    # Random projections of well separated features to a circle still separate some of the classes.
    assert lost() > 0.05
    drawn = list(lam.sample_embeddings(layer.features, 20, generator=torch.Generator().manual_seed(0)))
    mean = sum(recall_at_k(z, layer.labels) for z in drawn) / 20
    assert lost() == pytest.approx(point - mean)


def test_nothing_is_known() -> None:
    zeros = torch.zeros(2, 3)
    curvature = DiagonalCurvature(zeros, clamped=0.25)
    numbers = diagnose(curvature.posterior(5.0, 2.0), zeros, fitted_to(curvature, zeros), 5.0)
    assert numbers.clamped == 0.25
    assert numbers.prior_to_data == math.inf
    assert (numbers.effective_parameters, numbers.steps_to_mode) == (0, 0)
    assert numbers.is_mode
