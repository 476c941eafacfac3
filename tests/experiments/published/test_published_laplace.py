"""LAM as the published code fits it after training, triplet by triplet, and the method of that variant."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from experiments.published.laplace import PublishedLaplace, fit_summed
from experiments.published.triplets import random_triplets
from hessians import ContrastiveLoss, Pairs
from hessians.approximations import Approximation
from laplacian_metric import LAM, vmf
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.methods import make
from tests.generators import seeded
from tests.methods.laplace.test_laplace import LOSS, an_embedder, an_encoder, clusters, float64


@pytest.mark.parametrize("approximation", ["fixed", "positive", "full"])
def test_the_published_curvature_is_the_sum_over_triplets(approximation: str) -> None:
    """Pair by pair, by the blocks of each pair and an explicit Jacobian."""
    images, labels = clusters()
    kept = Approximation(approximation)
    embedder = an_embedder(
        PublishedLaplace(variant="published", approximation=kept, batch_size=25, triplets=40)
    )
    encoder = an_encoder()
    u = encoder.raw(images).detach()
    x = torch.cat([images, images.new_ones(len(images), 1)], dim=1)
    generator, total, count = seeded(0), torch.zeros(3, 6, dtype=float64), 0
    for chosen in torch.randperm(60, generator=generator).split(25):
        anchors, positives, negatives = random_triplets(labels[chosen], 40, generator)
        for a, p, n in zip(chosen[anchors], chosen[positives], chosen[negatives], strict=True):
            count += 1
            for i, j, positive in ((a, p, True), (a, n, False)):
                if approximation == "positive" and not positive:
                    continue
                own, cross, other = (block[0] for block in LOSS.pair_blocks(u[i][None], u[j][None], positive))
                total += own.diagonal()[:, None] * x[i] ** 2 + other.diagonal()[:, None] * x[j] ** 2
                if approximation != "fixed":
                    total += 2 * cross.diagonal()[:, None] * x[i] * x[j]
    # The prior precision is 1, the scale 1.
    precision = embedder.lam.posterior.marginal_variance().reciprocal() - 1
    torch.testing.assert_close(precision.view(3, 6), total.clamp(min=0))
    assert embedder.lam.fitted.num_positives == count


def test_the_published_gradient_and_value_are_those_of_the_sum() -> None:
    images, labels = clusters()
    encoder = an_encoder()
    loss = ContrastiveLoss(margin=0.7)
    lam = LAM(encoder, loss, n_effective=1.0)
    fit_summed(lam, Dataset(images, labels), batch_size=30, triplets=50, generator=seeded(0))
    generator, total = seeded(0), torch.zeros((), dtype=float64)
    for chosen in torch.randperm(60, generator=generator).split(30):
        pairs = Pairs.from_indices(random_triplets(labels[chosen], 50, generator), 30, population=(1.0, 1.0))
        total = total + loss(encoder.raw(images[chosen]), pairs)
    w, b = torch.autograd.grad(total, [encoder.head.weight, encoder.head.bias])
    assert lam.fitted.loss_value == pytest.approx(float(total.detach()))
    torch.testing.assert_close(lam.fitted.gradient, torch.cat([w, b[:, None]], dim=1))


def test_the_published_uncertainty_is_the_spread_of_the_samples() -> None:
    embedder = an_embedder(PublishedLaplace(variant="published", samples=7, seed=3))
    x = clusters(9, seed=4)[0]
    weight, bias = embedder.lam.sample_weights(7, generator=seeded(3))
    drawn = torch.stack(
        [nn.functional.normalize(x @ w.T + b, dim=1) for w, b in zip(weight, bias, strict=True)]
    )
    whole, parts = embedder.embed(x), embedder.embed([x[:4], x[4:]])
    torch.testing.assert_close(whole.uncertainty, drawn.std(0).sum(1))
    torch.testing.assert_close(whole.point, nn.functional.normalize(drawn.mean(0), dim=1))
    torch.testing.assert_close(whole.kappa, vmf.fit(drawn)[1])
    torch.testing.assert_close(parts.uncertainty, whole.uncertainty)


@pytest.mark.parametrize("prior", [0.5, "marginal", "validation"])
def test_the_prior_of_the_published_variant_is_chosen_where_it_is_wanted(prior: Any) -> None:
    precision = an_embedder(PublishedLaplace(variant="published", prior=prior)).lam.prior_precision
    assert (precision == 0.5) if prior == 0.5 else (precision not in (0.5, 1.0))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"variant": "paper"}, "variant is 'paper'"),
        ({"samples": 1}, "samples is 1"),
        ({"variant": "published", "structure": "kron"}, 'structure is "kron"'),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make("laplace", **options)
