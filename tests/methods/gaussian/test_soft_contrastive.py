"""Points by the soft contrastive loss: by hand, as the limit of hedged embeddings, and what training makes of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.gaussian.hib import HIB
from laplacian_metric.methods.gaussian.soft_contrastive import (
    SoftContrastiveEmbedder,
    SoftContrastiveLearner,
)
from laplacian_metric.training.options import dealt_pairs
from tests.methods.learning import NOTHING, SETUP, encoder_of
from tests.methods.learning import learner_of as make_learner


def encoder() -> Encoder:
    return encoder_of(dtype=torch.float64)


def learner_of(**options: Any) -> SoftContrastiveLearner:
    return make_learner("soft-contrastive", encoder(), **options)


def embedder_of(learner: SoftContrastiveLearner) -> SoftContrastiveEmbedder:
    return learner.embedder(NOTHING)


def images(num: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num, 2, generator=generator, dtype=torch.float64), torch.arange(num) // 2 % 3


@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_of_dealt_pairs_by_a_plain_loop(normalize: bool) -> None:
    inputs, _ = images()
    labels = torch.tensor([0, 0, 1, 2, 1, 1, 0, 1])
    learner = learner_of(setup={"pairs": dealt_pairs}, normalize=normalize, scale=3.0, offset=1.0)
    u = encoder().raw(inputs).detach()
    u = u / u.norm(dim=1, keepdim=True) if normalize else u
    terms = []
    for i, match in ((0, True), (2, False), (4, True), (6, False)):
        p = 1 / (1 + math.exp(3.0 * float((u[i] - u[i + 1]).norm()) - 1.0))
        terms.append(-math.log(p if match else 1 - p))
    assert float(learner.loss(inputs, labels).detach()) == pytest.approx(sum(terms) / 4)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("components", [1, 2])
def test_it_is_the_limit_of_hedged_embeddings_without_variance(normalize: bool, components: int) -> None:
    inputs, labels = images()
    point = learner_of(normalize=normalize)
    expected = point.loss(inputs, labels)
    expected.backward()
    wanted = {name: parameter.grad for name, parameter in point.module.encoder.named_parameters()}
    gaps = []
    for log_variance in (-6.0, -10.0, -14.0):
        hedged = HIB(
            normalize=normalize,
            head="linear",
            kl_weight=0.0,
            components=components,  # type: ignore[arg-type]
        ).learner([encoder()], SETUP)
        hedged.generator.manual_seed(0)
        head = hedged.network.log_variance
        with torch.no_grad():
            head.linear.bias.fill_(log_variance)
            for more in hedged.network.more_means:
                more.load_state_dict(hedged.network.encoder.head.state_dict())
        loss = hedged.loss(inputs, labels)
        loss.backward()
        gaps.append(abs(float((loss - expected).detach())))
        # All components are at one place: what reaches their heads adds up to what reaches the one.
        gradients = [each.weight.grad for each in (hedged.network.encoder.head, *hedged.network.more_means)]
    assert gaps[2] < 2e-3
    assert gaps[2] < gaps[0] / 4
    scale = float(wanted["head.weight"].abs().max())
    torch.testing.assert_close(
        torch.stack([grad for grad in gradients if grad is not None]).sum(0),
        wanted["head.weight"],
        atol=0.02 * scale,
        rtol=0,
    )


def test_it_embeds_points_without_spread() -> None:
    inputs, _ = images()
    embedder = embedder_of(learner_of(normalize=False))
    u = encoder().raw(inputs).detach()
    e = embedder.embed(inputs, samples=3)
    torch.testing.assert_close(e.gaussians.mean, u)
    torch.testing.assert_close(e.point, u / u.norm(dim=1, keepdim=True))
    assert bool((e.uncertainty == 0).all())
    assert bool((e.samples == e.point).all())
    similarity = embedder.similarity(e[:3], e)
    torch.testing.assert_close(similarity, (3.0 - 5.0 * torch.cdist(u[:3], u)).sigmoid())
    means, log_variances = embedder.mixtures([inputs[:5], inputs[5:]])
    torch.testing.assert_close(means[:, 0], u)
    assert bool((log_variances.exp() == 0).all())
