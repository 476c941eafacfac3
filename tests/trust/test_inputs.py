"""Every input against loops that read like its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_metric.core.labelled_gallery import Head, LabelledGallery
from laplacian_metric.core.second_moment import SecondMoment
from laplacian_metric.core.vector_search import Vectors
from laplacian_metric.trust.calibration import match_inputs, novelty_inputs
from tests.trust import reference


def drawn(seed: int, items: int, queries: int, classes: int, width: int = 5, dim: int = 3):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, items)
    centers = generator.standard_normal((classes, width)) + 1
    hs = centers[labels] + 0.5 * generator.standard_normal((items, width))
    h = centers[generator.integers(0, classes, queries)] + 0.5 * generator.standard_normal((queries, width))
    return hs, labels, h, Head(generator.standard_normal((dim, width)), generator.standard_normal(dim))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    items=st.integers(2, 70),
    classes=st.integers(1, 4),
    with_head=st.booleans(),
    of_items=st.booleans(),
)
def test_match_inputs_are_those_of_loops(
    seed: int, items: int, classes: int, with_head: bool, of_items: bool
) -> None:
    # Of fewer than 13 items, leaving one out changes how many neighbours an item has.
    items = max(items, 13) if of_items else items
    hs, labels, h, head = drawn(seed, items, 4, classes)
    gallery = LabelledGallery.of(hs, labels, head if with_head else None)
    own = np.arange(min(4, items)) if of_items else None
    h = hs[own] if own is not None else h
    features = Vectors.of("h", h)
    embeddings = head.embed(h) if with_head else features
    around = gallery.surroundings(features, embeddings, own=own)
    zs, z = gallery.embeddings.rows, embeddings.rows
    expected = [
        reference.match_inputs(h[i], z[i], hs, zs, labels.tolist(), None if own is None else int(own[i]))
        for i in range(len(h))
    ]
    np.testing.assert_allclose(match_inputs(around), expected, rtol=1e-6, atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6), items=st.integers(13, 40), of_items=st.booleans(), with_moment=st.booleans()
)
def test_novelty_inputs_are_those_of_loops(seed: int, items: int, of_items: bool, with_moment: bool) -> None:
    hs, labels, h, _ = drawn(seed, items, 3, 2)
    gallery = LabelledGallery.of(hs, labels)
    own = np.arange(3) if of_items else None
    h = hs[:3] if of_items else h
    features = Vectors.of("h", h)
    moment = SecondMoment.of(hs, rank=3) if with_moment else None
    inputs = novelty_inputs(gallery.surroundings(features, features, own=own).h, features, moment)
    expected = [
        reference.novelty_inputs(
            h[i], hs, None if moment is None else len(moment.moments), None if own is None else i
        )
        for i in range(len(h))
    ]
    np.testing.assert_allclose(inputs, expected, rtol=1e-6, atol=1e-6)


def test_unlabelled_inputs_are_the_first_four() -> None:
    hs, labels, h, _ = drawn(0, 60, 5, 3)
    features = Vectors.of("h", h)
    labelled = match_inputs(LabelledGallery.of(hs, labels).surroundings(features, features))
    bare = match_inputs(LabelledGallery.of(hs).surroundings(features, features))
    assert bare.shape == (5, 4)
    np.testing.assert_allclose(bare, labelled[:, :4])


def test_the_second_moment_of_many_dimensions_is_nearly_the_exact_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((400, 60)) * np.geomspace(3, 0.05, 60)
    exact = SecondMoment.of(rows, rank=20)
    monkeypatch.setattr("laplacian_metric.core.second_moment.MOST_EXACT", 10)
    iterated = SecondMoment.of(rows, rank=20)
    np.testing.assert_allclose(iterated.moments, exact.moments, rtol=1e-4)
    assert iterated.rest == pytest.approx(exact.rest, rel=1e-3)
    assert iterated.main == exact.main
    for ours, theirs in zip(iterated.distances(rows), exact.distances(rows), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0.02, atol=1e-4)
