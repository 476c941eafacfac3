"""Items: what they take, what they refuse, and that nothing is lost on the way from an embedding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_metric import StochasticEmbedding
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.retrieval.items import Items, angles, check_alike
from tests.retrieval.clusters import SOURCE, clusters, nothing_but, unit


def embedding(count: int = 7, dim: int = 5, dtype: torch.dtype = torch.float64) -> StochasticEmbedding:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    variance = 0.1 * torch.rand(count, dim, generator=generator, dtype=torch.float64)
    return StochasticEmbedding.from_gaussians(Gaussians(mean, variance)).to(dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_embedding_becomes_items(dtype: torch.dtype) -> None:
    e = embedding(dtype=dtype)
    items = Items.of(e, source="a")
    assert (len(items), items.dim, items.source) == (7, 5, "a")
    for name, dtype_of in (("mean", np.float32), ("kappa", np.float32), ("variance", np.float32)):
        values = getattr(items, name)
        assert values.dtype == dtype_of
        np.testing.assert_allclose(values, getattr(e, name).numpy(), rtol=1e-6, atol=1e-7)
    assert items.uncertainty.dtype == np.float64
    np.testing.assert_array_equal(items.uncertainty, e.uncertainty.double().numpy())
    assert Items.of(e, source="a", variance=False).variance is None
    assert items.without_variance().variance is None


def test_without_gaussians_there_is_no_variance() -> None:
    samples = torch.nn.functional.normalize(
        torch.randn(20, 4, 3, generator=torch.Generator().manual_seed(0)), dim=2
    )
    items = Items.of(StochasticEmbedding.from_samples(samples), source="a")
    assert items.variance is None
    assert len(items) == 4


def test_rows_in_half_precision_are_given_their_length_back() -> None:
    e = embedding(50, 64)
    rough = SimpleNamespace(
        mean=e.mean.bfloat16().requires_grad_(), kappa=e.kappa.bfloat16(), uncertainty=e.uncertainty
    )
    items = Items.of(rough, source="a")
    np.testing.assert_allclose(np.linalg.norm(items.mean.astype(np.float64), axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(items.mean, e.mean.numpy(), atol=5e-3)


def test_concentrations_beyond_float32_are_points() -> None:
    stand_in = SimpleNamespace(
        mean=np.eye(2), kappa=np.array([1e300, 0.0]), uncertainty=np.array([1e-300, np.inf])
    )
    items = Items.of(stand_in, source="a")
    assert items.kappa.tolist() == [np.inf, 0]
    assert items.uncertainty.tolist() == [1e-300, np.inf]


def test_nothing_is_copied_that_is_right_and_nothing_can_be_written() -> None:
    mean = unit(np.random.default_rng(0).normal(size=(10, 3)))
    items = nothing_but(mean)
    assert np.shares_memory(items.mean, mean)
    with pytest.raises(ValueError, match="read-only"):
        items.mean[0, 0] = 1
    mean[:] = mean  # what was given stays as writable as it was


@settings(max_examples=20)
@given(count=st.integers(1, 9), cut=st.integers(0, 9), seed=st.integers(0, 99))
def test_parts_and_together(count: int, cut: int, seed: int) -> None:
    items, _ = clusters(count, seed=seed, variance=True)
    whole = Items.cat([items[:cut], items[cut:]])
    order = np.random.default_rng(seed).permutation(count)
    mask = np.zeros(count, dtype=bool)
    mask[order[: count // 2]] = True
    for name in ("mean", "kappa", "uncertainty", "variance"):
        values = getattr(items, name)
        np.testing.assert_array_equal(getattr(whole, name), values)
        np.testing.assert_array_equal(getattr(items[order], name), values[order])
        np.testing.assert_array_equal(getattr(items[mask], name), values[mask])
        np.testing.assert_array_equal(getattr(items[[-1]], name), values[-1:])
    assert len(items[[]]) == 0
    assert whole.source == SOURCE


def test_no_items_are_items() -> None:
    empty = Items(np.zeros((0, 4)), np.zeros(0), np.zeros(0), None, "a")
    assert (len(empty), empty.dim) == (0, 4)


GOOD: dict[str, Any] = {
    "mean": np.eye(3), "kappa": np.ones(3), "uncertainty": np.ones(3), "variance": None, "source": "a"
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mean": np.diag([1, 2, 1])}, ValueError, "1 of 3 rows that are not of .* the first is row 1 with norm 2"),
        ({"mean": np.diag([1, 1, np.nan])}, ValueError, "row 2 with norm nan"),
        ({"mean": np.diag([1, np.inf, 1])}, ValueError, "row 1"),
        ({"mean": np.diag([1, 1e30, 1])}, ValueError, "row 1 with norm inf"),
        ({"mean": np.zeros((3, 3))}, ValueError, "3 of 3 rows"),
        ({"mean": np.ones(3)}, ValueError, r"mean has shape \(3,\), \(N, D\) is needed"),
        ({"mean": np.ones((3, 1))}, ValueError, "at least two dimensions"),
        ({"mean": np.array([["a"]])}, TypeError, "mean has dtype <U1"),
        ({"mean": np.eye(3, dtype=complex)}, TypeError, "mean has dtype complex128"),
        ({"kappa": [1, np.nan, 1]}, ValueError, r"kappa is wrong in 1 of 3 rows, the first is row 1 \(nan\)"),
        ({"kappa": [1, 1, -1]}, ValueError, r"row 2 \(-1.0\)"),
        ({"kappa": [1, 1]}, ValueError, "kappa has 2 entries for 3 directions"),
        ({"uncertainty": [np.nan] * 3}, ValueError, "uncertainty is wrong in 3 of 3 rows"),
        ({"uncertainty": np.ones((3, 1))}, ValueError, r"\(N,\) is needed"),
        ({"variance": np.ones((3, 2))}, ValueError, r"variance has shape \(3, 2\), \(3, 3\) is needed"),
        ({"variance": np.diag([0, 0, np.inf])}, ValueError, "variance is wrong in 1 of 3 rows, the first is row 2"),
        ({"variance": -np.eye(3)}, ValueError, "variance is wrong in 3"),
        ({"source": ""}, ValueError, "name what made the items"),
        ({"source": None}, ValueError, "name what made the items"),
    ],
)  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Items(**{**GOOD, **changes})


def test_what_cannot_be_put_together() -> None:
    items, _ = clusters(4)
    with pytest.raises(ValueError, match="no parts"):
        Items.cat([])
    with pytest.raises(ValueError, match="another part comes from b and the first part from 5e1f"):
        Items.cat([items, nothing_but(np.eye(8), "b")])
    with pytest.raises(ValueError, match="has 3 dimensions and the first part 8"):
        Items.cat([items, nothing_but(np.eye(3))])
    with pytest.raises(ValueError, match="some items have a variance"):
        Items.cat([items, clusters(4, variance=True)[0]])


def test_sources_are_shown_as_far_as_needed() -> None:
    one, other = nothing_but(np.eye(2), "a" * 64), nothing_but(np.eye(2), "a" * 20 + "b" * 44)
    with pytest.raises(ValueError, match=r"from a{20}b{4}\.\.\. and it from a{24}\.\.\.:"):
        check_alike(one, other, "it", "other")


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([4], IndexError, "no row 4 among 4"),
        ([-5], IndexError, "no row -5 among 4"),
        ([True, False], ValueError, "2 booleans for 4"),
        ([0.5], TypeError, "dtype float64"),
        ([[0]], ValueError, r"shape \(1, 1\)"),
    ],
)
def test_rows_that_are_not_there(rows: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        clusters(4)[0][rows]


def test_angles_are_exact_where_cosines_are_not() -> None:
    angle = np.array([0, 1e-6, 1e-4, 1e-2, 1, np.pi / 2, 3, np.pi - 1e-6])
    one = np.zeros((len(angle), 3), dtype=np.float32)
    one[:, 0] = 1
    other = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1).astype(np.float32)
    np.testing.assert_allclose(angles(one, other), angle, rtol=1e-6, atol=1e-7)


def test_an_embedding_says_what_made_it() -> None:
    z = torch.eye(3)
    e = StochasticEmbedding(z, z, torch.ones(3), torch.ones(3), source="a4f0")
    assert Items.of(e).source == "a4f0"
    assert Items.of(e, source="a4f0").source == "a4f0"
    with pytest.raises(ValueError, match="source is 'other', but the embedding was made by 'a4f0'"):
        Items.of(e, source="other")
    with pytest.raises(ValueError, match="does not say what made it"):
        Items.of(e.with_source(None))
