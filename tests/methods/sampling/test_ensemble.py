"""Ensembles: what M networks make of an image, and that a rotation between them does not matter."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes
from torch import Tensor, nn

from hessians import ContrastiveLoss
from laplacian_metric import metrics, vmf
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.sampling.ensemble import Ensemble, EnsembleEmbedder, nearest_orthogonal
from laplacian_metric.methods.sampling.soft_neighbours import RandomImages, neighbour_disagreement

SETUP = Setup(loss=ContrastiveLoss(margin=0.7), num_images=10)


def data_of(*batches: Tensor) -> FitData:
    return FitData(train=list(batches), validation=[])


def encoder_of(seed: int, dim: int = 3, features: int = 4) -> Encoder:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Encoder(nn.Identity(), nn.Linear(features, dim)).double()


def turned(encoder: Encoder, seed: int, sign: int) -> Encoder:
    """The same encoder in a space that is rotated, and mirrored where the sign is negative."""
    member = copy.deepcopy(encoder)
    Q = orthogonal(encoder.dim, seed, sign)
    member.head.weight.data = Q.T @ encoder.head.weight.data
    member.head.bias.data = Q.T @ encoder.head.bias.data
    return member


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def images(count: int, seed: int = 0) -> Tensor:
    return normal(count, 4, seed=seed)


def embedder_of(encoders: list[Encoder], data: FitData | None = None, **options: Any) -> EnsembleEmbedder:
    learner = Ensemble(**options).learner(encoders, SETUP)
    return learner.embedder(data_of(images(60, seed=9)) if data is None else data)


def unit(encoder: Encoder, x: Tensor) -> Tensor:
    return nn.functional.normalize(encoder.raw(x).detach())


def constant(*direction: float) -> Encoder:
    """Embeds everything alike."""
    head = nn.Linear(1, len(direction)).double()
    nn.init.zeros_(head.weight)
    head.bias.data = torch.tensor(direction, dtype=torch.float64)
    return Encoder(nn.Identity(), head)


class TestOptions:
    def test_weights_are_saved_and_restored_exactly(self) -> None:
        first = Ensemble().learner([encoder_of(0), encoder_of(1)], SETUP)
        second = Ensemble().learner([encoder_of(2), encoder_of(3)], SETUP)
        second.module.load_state_dict(first.module.state_dict())
        second.restore(first.state())
        data, x = data_of(images(30)), images(4, seed=1)
        one, other = first.embedder(data).embed(x), second.embedder(data).embed(x)
        assert torch.equal(one.point, other.point)
        assert torch.equal(one.kappa, other.kappa)


class TestSimilarity:
    def test_cosines_are_the_average_of_the_members(self) -> None:
        encoders, x = [encoder_of(seed) for seed in range(4)], images(6)
        e = embedder_of(encoders).embed(x)
        loop = torch.zeros(6, 6, dtype=torch.float64)
        for encoder in encoders:
            for i in range(6):
                for j in range(6):
                    loop[i, j] += torch.cosine_similarity(
                        encoder.raw(x[i : i + 1]), encoder.raw(x[j : j + 1])
                    )[0]
        assert e.point.shape == (6, 12)
        assert embedder_of(encoders).settings() == {"members": 4}
        torch.testing.assert_close(e.point @ e.point.T, loop.detach() / 4)
        torch.testing.assert_close(e.mean, e.point)
        learner = Ensemble().learner(encoders, SETUP)
        torch.testing.assert_close(learner.points(x), e.point)

    def test_samples_are_the_members(self) -> None:
        encoders, x = [encoder_of(seed) for seed in range(3)], images(5)
        e = embedder_of(encoders).embed(x, samples=3)
        for sample, encoder in zip(e.samples, encoders, strict=True):
            z = unit(encoder, x)
            torch.testing.assert_close(sample @ sample.T, z @ z.T)
        torch.testing.assert_close(nn.functional.normalize(e.samples.mean(0)), e.point)

    def test_calibration_is_that_of_the_members_and_does_not_change_with_their_repetition(self) -> None:
        encoders, x, labels = [encoder_of(seed) for seed in range(5)], images(40), torch.arange(40) % 3
        embedder = embedder_of(encoders)
        own = metrics.retrieval_ece(torch.stack([unit(encoder, x) for encoder in encoders]), labels)
        assert own > 0
        for samples in (5, 20):
            assert metrics.retrieval_ece(embedder.sample_embeddings(x, samples), labels) == pytest.approx(own)


class TestRotatedCopies:
    @pytest.fixture
    def copies(self) -> list[Encoder]:
        first = encoder_of(0)
        return [first, *(turned(first, seed, (-1) ** seed) for seed in range(1, 5))]

    def test_nothing_is_lost_where_rotations_do_not_matter(self, copies: list[Encoder]) -> None:
        x = images(50)
        z = unit(copies[0], x)
        for how in ("similarity", "aligned"):
            e = embedder_of(copies, combine=how).embed(x)
            torch.testing.assert_close(e.point @ e.point.T, z @ z.T)
            assert bool((e.kappa > 1e12).all())
        torch.testing.assert_close(e.point, z)

    def test_directions_as_they_are_tell_nothing(self, copies: list[Encoder]) -> None:
        e = embedder_of(copies, combine="naive").embed(images(50))
        assert float(e.kappa.median()) < 5

    def test_only_rotations(self, copies: list[Encoder]) -> None:
        x = images(50)
        proper = [copies[0], copies[2], copies[4]]
        assert bool((embedder_of(proper, combine="aligned", reflections=False).embed(x).kappa > 1e12).all())
        mirrored = embedder_of(copies[:2], combine="aligned", reflections=False).embed(x)
        assert float(mirrored.kappa.min()) < 100

    def test_naive_needs_no_training_images_and_the_others_do(self, copies: list[Encoder]) -> None:
        embedder_of(copies, FitData(train=[], validation=[]), combine="naive").embed(images(2))
        for how in ("similarity", "aligned"):
            with pytest.raises(ValueError, match="the loader is empty"):
                embedder_of(copies, FitData(train=[], validation=[]), combine=how)
            with pytest.warns(
                UserWarning, match="2 training images leave the alignment of 3 dimensions open"
            ):
                embedder_of(copies, data_of(images(2)), combine=how)


class TestKappa:
    def test_by_hand(self) -> None:
        # Directions (1, 0), (1, 0), (0, 1): |mean|^2 = 5/9, V = 4/9, kappa = R (D - R^2)/(1 - R^2).
        encoders = [constant(2.0, 0.0), constant(1.0, 0.0), constant(0.0, 3.0)]
        e = embedder_of(encoders, combine="naive").embed(torch.ones(1, 1).double())
        R = (5 / 9) ** 0.5
        torch.testing.assert_close(e.kappa, torch.tensor([R * (2 - 5 / 9) / (4 / 9)], dtype=torch.float64))
        torch.testing.assert_close(e.uncertainty, 1 / e.kappa)
        torch.testing.assert_close(e.mean, torch.tensor([[2.0, 1.0]], dtype=torch.float64) / 5**0.5)

    def test_images_of_little_agreement_are_in_order_too(self) -> None:
        encoders = [encoder_of(seed) for seed in range(5)]
        e = embedder_of(encoders, combine="naive").embed(images(500))
        members = torch.stack([unit(encoder, images(500)) for encoder in encoders])
        length = members.mean(0).norm(dim=1)
        assert int((vmf.fit(members)[1] == 0).sum()) > 20  # where a debiased kappa has no order
        assert torch.equal(e.uncertainty.argsort(), (1 - length).argsort())

    def test_identical_members_are_deterministic(self) -> None:
        encoder, x = encoder_of(0), images(5)
        encoders = [encoder, copy.deepcopy(encoder), copy.deepcopy(encoder)]
        for how in ("similarity", "aligned", "naive"):
            e = embedder_of(encoders, combine=how).embed(x)
            z = unit(encoder, x)
            torch.testing.assert_close(e.point @ e.point.T, z @ z.T)
            assert bool((e.kappa > 1e12).all())


class TestNeighbours:
    def test_it_is_the_disagreement_beside_training_images(self) -> None:
        encoders, x, train = [encoder_of(seed) for seed in range(3)], images(6), images(30, seed=2)
        options: dict[str, Any] = {"disagreement": "neighbours", "sharpness": 5.0}
        for how in ("similarity", "aligned", "naive"):
            e = embedder_of(encoders, data_of(train), combine=how, **options).embed(x)
            members, references = (
                torch.stack([unit(encoder, of) for encoder in encoders]) for of in (x, train)
            )
            torch.testing.assert_close(e.uncertainty, neighbour_disagreement(members, references, 5.0))
            assert torch.equal(e.kappa, embedder_of(encoders, data_of(train), combine=how).embed(x).kappa)

    def test_references_are_a_draw_that_does_not_depend_on_batches(self) -> None:
        encoders, x, train = [encoder_of(seed) for seed in range(3)], images(6), images(30, seed=2)
        options: dict[str, Any] = {"disagreement": "neighbours", "references": 8}
        whole = embedder_of(encoders, data_of(train), **options)
        cut = embedder_of(encoders, data_of(train[:5], train[5:6], train[6:]), **options)
        other = embedder_of(encoders, data_of(train), seed=1, **options)
        assert whole.references.shape == (3, 8, 3)
        torch.testing.assert_close(cut.embed(x).uncertainty, whole.embed(x).uncertainty)
        assert not torch.allclose(other.embed(x).uncertainty, whole.embed(x).uncertainty)


def procrustes(source: Tensor, target: Tensor, *, reflections: bool = True) -> Tensor:
    """The orthogonal matrix that brings rows closest to others."""
    return nearest_orthogonal(source.T @ target, reflections=reflections)


def orthogonal(dim: int, seed: int = 0, sign: int = 1) -> Tensor:
    """With this sign of its determinant."""
    Q = torch.linalg.qr(normal(dim, dim, seed=seed)).Q
    if float(torch.linalg.det(Q)) * sign < 0:
        Q[:, 0] *= -1
    return Q


@settings(max_examples=15, deadline=None)
@given(dim=st.integers(1, 6), extra=st.integers(0, 20), seed=st.integers(0, 99))
def test_it_is_scipy_s(dim: int, extra: int, seed: int) -> None:
    source, target = normal(dim + extra, dim, seed=seed), normal(dim + extra, dim, seed=seed + 1)
    expected = torch.from_numpy(orthogonal_procrustes(source.numpy(), target.numpy())[0])
    torch.testing.assert_close(procrustes(source, target), expected)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dim", [2, 3, 8])
def test_what_was_turned_is_turned_back(dim: int, sign: int) -> None:
    source, turn = normal(40, dim), orthogonal(dim, seed=4, sign=sign)
    torch.testing.assert_close(procrustes(source, source @ turn), turn)


def test_without_reflections_the_determinant_is_one_and_no_small_turn_is_better() -> None:
    source = normal(30, 3)
    target = source @ orthogonal(3, seed=1, sign=-1)
    R = procrustes(source, target, reflections=False)
    torch.testing.assert_close(R.T @ R, torch.eye(3, dtype=torch.float64))
    assert float(torch.linalg.det(R)) == pytest.approx(1)
    best = float((source @ R - target).square().sum())
    assert best > float((source @ procrustes(source, target) - target).square().sum()) + 1e-3
    for seed in range(50):
        A = normal(3, 3, seed=seed)
        for size in (1e-3, 1.0):
            other = R @ torch.linalg.matrix_exp(size * (A - A.T))
            assert float((source @ other - target).square().sum()) >= best - 1e-9


def test_one_image_and_too_few_of_them_still_give_an_orthogonal_matrix() -> None:
    source, target = normal(1, 4), normal(1, 4, seed=1)
    R = procrustes(source, target)
    torch.testing.assert_close(R @ R.T, torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close((source @ R) / source.norm(), target / target.norm())


def units(*shape: int, seed: int = 0) -> Tensor:
    return torch.nn.functional.normalize(normal(*shape, seed=seed), dim=-1)


@settings(max_examples=15, deadline=None)
@given(
    M=st.integers(1, 4), N=st.integers(1, 4), R=st.integers(1, 5), sharpness=st.sampled_from([0.5, 30.0, 1e4])
)
def test_it_is_that_of_a_plain_loop(M: int, N: int, R: int, sharpness: float) -> None:
    members, references = units(M, N, 3), units(M, R, 3, seed=1)
    actual = neighbour_disagreement(members, references, sharpness)
    for n in range(N):
        shares = []
        for m in range(M):
            cosines = [float(members[m, n] @ references[m, r]) for r in range(R)]
            weights = [math.exp(sharpness * (cosine - max(cosines))) for cosine in cosines]
            shares.append([weight / sum(weights) for weight in weights])
        average = [sum(column) / M for column in zip(*shares, strict=True)]
        divergence = (
            sum(p * math.log(p / average[r]) for share in shares for r, p in enumerate(share) if p) / M
        )
        assert float(actual[n]) == pytest.approx(divergence, abs=1e-12)
    assert bool((actual <= math.log(M) + 1e-12).all())


def test_rotations_do_not_matter() -> None:
    members, references = units(3, 300, 4), units(3, 20, 4, seed=1)
    turns = torch.linalg.qr(
        torch.randn(3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ).Q
    expected = neighbour_disagreement(members, references)
    torch.testing.assert_close(neighbour_disagreement(members @ turns, references @ turns), expected)
    assert float(expected.min()) > 0


def test_identical_members_agree_and_opposite_choices_are_log_m() -> None:
    z = units(1, 5, 3)
    assert float(neighbour_disagreement(z.expand(4, -1, -1), units(1, 9, 3).expand(4, -1, -1)).max()) < 1e-12
    axes = torch.eye(3)
    members = axes[:, None]  # each sees the image at its own reference
    actual = neighbour_disagreement(members, axes.expand(3, 3, 3), 1e3)
    torch.testing.assert_close(actual, torch.tensor([math.log(3)], dtype=torch.float64))


def test_a_draw_of_images_has_no_preference_and_no_repetition() -> None:
    counts = torch.zeros(40)
    for seed in range(400):
        drawn = RandomImages(10, seed)
        for batch in torch.arange(40.0).reshape(1, 40, 1).split(7, dim=1):
            drawn.add(batch)
        chosen = drawn.members.flatten().long()
        assert len(chosen.unique()) == 10
        counts[chosen] += 1
    # Each is drawn with probability 1/4: 5 standard errors of the count over 400 draws.
    assert float((counts - 100).abs().max()) < 5 * math.sqrt(400 * 0.25 * 0.75)


def test_fewer_images_than_wanted_are_all_kept() -> None:
    drawn = RandomImages(10, 0)
    drawn.add(units(2, 4, 3))
    assert drawn.members.shape == (2, 4, 3)
