"""The loss with the published errors: value, curvature and each switch, against plain loops, autograd and the library
that the published code trains with."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.published import PublishedContrastiveLoss
from hessians import ContrastiveLoss, Pairs, ggn_diagonal, last_layer_ggn_diagonal
from laplacian_metric.laplace.online import OnlineLAM
from laplacian_metric.laplace.posthoc import LAM
from tests.experiments.published_code.reference import (
    LastLayer,
    diagonal,
    encoder_of,
    every_triplet,
    float64,
    normal,
    output_hessian,
    unit,
)

close = torch.testing.assert_close
APPROXIMATIONS = ["full", "fixed", "positive", "clipped"]
DISTANCES = ["arccos", "euclidean", "no norm"]
OFF: dict[str, Any] = {"flip_cross": False, "curve_inactive": False, "unsquared": False, "negatives": "all"}


def published(distance: str, margin: float = 0.9, **options: Any) -> PublishedContrastiveLoss:
    if distance == "no norm":
        return PublishedContrastiveLoss(margin, "euclidean", normalize=False, **options)
    return PublishedContrastiveLoss(margin, distance, **options)


def corrected(distance: str, margin: float = 0.9) -> ContrastiveLoss:
    return ContrastiveLoss(
        margin, "arccos" if distance == "arccos" else "euclidean", normalize=distance != "no norm"
    )


def diagonal_of(
    layer: LastLayer, loss: ContrastiveLoss, approximation: str, pairs: Pairs | None = None
) -> Tensor:
    pairs = Pairs.from_labels(layer.labels) if pairs is None else pairs
    w, b = last_layer_ggn_diagonal(layer.features, layer.weight, layer.bias, pairs, loss, approximation)
    return torch.cat([w, b[:, None]], dim=1)


# --- the curvature ---


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_the_last_layer_is_the_plain_loop(distance: str, approximation: str) -> None:
    layer = LastLayer.random(10, 4, 3, classes=3, spread=0.6)
    pairs = Pairs.from_labels(layer.labels)
    first, second = torch.tensor(list(itertools.combinations(range(10), 2))).T
    same = layer.labels[first] == layer.labels[second]
    listed = Pairs.from_indices((first[same], second[same], first[~same], second[~same]), 10)
    for flip, inactive, weight in (
        (True, True, 0.5),
        (True, False, 0.3),
        (False, True, 0.5),
        (False, False, 0.8),
    ):
        loss = published(distance, flip_cross=flip, curve_inactive=inactive, negative_weight=weight)
        matrix = output_hessian(
            layer.u, layer.labels, distance, approximation,
            margin=0.9, weight=weight, flip_cross=flip, curve_inactive=inactive,
        )  # fmt: skip
        for same_pairs in (pairs, listed):
            close(
                loss.output_hessian(layer.u, same_pairs, approximation).dense(), matrix, rtol=1e-9, atol=1e-10
            )
            close(
                diagonal_of(layer, loss, approximation, same_pairs),
                diagonal(matrix, layer.inputs),
                rtol=1e-9,
                atol=1e-10,
            )


@pytest.mark.parametrize("distance", DISTANCES)
def test_with_every_switch_off_it_is_the_corrected_loss(distance: str) -> None:
    layer, pairs = LastLayer.random(12, 4, 3, classes=3), Pairs.from_labels(torch.arange(12) % 3)
    loss, right = published(distance, **OFF), corrected(distance)
    assert float(loss(layer.u, pairs)) == float(right(layer.u, pairs))
    close(loss.gradient(layer.u, pairs), right.gradient(layer.u, pairs), rtol=0, atol=0)
    for approximation in APPROXIMATIONS:
        close(
            diagonal_of(layer, loss, approximation), diagonal_of(layer, right, approximation), rtol=0, atol=0
        )


@pytest.mark.parametrize("approximation", ["full", "positive"])
def test_only_the_cross_term_of_arccos_is_wrong_and_by_twice_itself(approximation: str) -> None:
    """right = node + cross, published = node - cross, for node what "fixed" keeps; here of the positive pairs too."""
    layer = LastLayer.random(14, 6, 4, classes=3, spread=0.7)
    flipped = published("arccos", **{**OFF, "flip_cross": True})
    right = diagonal_of(layer, corrected("arccos"), approximation)
    positives = output_hessian(
        layer.u, layer.labels, "arccos", approximation, margin=0.9, flip_cross=False, curve_inactive=False
    )
    images = torch.eye(14, dtype=float64)[:, None, :, None]
    cross = diagonal(positives * (1 - images), layer.inputs)
    close(diagonal_of(layer, flipped, approximation) - right, -2 * cross, rtol=1e-9, atol=1e-11)
    for distance, other in (("euclidean", approximation), ("no norm", approximation), ("arccos", "fixed")):
        loss = published(distance, **{**OFF, "flip_cross": True})
        close(diagonal_of(layer, loss, other), diagonal_of(layer, corrected(distance), other), rtol=0, atol=0)


@pytest.mark.parametrize("approximation", ["full", "positive"])
def test_whole_classes_and_many_images_take_the_same_sign(approximation: str) -> None:
    """Moments over classes and rows on demand are other algorithms than a dense graph's: each against listed pairs."""
    layer = LastLayer.random(600 if approximation == "positive" else 60, 5, 3, classes=3, spread=0.5)
    first, second = torch.triu_indices(len(layer.labels), len(layer.labels), 1)
    same = layer.labels[first] == layer.labels[second]
    listed = Pairs.from_indices((first[same], second[same], first[~same], second[~same]), len(layer.labels))
    loss = published("arccos")
    close(
        diagonal_of(layer, loss, approximation),
        diagonal_of(layer, loss, approximation, listed),
        rtol=1e-8,
        atol=1e-9,
    )


def test_more_images_than_a_dense_graph_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = LastLayer.random(40, 5, 3, classes=3, spread=0.5)
    loss = published("arccos")
    dense = diagonal_of(layer, loss, "full")
    for module in ("hessians.contrastive", "hessians.last_layer"):
        monkeypatch.setattr(f"{module}.DENSE_IMAGES", 10)
    close(diagonal_of(layer, loss, "full"), dense, rtol=1e-9, atol=1e-10)


# --- the value ---


@pytest.mark.parametrize("negatives", ["all", "active"])
def test_the_value_is_the_mean_distance_and_the_mean_hinge_of_the_distance(negatives: str) -> None:
    u, labels = normal(10, 3), torch.arange(10) % 3
    z = unit(u)
    attraction, hinges = [], []
    for i, j in itertools.combinations(range(10), 2):
        distance = (z[i] - z[j]).norm()
        (attraction if labels[i] == labels[j] else hinges).append(
            distance if labels[i] == labels[j] else (1.1 - distance).clamp(min=0)
        )
    hinge = torch.stack(hinges)
    kept = hinge if negatives == "all" else hinge[hinge > 0]
    assert 0 < int((hinge > 0).sum()) < len(hinge)
    value = PublishedContrastiveLoss(1.1, negatives=negatives)(u, Pairs.from_labels(labels))
    close(value, torch.stack(attraction).mean() + kept.mean())


def test_it_trains_as_the_library_of_the_published_code_does() -> None:
    """pytorch-metric-learning's contrastive loss on triplets, repeats and all, value and gradient."""
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    u, labels = normal(11, 4).requires_grad_(), torch.arange(11) % 3
    triplets = every_triplet(labels)
    ours = PublishedContrastiveLoss(0.7)(u, Pairs.from_indices(triplets, 11))
    theirs = losses.ContrastiveLoss(pos_margin=0, neg_margin=0.7)(u, torch.zeros(11), triplets)
    close(ours, theirs)
    close(torch.autograd.grad(ours, u)[0], torch.autograd.grad(theirs, u)[0], rtol=1e-9, atol=1e-12)


def test_the_gradient_is_that_of_the_value_also_where_points_coincide() -> None:
    u = torch.cat([normal(6, 3), normal(6, 3)])  # every image twice
    pairs = Pairs.from_labels(torch.arange(12) % 2)
    loss = PublishedContrastiveLoss(1.1, negatives="all")
    gradient = loss.gradient(u, pairs)
    assert bool(gradient.isfinite().all())
    leaf = u.clone().requires_grad_()
    total = leaf.sum() * 0
    for positive, weight in zip((True, False), loss.type_weights(pairs), strict=True):
        for first, second, _ in pairs.listed(positive):
            total = total + weight * loss.pair_values(leaf[first], leaf[second], positive).sum()
    close(loss(u, pairs), total.detach())
    close(gradient, torch.autograd.grad(total, leaf)[0])


# --- where it is used ---


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_posteriors_take_it(distance: str, approximation: str) -> None:
    """LAM and OnlineLAM: precision = n_effective max(0, diag) + prior, with the diagonal of the plain loop."""
    layer = LastLayer.random(13, 4, 3, classes=3, spread=0.6)
    loss = published(distance)
    matrix = output_hessian(
        layer.u, layer.labels, distance, approximation, margin=0.9, flip_cross=True, curve_inactive=True
    )
    precision = 500 * diagonal(matrix, layer.inputs).clamp(min=0) + 2
    options: dict[str, Any] = {"n_effective": 500, "prior_precision": 2.0}
    lam = LAM(encoder_of(layer), loss, approximation, **options)
    lam.fit_features(layer.features, layer.labels, check_mode=False)
    close(1 / lam.posterior.marginal_variance(), precision, rtol=1e-8, atol=1e-8)
    encoder = encoder_of(layer)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.0)
    online = OnlineLAM(encoder, optimizer, loss, approximation=approximation, warmup=10, **options)
    value = online.step(layer.features, layer.labels)
    assert value == pytest.approx(float(loss(layer.u, Pairs.from_labels(layer.labels))))
    close(1 / online.posterior().posterior.marginal_variance(), precision, rtol=1e-8, atol=1e-8)


def test_whole_networks_and_other_structures_take_it() -> None:
    layer = LastLayer.random(13, 4, 3, classes=3, spread=0.6)
    loss, pairs = published("arccos"), Pairs.from_labels(layer.labels)
    matrix = output_hessian(
        layer.u, layer.labels, "arccos", "clipped", margin=0.9, flip_cross=True, curve_inactive=True
    )
    expected = diagonal(matrix, layer.inputs)
    diagonals = ggn_diagonal(encoder_of(layer).head, layer.features, pairs, loss, approximation="clipped")
    close(torch.cat([diagonals["weight"], diagonals["bias"][:, None]], dim=1), expected, rtol=1e-8, atol=1e-9)


def test_degenerate_batches_and_refusals() -> None:
    loss = PublishedContrastiveLoss()
    for labels in ([0], [0, 0], [0, 1], []):
        u = normal(len(labels), 3).requires_grad_()
        value = loss(u, Pairs.from_labels(labels))
        value.backward()
        assert bool(value.isfinite())
        assert bool(u.grad.isfinite().all())
    with pytest.raises(ValueError, match="margin is 0"):
        PublishedContrastiveLoss(margin=0)
