"""The parts of the recipe against loops, dense algebra and other libraries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from laplacian_metric.core.array_gallery import ArrayGallery
from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.trust import GaussianView
from laplacian_metric.trust.fitting import Logistic, fit_sigmoid, folds_of, stratified
from laplacian_metric.trust.inputs import LOF, Space, class_inputs, gap_inputs, novelty_inputs
from laplacian_metric.trust.novelty import Novelty, Tail
from tests.trust.conftest import Clusters

SEEDS = st.integers(0, 10_000)


@given(SEEDS, st.integers(30, 200), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_the_logistic_is_the_minimum(seed: int, num: int, width: int) -> None:
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((num, width)) * generator.uniform(0.1, 50, width)
    target = generator.random(num) < expit(inputs[:, 0] / inputs[:, 0].std())
    signs = {f"x{place}": int(sign) for place, sign in enumerate(generator.integers(-1, 2, width))}
    match = Logistic.fit(inputs, target, signs)
    x = match.standardised(inputs)
    sign = np.where(target, 1, -1)

    def loss(parameters: NDArray[np.float64]) -> float:
        margin = sign * (x @ parameters[:-1] + parameters[-1])
        return float(np.logaddexp(0, -margin).sum() + parameters[:-1] @ parameters[:-1] / 2)

    bounds = [(0 if s > 0 else None, 0 if s < 0 else None) for s in signs.values()] + [(None, None)]
    reference = minimize(loss, np.zeros(width + 1), bounds=bounds, method="L-BFGS-B", options={"ftol": 1e-14})
    assert loss(np.append(match.weights, match.intercept)) <= reference.fun + 1e-6
    assert all(weight * s >= 0 for weight, s in zip(match.weights, signs.values(), strict=True))


def test_a_separable_and_a_constant_input_are_fitted() -> None:
    x = np.column_stack([np.arange(40.0), np.ones(40)])
    match = Logistic.fit(x, np.arange(40) >= 20, {"rising": 1, "constant": 1})
    assert np.isfinite(match.logit(x)).all()
    assert match.weights[1] == 0


@given(SEEDS, st.floats(0.001, 5))
@settings(max_examples=20, deadline=None)
def test_the_last_sigmoid_is_the_maximum(seed: int, slope: float) -> None:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(100) * 3
    right = generator.random(100) < expit(slope * x)
    a, b = fit_sigmoid(x, right)
    n, m = right.sum(), (~right).sum()
    target = np.where(right, (n + 1) / (n + 2), 1 / (m + 2))

    def loss(parameters: NDArray[np.float64]) -> float:
        logits = parameters[0] + parameters[1] * x
        return float((np.logaddexp(0, logits) - target * logits).sum())

    reference = minimize(loss, [0, 1], bounds=[(None, None), (0.001, 20)], method="L-BFGS-B")
    assert loss(np.array([a, b])) <= reference.fun + 1e-6


def test_influence_is_that_of_removing_a_row() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((300, 2))
    target = generator.random(300) < expit(x[:, 0])
    signs = {"a": 0, "b": 0}
    match = Logistic.fit(x, target, signs)
    influence = match.influence(x, target)
    bounds = match.low, match.high
    for row in (0, 7, int(influence.argmax())):
        others = np.arange(300) != row
        without = Logistic.fit(
            match.standardised(x)[others], target[others], signs, (np.full(2, -9), np.full(2, 9))
        )
        moved = np.abs(without.weights / without.scale - match.weights).max()
        assert influence[row] == pytest.approx(moved, rel=0.2, abs=2e-3)
    assert bounds[0].shape == (2,)


@given(SEEDS, st.integers(2, 60), st.integers(2, 6))
@settings(max_examples=20, deadline=None)
def test_folds_share_classes_evenly(seed: int, num: int, number: int) -> None:
    classes = np.random.default_rng(seed).integers(0, 4, num)
    fold = stratified(classes, number)
    for label in np.unique(classes):
        counts = np.bincount(fold[classes == label], minlength=number)
        assert counts.max() - counts.min() <= 1
    assert folds_of(classes > 1).max() < 5


def view_by_loops(units: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Return r, distances to the class means, and the total Mahalanobis distance, by dense algebra."""
    num, width = units.shape
    names = list(dict.fromkeys(labels.tolist()))
    r = max(1, min(256, width, num // 4))
    basis = np.linalg.svd(units, full_matrices=False)[2][:r].T
    p = units @ basis
    means = np.stack([p[labels == name].mean(axis=0) for name in names])
    within = sum((p[labels == n] - m).T @ (p[labels == n] - m) for n, m in zip(names, means, strict=True))
    within = within / max(1, num - len(names))
    total = np.cov(p.T, bias=True).reshape(r, r)
    if np.trace(within) <= 1e-12:
        within = total
    shrink = lambda s: 0.95 * s + (0.05 * np.trace(s) / r + 1e-12) * np.eye(r)  # noqa: E731
    inverse, inverse_total = np.linalg.inv(shrink(within)), np.linalg.inv(shrink(total))
    apart = p[:, None] - means[None]
    centred = p - p.mean(axis=0)
    return {
        "D2": np.maximum(np.einsum("ncr,rs,ncs->nc", apart, inverse, apart), 1e-9),
        "total": np.einsum("nr,rs,ns->n", centred, inverse_total, centred),
        "residual": 1 - (p[:, : max(1, min(r, width // 2))] ** 2).sum(axis=1),
    }


@given(SEEDS, st.integers(8, 80), st.integers(1, 12), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_the_view_is_that_of_dense_algebra(seed: int, num: int, width: int, classes: int) -> None:
    generator = np.random.default_rng(seed)
    labels = np.arange(num) % classes
    h = generator.standard_normal((num, width)) + 2 * np.eye(max(width, classes))[labels][:, :width]
    view = GaussianView.of(h, labels)
    units = h / np.linalg.norm(h, axis=1, keepdims=True)
    expected = view_by_loops(units, labels)
    projected = view.project(units)
    np.testing.assert_allclose(view.distances(projected), expected["D2"], rtol=1e-5, atol=1e-6)
    outside = list(view.outside(projected).values())
    residual = np.log(np.clip(expected["residual"], 0, 1) + 1e-6)
    np.testing.assert_allclose(outside[0], residual, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(outside[1], np.log(expected["D2"].min(axis=1)), rtol=1e-5, atol=1e-5)
    assert len(outside) == (3 if classes > 1 else 2)
    if classes > 1:
        relative = expected["D2"].min(axis=1) - expected["total"]
        np.testing.assert_allclose(outside[2], relative, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(view.posterior(projected).sum(axis=1), 1)


def test_many_features_are_projected_by_iterations() -> None:
    generator = np.random.default_rng(0)
    spectrum = 0.9 ** np.arange(600)
    h = generator.standard_normal((1500, 600)) * spectrum
    view = GaussianView.of(h, np.arange(1500) % 5)
    units = h / np.linalg.norm(h, axis=1, keepdims=True)
    exact = np.linalg.svd(units, full_matrices=False)[2][:40].T
    assert np.linalg.norm(view.basis[:, :60].T @ exact, axis=0) == pytest.approx(np.ones(40), abs=1e-3)
    assert view.basis.shape == (600, 256)
    np.testing.assert_array_equal(GaussianView.of(h, np.arange(1500) % 5).basis, view.basis)


def test_one_item_a_class_takes_the_total_covariance() -> None:
    h = np.random.default_rng(0).standard_normal((40, 6))
    view = GaussianView.of(h, np.arange(40))
    assert np.isfinite(view.whitening).all()
    assert (
        view.posterior_at(view.project(h[:2] / np.linalg.norm(h[:2], axis=1)[:, None]), np.array([0, 99]))[1]
        == 0.001
    )


def test_a_view_of_a_gallery_is_that_of_its_sample(some: Clusters) -> None:
    whole = GaussianView.of(*some.gallery)
    of_gallery = GaussianView.of(ArrayGallery(*some.gallery))
    np.testing.assert_allclose(of_gallery.means, whole.means)
    sampled = GaussianView.of(ArrayGallery(*some.gallery), sample=100)
    assert sampled.items == 100


def space_of(seed: int, num: int, k: int, classes: int, dim: int = 3) -> tuple[Space, NDArray[np.float64]]:
    generator = np.random.default_rng(seed)
    vectors = generator.standard_normal((num, k, dim))
    queries = generator.standard_normal((num, dim))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    neighbours = Neighbours.from_vectors(queries, np.tile(np.arange(k), (num, 1)), vectors)
    return Space.of(neighbours, generator.integers(0, classes, (num, k))), queries


@given(SEEDS, st.integers(1, 60), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_shares_margins_and_scales_are_those_of_loops(seed: int, k: int, classes: int) -> None:
    space, _ = space_of(seed, 3, k, classes)
    assert space.codes is not None
    assert space.units is not None
    answered = space.codes[:, 0]
    share, margin, factor = space.share(answered), space.margin(answered), space.outlier_factor()
    for q in range(3):
        d = space.distances[q]
        tenth = d[min(10, k) - 1]
        weights = [np.exp(-(value - d[0]) / max(tenth - d[0], 1e-12)) for value in d]
        of_class = [w for w, code in zip(weights, space.codes[q], strict=True) if code == answered[q]]
        assert share[q] == pytest.approx(sum(of_class) / sum(weights))
        other = next((v for v, c in zip(d, space.codes[q], strict=True) if c != answered[q]), d[-1])
        same = next((v for v, c in zip(d, space.codes[q], strict=True) if c == answered[q]), d[-1])
        assert margin[q] == pytest.approx(np.log(other + 1e-7) - np.log(same + 1e-7))
        if k < 3:
            assert factor is None
            continue
        scales = []
        for i in range(min(10, k)):
            others = [1 - space.units[q, i] @ space.units[q, j] for j in range(k) if j != i]
            scales.append(sorted(others)[min(10, k - 1) - 1])
        assert factor is not None
        assert factor[q] == pytest.approx(np.log(tenth + 1e-7) - np.mean(np.log(np.array(scales) + 1e-7)))


@given(SEEDS, st.integers(1, 60))
@settings(max_examples=20, deadline=None)
def test_gaps_are_differences_of_distances(seed: int, k: int) -> None:
    space, _ = space_of(seed, 4, k, 1)
    values = gap_inputs(space)
    for j in (2, 5, 10, 50):
        expected = space.distances[:, min(j, k) - 1] - space.distances[:, 0]
        np.testing.assert_allclose(values[f"gap to neighbour {j}"], expected)


def test_whitened_neighbours_are_ranked_by_whitened_cosines(some: Clusters) -> None:
    h, labels = some.gallery
    view = GaussianView.of(h, labels)
    queries = some.test[0][:5] / np.linalg.norm(some.test[0][:5], axis=1, keepdims=True)
    neighbours = ArrayGallery(h, labels).search(queries, 20)
    space = Space.of(neighbours, np.asarray(neighbours.labels))
    whitened = space.whitened(view, queries)
    assert whitened is not None
    for q in range(5):
        w = view.whitened(queries[q : q + 1])[0]
        items = h[neighbours.ids[q]] / np.linalg.norm(h[neighbours.ids[q]], axis=1, keepdims=True)
        distances = 1 - view.whitened(items) @ w
        np.testing.assert_allclose(whitened.distances[q], np.sort(distances), atol=1e-12)
    names = class_inputs(space, space, np.asarray(neighbours.labels)[:, 0], view, queries)
    assert len(names) == 7
    assert LOF in novelty_inputs(space, view, queries)


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=60), st.floats(-100, 100))
@settings(max_examples=50, deadline=None)
def test_a_tail_is_the_share_beyond(values: list[float], x: float) -> None:
    reference = np.array(values)
    tail = Tail.fit(reference)
    limit = np.quantile(reference, 0.95)
    if x <= limit:
        expected = -np.log(max(np.mean(reference >= x - 1e-9), 0.05))
    else:
        above = reference[reference > limit] - limit
        expected = -np.log(0.05) + (x - limit) / max(above.mean() if len(above) else 0, 1e-6)
    assert tail(np.array([x]))[0] == pytest.approx(expected)


def test_known_and_its_probability() -> None:
    reference = {"a": np.random.default_rng(0).standard_normal(500)}
    novelty = Novelty.fit(reference, 0.05)
    total = novelty.parts(reference).sum(axis=1)
    assert np.mean(novelty.known(total) < 1) == pytest.approx(0.05, abs=0.01)
    assert (novelty.log_known(total, None) == 0).all()
    t = novelty.total(total)
    for share in (0.02, 0.3):
        known, ood = np.exp(-t), np.exp(-t / 3) / 3  # densities of the tail with means 1 and 3
        expected = (1 - share) * known / ((1 - share) * known + share * ood)
        np.testing.assert_allclose(np.exp(novelty.log_known(total, share)), expected, rtol=1e-9)


def test_every_order_of_neighbours_gives_the_same_space() -> None:
    distances = np.array([[0.1, 0.2, 0.4]])
    for order in itertools.permutations(range(3)):
        rows = list(order)
        neighbours = Neighbours(np.array([[5, 6, 7]])[:, rows], distances[:, rows])
        space = Space.of(neighbours, np.array([[0, 1, 2]])[:, rows])
        np.testing.assert_array_equal(space.distances, distances)
        assert space.codes is not None
        assert space.codes.tolist() == [[0, 1, 2]]
        assert space.first[0] == distances[0, rows[0]]
