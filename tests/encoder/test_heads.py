"""Heads for models without one: identity, random, whitening and trained ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.encoder import Encoder, identity_head, random_head, train_head, whitening_head
from laplacian_metric.encoder.heads import _batch, _rows_by_class


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def recall(z: Tensor, labels: Tensor) -> float:
    nearest = (z @ z.T).fill_diagonal_(-2).argmax(1)
    return float((labels[nearest] == labels).float().mean())


# --- on top of a model ---


def test_an_identity_head_keeps_directions() -> None:
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).double().eval()
    images = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    for features in (5, images):
        encoder = Encoder.with_head(backbone, features)
        assert encoder.head.weight.dtype == torch.float64
        assert (encoder.dim, encoder.num_features) == (5, 5)
        torch.testing.assert_close(encoder(images), F.normalize(backbone(images), dim=1))
        assert encoder.head.weight.requires_grad


def test_a_random_head_comes_from_its_seed() -> None:
    state = torch.get_rng_state()
    heads = [Encoder.with_head(nn.Identity(), 6, dim=3, init="random", seed=seed).head for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(heads[0].weight, heads[1].weight)
    assert not torch.equal(heads[0].weight, heads[2].weight)
    assert heads[0].weight.shape == (3, 6)
    head = random_head(100, 50, generator=generator(), dtype=torch.float64)
    assert head.weight.dtype == torch.float64
    for parameter in (
        head.weight.detach(),
        head.bias.detach(),
    ):  # uniform between -0.1 and 0.1, as torch's own
        assert float(parameter.abs().max()) <= 0.1
        assert abs(float(parameter.std()) - 0.1 / 3**0.5) < 0.01
    assert torch.equal(head.weight, random_head(100, 50, generator=generator(), dtype=torch.float64).weight)


# --- whitening ---


@settings(max_examples=15)
@given(width=st.integers(1, 6), extra=st.integers(8, 30), dim=st.integers(1, 6))
def test_whitened_features_have_unit_covariance(width: int, extra: int, dim: int) -> None:
    g = generator(width * 100 + extra)
    features = (
        torch.randn(width + extra, width, generator=g, dtype=torch.float64) * torch.arange(1, width + 1) + 3
    )
    dim = min(dim, width)
    u = whitening_head(features, dim, eps=1e-12)(features).detach()
    torch.testing.assert_close(u.mean(0), torch.zeros(dim, dtype=torch.float64), atol=1e-9, rtol=0)
    covariance = torch.cov(u.T).reshape(dim, dim)
    torch.testing.assert_close(covariance, torch.eye(dim, dtype=torch.float64), atol=1e-8, rtol=0)
    # What is kept is what varies most: no direction that is left out varies more than one that is kept.
    _, singular, _ = torch.linalg.svd(features - features.mean(0), full_matrices=False)
    weight = whitening_head(features, dim, eps=1e-12).weight.detach()
    torch.testing.assert_close(1 / weight.norm(dim=1), singular[:dim] / (len(features) - 1) ** 0.5)


def test_directions_without_variance_stay_finite() -> None:
    features = torch.randn(10, 4, generator=generator())
    features[:, 3] = 2.0
    head = whitening_head(features)
    assert head.weight.isfinite().all()
    assert float(head(features)[:, 3].detach().abs().max()) < 0.1


# --- training ---


def noisy_classes(count: int = 240) -> tuple[Tensor, Tensor]:
    """Three classes that differ in three of twelve features, the others of which are loud."""
    labels = torch.arange(count) % 3
    noise = torch.randn(count, 12, generator=generator())
    noise[:, :3] *= 0.15
    noise[:, :3] += F.one_hot(labels, 3)
    return noise, labels


def test_training_finds_what_tells_classes_apart() -> None:
    features, labels = noisy_classes()
    test, test_labels = features[120:], labels[120:]
    before = recall(F.normalize(test, dim=1), test_labels)
    loss = ContrastiveLoss(margin=0.7)
    kept = features.clone()
    head = train_head(
        features[:120], labels[:120], loss, 3, steps=300, learning_rate=1e-2, generator=generator()
    )
    assert torch.equal(features, kept)
    assert head.weight.grad is None
    encoder = Encoder(nn.Identity(), head)
    assert recall(encoder(test).detach(), test_labels) > 0.95 > 0.75 > before
    start = random_head(12, 3, generator=generator())
    pairs = Pairs.from_labels(test_labels)
    assert float(loss(head(test), pairs).detach()) < 0.5 * float(loss(start(test), pairs).detach())


def test_training_comes_from_the_generator_and_starts_where_it_is_told() -> None:
    features, labels = noisy_classes(60)
    state = torch.get_rng_state()

    def trained(seed: int, init: nn.Linear | None = None, rate: float = 1e-3) -> Tensor:
        head = train_head(
            features,
            labels,
            ContrastiveLoss(),
            12,
            init=init,
            steps=3,
            learning_rate=rate,
            generator=generator(seed),
        )
        return head.weight.detach()

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))
    assert torch.equal(torch.get_rng_state(), state)
    identity = identity_head(12)
    moved = trained(1, identity, rate=1e-4)
    assert 0 < float((moved - torch.eye(12)).abs().max()) < 1e-3
    assert torch.equal(identity.weight, torch.eye(12))
    with torch.no_grad():
        assert torch.equal(trained(1), trained(1))  # training needs gradients, whatever is around it


def test_batches_are_balanced() -> None:
    labels = torch.tensor([7] * 30 + [-2] * 5 + [3] * 2 + [9] * 40)
    rows = _rows_by_class(torch.zeros(len(labels), 2), labels)
    assert [labels[r].unique().tolist() for r in rows] == [[-2], [3], [7], [9]]
    batch = _batch(rows, 10, 8, generator())
    assert torch.bincount(labels[batch] + 2, minlength=12).tolist() == [8, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 8]
    assert len(batch[labels[batch] == 7].unique()) == 8  # different images, where there are enough
    assert len(batch[labels[batch] == -2].unique()) == 5
    assert _batch(rows, 2, 4, generator()).shape == (8,)
    assert len(labels[_batch(rows, 2, 4, generator())].unique()) == 2
