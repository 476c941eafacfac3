"""MC dropout: where the masks go, what they do, and what the draws add up to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric import vmf
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.sampling.mc_dropout import MCDropout, MCDropoutLearner
from tests.encoder.dropout_cases import small_encoder
from tests.generators import seeded

NOTHING = FitData(train=[], validation=[])


def setup(**options: Any) -> Setup:
    return Setup(loss=ContrastiveLoss(margin=0.7), num_images=10, **options)


def learner_of(encoder: Encoder, seed: int = 0, **options: Any) -> MCDropoutLearner:
    learner = MCDropout(**options).learner([encoder], setup())
    learner.begin(torch.optim.SGD(learner.parameters(), lr=0.05), seeded(seed))
    return learner


class TestLearner:
    def test_the_loss_is_that_of_a_plain_loop_over_masked_layers(self) -> None:
        encoder, x, labels = small_encoder().double(), torch.rand(6, 2).double(), torch.arange(6) % 2
        value = learner_of(encoder, seed=5, rate=0.3).loss(x, labels)
        generator, first, second = seeded(5), encoder.backbone[0], encoder.backbone[2]
        masks = [(torch.rand(6, 16, generator=generator) >= 0.3).double() / 0.7 for _ in range(2)]
        hidden = (first(x).relu() * masks[0]) @ second.weight.T + second.bias
        u = (hidden.relu() * masks[1]) @ encoder.head.weight.T + encoder.head.bias
        expected = ContrastiveLoss(margin=0.7)(u, Pairs.from_labels(labels))
        torch.testing.assert_close(value, expected)


class TestEmbedder:
    def test_mean_and_kappa_are_those_of_the_draws(self) -> None:
        encoder, x = small_encoder(), torch.rand(5, 2)
        e = learner_of(encoder, samples=30).embedder(NOTHING).embed(x, samples=30)
        mean, kappa = vmf.fit(e.samples)
        torch.testing.assert_close(e.mean, mean)
        torch.testing.assert_close(e.kappa, kappa, rtol=1e-4, atol=0)
        torch.testing.assert_close(e.uncertainty, 1 / e.kappa)
        assert torch.equal(e.point, e.mean)

    def test_one_draw_by_hand(self) -> None:
        # u = W (h * mask / 0.5) with h = (1, 1), W = diag(1, 2): along (1, 2), (1, 0) or (0, 1).
        head = nn.Linear(2, 2, bias=False)
        head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        encoder = Encoder(nn.Identity(), head)
        generator = seeded(1)
        masks = [torch.rand(1, 2, generator=generator) >= 0.5 for _ in range(2)]
        assert masks[0].tolist() == [[True, False]]
        assert masks[1].tolist() == [[False, True]]
        method = MCDropout(rate=0.5, samples=2, seed=1, point="deterministic")
        e = method.learner([encoder], setup()).embedder(NOTHING).embed(torch.ones(1, 2), samples=2)
        torch.testing.assert_close(e.samples, torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        torch.testing.assert_close(e.point, torch.tensor([[1.0, 2.0]]) / 5**0.5)
        torch.testing.assert_close(e.mean, torch.tensor([[0.5, 0.5]]) * 2**0.5)

    def test_rate_zero_is_deterministic(self) -> None:
        encoder, x = small_encoder(), torch.rand(5, 2)
        e = learner_of(encoder, rate=0.0, samples=3).embedder(NOTHING).embed(x, samples=3)
        z = nn.functional.normalize(encoder.raw(x)).detach()
        assert torch.equal(e.samples[0], e.samples[2])
        torch.testing.assert_close(e.samples[0], z)
        torch.testing.assert_close(e.point, z)
        assert bool((e.kappa > 1e12).all())

    def test_more_samples_than_draws_and_a_generator(self) -> None:
        encoder, x = small_encoder(), torch.rand(3, 2)
        embedder = learner_of(encoder, samples=4).embedder(NOTHING)
        first, more = embedder.embed(x, samples=4), embedder.embed(x, samples=9)
        other = embedder.embed(x, samples=4, generator=seeded(7))
        torch.testing.assert_close(more.samples[:4], first.samples)
        assert more.samples.shape == (9, 3, 3)
        assert not torch.allclose(other.samples, first.samples)
        assert torch.equal(other.kappa, first.kappa)
        assert embedder.embed(x).samples is None

    @pytest.mark.parametrize("masks", ["shared", "independent"])
    def test_what_images_have_in_common(self, masks: str) -> None:
        encoder = small_encoder()
        embedder = learner_of(encoder, masks=masks, samples=6).embedder(NOTHING)
        twins = torch.rand(1, 2).expand(2, 2)
        for inputs in (twins, [twins[:1], twins[1:]]):
            drawn = torch.stack(list(embedder.sample_embeddings(inputs, 6)))
            assert torch.allclose(drawn[:, 0], drawn[:, 1]) == (masks == "shared")
        e = embedder.embed(twins, samples=6)
        assert torch.allclose(e.samples[:, 0], e.samples[:, 1]) == (masks == "shared")

    def test_modes_are_left_as_they_were_and_other_dropout_is_off(self) -> None:
        backbone = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.9), nn.BatchNorm1d(8), nn.ReLU())
        encoder, x = Encoder(backbone, nn.Linear(8, 3)), torch.rand(6, 2)
        learner = learner_of(encoder, rate=0.0, samples=2)
        learner.train_mode()
        before = encoder.fingerprint()
        e = learner.embedder(NOTHING).embed(x)
        list(learner.embedder(NOTHING).sample_embeddings(x, 2))
        assert encoder.training
        assert encoder.fingerprint() == before
        assert bool((e.kappa > 1e12).all())
