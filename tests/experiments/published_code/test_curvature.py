"""What is wrong with the published curvature, each beside ours and beside autograd or a closed form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from experiments.published import PublishedContrastiveLoss
from experiments.published.triplets import random_triplets
from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal
from hessians.checks import CurvatureWarning
from tests.experiments.published_code.reference import (
    LastLayer,
    every_triplet,
    float64,
    generator,
    half_square,
    normal,
    pair_hessian,
)

close = torch.testing.assert_close


def flipped(margin: float = 0.7) -> PublishedContrastiveLoss:
    """Nothing but the sign."""
    return PublishedContrastiveLoss(margin, curve_inactive=False, unsquared=False)


def diagonal_of(
    layer: LastLayer, loss: ContrastiveLoss, approximation: str, pairs: Pairs | None = None
) -> Tensor:
    chosen_pairs = Pairs.from_labels(layer.labels) if pairs is None else pairs
    w, b = last_layer_ggn_diagonal(
        layer.features, layer.weight, layer.bias, chosen_pairs, loss, approximation
    )
    return torch.cat([w, b[:, None]], dim=1)


def error(computed: Tensor, right: Tensor) -> float:
    return float((computed - right).norm() / right.norm())


# --- the sign of the Arccos cross term ---


def test_cross_sign_has_the_wrong_sign_by_autograd() -> None:
    both = normal(2, 4)
    z, n = both / both.norm(dim=1, keepdim=True), both.norm(dim=1)
    right = torch.autograd.functional.hessian(half_square, both)[0, :, 1]
    eye, s = torch.eye(4, dtype=float64), z[0] @ z[1]
    outer = torch.outer
    wrong = (eye - outer(z[0], z[0]) - outer(z[1], z[1]) + s * outer(z[0], z[1])) / (n[0] * n[1])
    close(wrong, -right)
    close(ContrastiveLoss().pair_blocks(both[:1], both[1:], positive=True).cross[0], right)
    close(PublishedContrastiveLoss().pair_blocks(both[:1], both[1:], positive=True).cross[0], wrong)


def test_cross_sign_gives_two_equal_images_a_curvature_that_they_do_not_have() -> None:
    """Whatever the weights, the two embeddings move together and the loss stays 0; published is twice "fixed"."""
    layer = LastLayer.random(1, 5, 3, classes=1)
    twice = LastLayer(layer.features.expand(2, -1), layer.weight, layer.bias, torch.tensor([0, 0]))
    with pytest.warns(CurvatureWarning, match="no negative pair"):
        fixed = diagonal_of(twice, ContrastiveLoss(), "fixed")
    close(diagonal_of(twice, ContrastiveLoss(), "positive"), torch.zeros_like(fixed), rtol=0, atol=1e-12)
    close(diagonal_of(twice, flipped(), "positive"), 2 * fixed)


@pytest.mark.parametrize("approximation", ["full", "positive"])
def test_cross_sign_is_wrong_by_more_than_what_is_right(approximation: str) -> None:
    """In 64 dimensions, for the weights: 1.2 to 1.6 where features are noise, above 7 where they form classes."""

    def errors(spread: float | None) -> list[float]:
        layers = [LastLayer.random(64, 100, 64, classes=8, spread=spread, seed=10 * k) for k in range(4)]
        both = [
            [diagonal_of(it, loss, approximation)[:, :-1] for loss in (flipped(), ContrastiveLoss())]
            for it in layers
        ]
        return [error(wrong, right) for wrong, right in both]

    noise, classes = errors(None), errors(0.7)
    assert all(1.2 < ratio < 1.6 for ratio in noise)
    assert all(ratio > 7 for ratio in classes)


# --- value and curvature ---


def test_two_functions_the_trained_distance_has_another_hessian_than_the_curved_square() -> None:
    """|a - b| is flat along a - b, and 1/d steep across it; |a - b|^2/2 is 1 everywhere, whatever d is."""
    direction = normal(3)
    for distance in (1.0, 0.1, 0.01):
        both = torch.stack([torch.zeros(3, dtype=float64), distance * direction / direction.norm()])
        trained = torch.autograd.functional.hessian(lambda v: (v[0] - v[1]).norm(), both)[0, :, 0]
        close(
            torch.linalg.eigvalsh(trained),
            torch.tensor([0, 1, 1], dtype=float64) / distance,
            rtol=1e-9,
            atol=1e-9,
        )
        close(pair_hessian(both, "no norm")[0, :, 0], torch.eye(3, dtype=float64))


def test_two_functions_a_minimum_of_the_trained_one_is_none_of_the_curved_one() -> None:
    """A point with positives at 0, 0 and 3 on a line: the median against the mean, 0 against 1."""
    positives = torch.tensor([0.0, 0.0, 3.0], dtype=float64)
    at = torch.linspace(-1, 4, 5001, dtype=float64)[:, None]
    assert abs(float(at[(at - positives).abs().mean(1).argmin()])) < 1e-9
    assert abs(float(at[(at - positives).square().mean(1).argmin()]) - 1) < 1e-9
    layer = LastLayer.random(10, 4, 3, classes=2)
    pairs = Pairs.from_labels(layer.labels)
    trained = PublishedContrastiveLoss(negatives="all").gradient(layer.u, pairs)
    curved = ContrastiveLoss().gradient(layer.u, pairs)
    assert error(trained, curved) > 0.3


# --- negatives beyond the margin ---


def test_inactive_negatives_have_no_curvature_by_autograd_and_the_published_one_is_full() -> None:
    both = torch.tensor([[1.0, 0.2, 0.0], [0.0, 1.0, 0.3]], dtype=float64)
    assert float((2 * half_square(both)).sqrt()) > 0.7

    def hinge(v: Tensor) -> Tensor:
        return (0.7**2 / 2 - half_square(v)).clamp(min=0)

    assert not torch.autograd.functional.hessian(hinge, both).any()
    first, second = both[:1], both[1:]
    assert not any(block.any() for block in ContrastiveLoss(0.7).pair_blocks(first, second, positive=False))
    kept = PublishedContrastiveLoss(0.7).pair_blocks(first, second, positive=False)
    close(kept.first[0], -pair_hessian(both, "arccos")[0, :, 0])


def test_inactive_negatives_cancel_all_of_the_euclidean_fixed_curvature() -> None:
    """Classes of equal size, however far apart: the node weights are 1 - 1 = 0 with every negative kept."""
    layer = LastLayer.random(40, 20, 8, classes=4, spread=0.3)
    right = diagonal_of(layer, ContrastiveLoss(0.7, "euclidean"), "fixed")
    assert float(right.min()) > 0
    with pytest.warns(CurvatureWarning, match="is 0 for every image"):
        kept = diagonal_of(layer, PublishedContrastiveLoss(0.7, "euclidean"), "fixed")
    assert float(kept.abs().max()) < 1e-12 * float(right.max())


def test_inactive_negatives_as_the_miner_chooses_them() -> None:
    """A triplet that violates its margin, d_an < d_ap + m, may have a negative beyond that of the pair, d_an > m."""
    layer = LastLayer.random(30, 20, 3, classes=3, spread=0.8)
    z = layer.u / layer.u.norm(dim=1, keepdim=True)
    anchor, positive, negative = every_triplet(layer.labels)
    to_positive, to_negative = (z[anchor] - z[positive]).norm(dim=1), (z[anchor] - z[negative]).norm(dim=1)
    mined = to_negative - to_positive <= 0.7
    beyond = float((to_negative[mined] > 0.7).double().mean())
    assert beyond > 0.3


# --- pairs ---


def test_no_pair_weights_small_classes_weigh_more_among_triplets() -> None:
    """Classes of 2 and 8: a positive pair of the small one is in 4 times as many triplets (Eq. 23: 1/|P|)."""
    labels = torch.tensor([0] * 2 + [1] * 8)
    pairs = Pairs.from_indices(every_triplet(labels), 10)
    times = pairs.block(0, 10)[0]
    assert (int(times[0, 1]), int(times[2, 3])) == (2 * 8, 2 * 2)
    ours = Pairs.from_labels(labels).block(0, 10)[0]
    assert int(ours[0, 1]) == int(ours[2, 3]) == 1
    layer = LastLayer.random(10, 4, 3, classes=1)
    layer = LastLayer(layer.features, layer.weight, layer.bias, labels)
    right = diagonal_of(layer, ContrastiveLoss(), "fixed")
    assert error(diagonal_of(layer, ContrastiveLoss(), "fixed", pairs), right) > 0.2


def test_no_negative_weight_the_miners_bias_is_not_corrected() -> None:
    """Mined negatives are all active: their average is |Q|/|Q_in| times that of the population (Eq. 10, 30)."""
    layer = LastLayer.random(24, 10, 3, classes=3, spread=1.2)
    z = layer.u / layer.u.norm(dim=1, keepdim=True)
    anchor, positive, negative = every_triplet(layer.labels)
    active = (z[anchor] - z[negative]).norm(dim=1) < 0.7
    mined = Pairs.from_indices((anchor, positive, anchor[active], negative[active]), 24)
    share = float(active.double().mean())
    assert 0.05 < share < 0.2
    loss = ContrastiveLoss(0.7, negative_weight=1.0)
    biased, right = diagonal_of(layer, loss, "fixed", mined), diagonal_of(layer, loss, "fixed")
    close(biased, right / share)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("approximation", "errors"),
    [("fixed", {10: 0.39, 30: 0.23, 5000: 0.018}), ("full", {10: 1.49, 30: 0.88, 5000: 0.07})],
)
def test_random_triplets_are_a_noisy_estimate_of_what_all_pairs_are_exactly(
    approximation: str, errors: dict[int, float]
) -> None:
    """64 images of 10 classes, 16 dimensions: mean relative error of the diagonal over 30 draws."""
    layer = LastLayer.random(64, 64, 16, classes=10, spread=1.0)
    right = diagonal_of(
        layer, ContrastiveLoss(), approximation, Pairs.from_indices(every_triplet(layer.labels), 64)
    )
    for triplets, expected in errors.items():
        diagonals = [
            error(
                diagonal_of(
                    layer,
                    ContrastiveLoss(),
                    approximation,
                    Pairs.from_indices(random_triplets(layer.labels, triplets, generator(seed)), 64),
                ),
                right,
            )
            for seed in range(30)
        ]
        assert sum(diagonals) / 30 == pytest.approx(expected, rel=0.03)
