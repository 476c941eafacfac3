"""Sums over active negatives, exact and estimated, against all pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal
from hessians.active_pairs import ActiveSearch, Cells, Stratum
from hessians.loss_summary import summarise
from hessians.pairs import PairSums

close = torch.testing.assert_close


def by_all_pairs(points: Tensor, labels: Tensor, margin: float) -> Tensor:
    """[1, z] summed over the active negatives of each image."""
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    active = ((distances < margin) & (labels[:, None] != labels)).to(points.dtype)
    return torch.cat([active.sum(1, keepdim=True), active @ points], dim=1)


def clusters(
    num: int, dim: int, classes: int, seed: int, sphere: bool, spread: float = 0.5
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (num,), generator=generator)
    centres = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    points = centres[labels] + spread * torch.randn(num, dim, generator=generator, dtype=torch.float64)
    return (F.normalize(points, dim=1) if sphere else points), labels


def of_round(
    search: ActiveSearch, number: int, cells: Cells, strata: Sequence[Stratum], **options: Any
) -> Tensor:
    """What a round adds, (N, 1 + Z), in the order of the images."""
    sums = search.zeros()
    return search.in_order(sums, search.add_round(sums, cells, strata, number, **options))


def estimate(search: ActiveSearch, rounds: int, partners: int) -> tuple[Tensor, Tensor]:
    """The mean of rounds and its standard error, (N, 1 + Z) each."""
    cells = search.cells()
    strata = search.strata(cells, partners)
    total, squares = search.zeros(), search.zeros()
    for number in range(rounds):
        one = of_round(search, number, cells, strata)
        total += one / rounds
        squares += one.square() / rounds
    return total, ((squares - total.square()).clamp(min=0) / (rounds - 1)).sqrt()


@settings(max_examples=40, deadline=None)
@given(
    num=st.integers(1, 90),
    dim=st.integers(1, 5),
    classes=st.integers(1, 6),
    seed=st.integers(0, 1000),
    sphere=st.booleans(),
    margin=st.sampled_from([0.05, 0.7, 1.5, 2.5]),
    cells=st.integers(1, 7),
)
def test_any_shape(
    num: int, dim: int, classes: int, seed: int, sphere: bool, margin: float, cells: int
) -> None:
    points, labels = clusters(num, dim, classes, seed, sphere)
    search = ActiveSearch(points, labels, margin, sphere=sphere, cells=cells)
    expected = by_all_pairs(points, labels, margin)
    close(search.exact(), expected)
    # A round that looks at all partners misses none but those that it draws instead of all shifts.
    whole = [s._replace(shifts=s.groups) for s in search.strata(search.cells(), num)]
    close(of_round(search, 3, search.cells(), whole), expected)


@pytest.mark.parametrize("sphere", [True, False])
@pytest.mark.parametrize("spread", [0.1, 0.7])
def test_tiles_that_are_pruned_are_empty(sphere: bool, spread: float) -> None:
    """Several tiles, some of one class, some within reach of each other and some not."""
    points, labels = clusters(2600, 4, 9, 0, sphere, spread)
    search = ActiveSearch(points, labels, 0.6, sphere=sphere)
    assert len(search.tiles().starts) > 5
    close(search.exact(), by_all_pairs(points, labels, 0.6))
    single = ActiveSearch(points.float(), labels, 0.6, sphere=sphere).exact()
    assert (single.double() - search.exact())[:, 0].abs().mean() < 0.01 * search.exact()[:, 0].mean() + 1e-3


@pytest.mark.statistical
@pytest.mark.parametrize("sphere", [True, False])
def test_the_estimate_is_unbiased(sphere: bool) -> None:
    """The mean of 300 rounds is within what 300 rounds scatter, for the sums of all images and for each of them."""
    points, labels = clusters(400, 3, 8, 2, sphere)
    search = ActiveSearch(points, labels, 0.8, sphere=sphere, cells=4)
    mean, error = estimate(search, rounds=300, partners=24)
    expected = by_all_pairs(points, labels, 0.8)
    seen = error > 0
    assert seen.double().mean() > 0.5
    close(mean[~seen], expected[~seen])  # images that no other class comes near
    deviations = ((mean - expected) / error)[seen]
    assert abs(float(deviations.square().mean()) - 1) < 0.2  # neighbours in a group share their luck
    assert float(deviations.abs().max()) < 6
    # The total number of active pairs, whose deviation is not hidden by that of single images.
    totals = []
    cells = search.cells()
    strata = search.strata(cells, 24)
    for number in range(200):
        one = of_round(search, number, cells, strata)
        totals.append(float(one[:, 0].sum()))
    total = torch.tensor(totals, dtype=torch.float64)
    assert abs(total.mean() - expected[:, 0].sum()) < 4 * total.std() / 200**0.5


def test_shares_of_processes_add_up() -> None:
    points, labels = clusters(500, 3, 5, 1, True)
    search = ActiveSearch(points, labels, 0.9, cells=3)
    cells = search.cells()
    strata = search.strata(cells, 32)
    whole = of_round(search, 7, cells, strata)
    parts = [of_round(search, 7, cells, strata, share=(rank, 3)) for rank in range(3)]
    close(sum(parts), whole)
    assert whole[:, 0].sum() > 0


@pytest.mark.parametrize("case", ["one class", "duplicates", "none active", "two images", "all active"])
def test_degenerate(case: str) -> None:
    points, labels = clusters(60, 3, 4, 0, True)
    margin = 0.7
    if case == "one class":
        labels = torch.zeros_like(labels)
    elif case == "duplicates":
        points = points[:4].repeat(15, 1)
    elif case == "none active":
        margin = 1e-6
    elif case == "two images":
        points, labels = points[:2], torch.tensor([0, 1])
    else:
        margin = 3.0
    search = ActiveSearch(points, labels, margin)
    expected = by_all_pairs(points, labels, margin)
    close(search.exact(), expected)
    mean, _ = estimate(search, rounds=3, partners=10_000)
    close(mean, expected)  # so few images have one group


@pytest.mark.parametrize(
    "loss",
    [
        ContrastiveLoss(0.9),
        ContrastiveLoss(0.9, "euclidean", negative_weight=0.3),
        ContrastiveLoss(2.0, "euclidean", normalize=False),
    ],
    ids=["arccos", "euclidean", "no norm"],
)
def test_known_sums_take_the_place_of_the_search(loss: ContrastiveLoss) -> None:
    """Curvature, value and gradient of a layer over 40 images, from sums and from all pairs."""
    points, labels = clusters(40, 3, 4, 5, False)
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(2, 3, generator=generator).double(), torch.ones(2).double()
    u = points @ weight.T + bias
    pairs = Pairs.from_labels(labels)
    origin = None if loss.normalize else u.mean(0) + 1
    z = loss.on_sphere(u)[0] if origin is None else u - origin
    class_sums = torch.zeros(4, 3).double().index_add_(0, labels, torch.cat([torch.ones(40, 1), z], dim=1))
    summed = pairs.with_sums(
        PairSums(class_sums, labels, by_all_pairs(z, labels, loss.margin), loss.margin, origin)
    )
    for one, other in zip(
        last_layer_ggn_diagonal(points, weight, bias, pairs, loss, "fixed"),
        last_layer_ggn_diagonal(points, weight, bias, summed, loss, "fixed"),
        strict=True,
    ):
        close(one, other)
    expected, summary = summarise(loss, u, pairs), summarise(loss, u, summed)
    for one, other in zip(expected, summary, strict=True):
        close(torch.as_tensor(one), torch.as_tensor(other))
    with pytest.raises(ValueError, match="sums"):
        Pairs.from_labels(labels[:3]).with_sums(summed.sums)
    with pytest.raises(ValueError, match="no sums for this loss"):
        ContrastiveLoss(0.1).output_hessian(u, summed, "fixed")
