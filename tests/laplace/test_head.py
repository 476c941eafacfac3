"""A linear head with a Gaussian over its weights: blocks, draws and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from laplacian_metric.laplace import head as module
from laplacian_metric.laplace.head import HeadPosterior
from laplacian_metric.laplace.layer import DiagonalCurvature
from tests.generators import seeded
from tests.laplace.layer_cases import (
    Make,
    Problem,
    dense_precision,
    diagonal,
    every_structure,
    float64,
    gaussian,
    jacobian,
)

close = torch.testing.assert_close
DIM, WIDTH = 3, 4
FEATURES = gaussian(30, WIDTH, seed=1)


def head_of(make: Make, random_bias: bool = True, bias: bool = True) -> tuple[HeadPosterior, Tensor]:
    """A head, and its dense covariance."""
    inputs = WIDTH + int(random_bias)
    curvature, dense, _ = make(Problem(DIM, inputs, 5, "positive", seed=3))
    layer = nn.Linear(WIDTH, DIM, bias=bias, dtype=float64)
    layer.load_state_dict(
        {"weight": gaussian(DIM, WIDTH, seed=5), **({"bias": gaussian(DIM, seed=6)} if bias else {})}
    )
    posterior = curvature.posterior(2.0, 0.5)
    return HeadPosterior(layer, posterior, random_bias), torch.linalg.inv(dense_precision(dense, 2.0, 0.5))


def inputs(head: HeadPosterior) -> Tensor:
    return torch.cat([FEATURES, torch.ones(30, int(head.bias_is_random), dtype=float64)], dim=1)


@every_structure
@pytest.mark.parametrize(("random_bias", "bias"), [(True, True), (False, True), (False, False)])
def test_gaussians_of_the_embeddings(make: Make, random_bias: bool, bias: bool) -> None:
    head, covariance = head_of(make, random_bias, bias)
    e = head.embed(FEATURES)
    rows = jacobian(inputs(head), DIM)
    close(e.gaussians.covariance, rows @ covariance @ rows.mT)
    shift = head.bias if head.bias is not None else torch.zeros(DIM, dtype=float64)
    close(e.gaussians.mean, FEATURES @ head.weight.T + shift)
    close(head.theta.flatten(), torch.cat([head.weight, shift[:, None]][: 1 + random_bias], 1).flatten())


@every_structure
def test_blocks_make_no_difference(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    head, _ = head_of(make)
    whole, drawn = head.embed(FEATURES), torch.stack(list(head.sampled(FEATURES, 5, seeded())))
    monkeypatch.setattr(module, "FEATURE_MEMORY", 1500)
    monkeypatch.setattr(module, "SAMPLE_MEMORY", 1500)
    monkeypatch.setattr(module, "CHECKED_ROWS", 7)
    assert len(list(head.blocks(FEATURES))) > 1
    close(head.embed(FEATURES).kappa, whole.kappa)
    close(torch.stack(list(head.sampled(FEATURES, 5, seeded()))), drawn)
    broken = FEATURES.clone()
    broken[17, 2] = torch.nan
    with pytest.raises(ValueError, match=r"in 1 of 7 rows, the first is row 17"):
        head.embed(broken)


@every_structure
def test_a_seed_gives_the_same_networks_to_all_images(make: Make) -> None:
    """However many images and draws there are, and however they are asked for."""
    head, _ = head_of(make)
    weight, bias = head.sample_weights(5, seeded())
    assert weight.shape == (5, DIM, WIDTH)
    few, few_bias = head.sample_weights(2, seeded())
    close(few, weight[:2], rtol=0, atol=0)
    close(few_bias, bias[:2], rtol=0, atol=0)
    expected = torch.einsum("nh,skh->snk", FEATURES, weight) + bias[:, None]
    close(torch.stack(list(head.draws(FEATURES, 5, seeded()))), expected)
    close(torch.stack(list(head.draws(FEATURES[7:9], 5, seeded()))), expected[:, 7:9])
    unit = expected / expected.norm(dim=2, keepdim=True)
    close(torch.stack(list(head.sampled(FEATURES, 5, seeded()))), unit)
    close(head.embed_with(FEATURES, weight, bias), unit)


@pytest.mark.statistical
@every_structure
def test_draws_have_the_covariance_across_images(make: Make) -> None:
    """Mean and joint covariance of two images, by 20,000 draws: five standard errors."""
    head, covariance = head_of(make)
    rows = jacobian(inputs(head)[:2], DIM).flatten(0, 1)
    expected = rows @ covariance @ rows.T
    count = 20_000
    drawn = torch.stack(list(head.draws(FEATURES[:2], count, seeded(4)))).flatten(1)
    mean = (FEATURES[:2] @ head.weight.T + head.bias).flatten()
    spread = expected.diagonal()
    assert bool(((drawn.mean(0) - mean).abs() <= 5 * (spread / count).sqrt()).all())
    error = ((spread[:, None] * spread + expected.square()) / count).sqrt()
    assert bool(((drawn.T.cov() - expected).abs() <= 5 * error).all())


def test_a_fixed_bias_is_not_drawn() -> None:
    head, _ = head_of(diagonal, random_bias=False)
    _, bias = head.sample_weights(3, seeded())
    assert bool((bias == head.bias).all())
    without, _ = head_of(diagonal, random_bias=False, bias=False)
    assert without.sample_weights(3, seeded())[1] is None


@every_structure
def test_no_image_and_one_image(make: Make) -> None:
    head, _ = head_of(make)
    none = head.embed(FEATURES[:0])
    assert (len(none), none.mean.shape, none.kappa.shape) == (0, (0, DIM), (0,))
    assert [tuple(z.shape) for z in head.sampled(FEATURES[:0], 2)] == [(0, DIM)] * 2
    close(head.embed(FEATURES[4:5]).kappa, head.embed(FEATURES).kappa[4:5])


def test_half_precision_is_computed_in_float32() -> None:
    layer = nn.Linear(WIDTH, DIM, dtype=torch.bfloat16)
    posterior = DiagonalCurvature(torch.ones(DIM, WIDTH + 1)).posterior(1.0, 1.0)
    head = HeadPosterior(layer, posterior, bias_is_random=True)
    e = head.embed(FEATURES.bfloat16())
    assert e.kappa.dtype is torch.float32
    close(e.variance[0], (FEATURES[0].bfloat16().float().square().sum() + 1).expand(3) / 2)


@every_structure
def test_draws_leave_the_head_as_it_was(make: Make) -> None:
    head, _ = head_of(make)
    before = head.theta.clone()
    for k in (1, 3):
        for drawn in head.sample_weights(k, seeded()):
            drawn.zero_()
    assert torch.equal(head.theta, before)
