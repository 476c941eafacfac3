"""What every method returns: made from Gaussians or from samples, cut, joined, sampled, and two combined."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import vmf
from laplacian_metric.core.embedding import StochasticEmbedding, at_norm, combine, unit_rows
from laplacian_metric.core.gaussian import Gaussians

float64 = torch.float64
close = torch.testing.assert_close


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=float64)


def gaussians(num: int, dim: int = 3) -> Gaussians:
    return Gaussians(normal(num, dim, seed=0), 0.2 * normal(num, dim, seed=1).square())


def joint_samples(num: int, dim: int = 3, draws: int = 6) -> Tensor:
    """Around one direction for each image."""
    return F.normalize(normal(num, dim, seed=2) + 0.3 * normal(draws, num, dim, seed=3), dim=2)


def _closed_form(num: int) -> StochasticEmbedding:
    return StochasticEmbedding.from_gaussians(gaussians(num))


def _both(num: int) -> StochasticEmbedding:
    return StochasticEmbedding.from_gaussians(gaussians(num), samples=joint_samples(num))


def _sampled(num: int) -> StochasticEmbedding:
    return StochasticEmbedding.from_samples(joint_samples(num), F.normalize(normal(num, 3, seed=4), dim=1))


def _scored(num: int) -> StochasticEmbedding:
    """A method that knows a direction, a concentration and a score of its own, as the probabilistic ones do."""
    point = F.normalize(normal(num, 3, seed=4), dim=1)
    kappa = 10 * normal(num, seed=5).square()
    return StochasticEmbedding(point, point, kappa, normal(num, seed=6))


Make = Callable[[int], StochasticEmbedding]
KINDS: dict[str, Make] = {"closed form": _closed_form, "both": _both, "sampled": _sampled, "scored": _scored}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def assert_same(one: StochasticEmbedding, other: StochasticEmbedding) -> None:
    for name in ("point", "mean", "kappa", "uncertainty"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    for name in ("gaussians", "samples"):
        assert (getattr(one, name) is None) == (getattr(other, name) is None), name
    if one.samples is not None and other.samples is not None:
        assert torch.equal(one.samples, other.samples)
    if one.gaussians is not None and other.gaussians is not None:
        assert torch.equal(one.gaussians.mean, other.gaussians.mean)
        assert torch.equal(one.gaussians.variance, other.gaussians.variance)


@pytest.mark.parametrize("samples", [None, joint_samples(5)])
def test_from_gaussians(samples: Tensor | None) -> None:
    raw = gaussians(5)
    e = StochasticEmbedding.from_gaussians(raw, samples=samples)
    assert (len(e), e.dim) == (5, 3)
    for row, u in enumerate(raw.mean):
        close(e.point[row], u / u.square().sum().sqrt())
    expected = vmf.projected_normal(raw.mean, raw.variance)
    assert torch.equal(e.mean, expected.mean)
    assert torch.equal(e.kappa, expected.kappa)
    assert torch.equal(e.uncertainty, 1 / expected.kappa)
    assert torch.equal(e.variance, raw.variance)
    assert e.gaussians is raw
    assert e.samples is samples
    assert not torch.allclose(
        e.point, e.mean, atol=1e-3
    )  # the mean of directions is not the direction of the mean


def test_from_samples() -> None:
    samples = joint_samples(5)
    mean, kappa = vmf.fit(samples)
    e = StochasticEmbedding.from_samples(samples)
    assert e.point is e.mean
    assert e.samples is samples
    assert e.gaussians is None
    assert torch.equal(e.mean, mean)
    assert torch.equal(e.kappa, kappa)
    assert torch.equal(e.uncertainty, 1 / kappa)
    close(e.mean, F.normalize(samples.sum(0), dim=1))
    point = F.normalize(normal(5, 3, seed=9), dim=1)
    with_point = StochasticEmbedding.from_samples(samples, point)
    assert with_point.point is point
    assert torch.equal(with_point.mean, mean)


def test_samples_that_point_everywhere_are_infinitely_uncertain() -> None:
    opposite = torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]]])
    e = StochasticEmbedding.from_samples(opposite)
    assert (float(e.kappa), float(e.uncertainty)) == (0.0, math.inf)


@pytest.mark.statistical
@every_kind
def test_samples_and_their_mean_direction(make: Make) -> None:
    """Each component of an average of k unit vectors has a standard error below 1/sqrt(k); 5 are allowed.

    With Gaussians the average is that of u/|u|, else A(kappa) times the mean.
    """
    k, e = 40_000, make(4)
    draws = e.sample(k, generator=torch.Generator().manual_seed(0))
    assert draws.shape == (k, 4, 3)
    close(draws.norm(dim=2), torch.ones(k, 4, dtype=float64))
    assert torch.equal(draws, e.sample(k, generator=torch.Generator().manual_seed(0)))
    assert not torch.equal(draws[:9], e.sample(9, generator=torch.Generator().manual_seed(1)))
    if e.gaussians is None:
        length = vmf.mean_resultant_length(e.kappa, 3)
    else:
        length = e.gaussians.direction().length
    close(draws.mean(0), length[:, None] * e.mean, rtol=0, atol=5 / math.sqrt(k))


def test_what_is_certain_has_samples_that_are_all_its_mean() -> None:
    mean = torch.eye(3)
    e = StochasticEmbedding(mean, mean, torch.tensor([torch.inf, 4.0, torch.inf]), torch.zeros(3))
    draws = e.sample(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(draws[:, ::2], mean[::2].expand(50, 2, 3))
    assert float(draws[:, 1].std(0).min()) > 0.1


def test_samples_of_short_vectors_are_unit() -> None:
    for dtype, scale in ((torch.float32, 1e-15), (float64, 1e-100)):
        short = Gaussians((scale * normal(2, 3, seed=0)).to(dtype), torch.zeros(2, 3, dtype=dtype))
        draws = StochasticEmbedding.from_gaussians(short).sample(2)
        close(draws.norm(dim=2), torch.ones(2, 2, dtype=dtype))


@every_kind
def test_rows(make: Make) -> None:
    e = make(4)
    mask = torch.tensor([False, True, True, False])
    cases = [
        (1, [1]),
        (-1, [3]),
        (-2, [2]),
        (torch.tensor(2), [2]),
        (slice(1, 3), [1, 2]),
        (slice(2, 2), []),
        (mask, [1, 2]),
        (torch.tensor([3, 0, 0]), [3, 0, 0]),
    ]
    for rows, images in cases:
        some = e[rows]
        assert len(some) == len(images)
        expected = StochasticEmbedding(
            *(getattr(e, name)[images] for name in ("point", "mean", "kappa", "uncertainty")),
            gaussians=e.gaussians and Gaussians(e.gaussians.mean[images], e.gaussians.variance[images]),
            samples=None if e.samples is None else e.samples[:, images],
        )
        assert_same(some, expected)
    assert_same(StochasticEmbedding.cat(list(e)), e)


@every_kind
def test_cat_and_to(make: Make) -> None:
    e = make(5)
    assert_same(StochasticEmbedding.cat([e[:2], e[2:2], e[2:]]), e)
    single = e.to("cpu", torch.float32)
    for name in ("point", "mean", "kappa", "uncertainty"):
        assert getattr(single, name).dtype == torch.float32
        close(getattr(single, name).double(), getattr(e, name), rtol=1e-6, atol=1e-6)
    assert single.sample(2).dtype == torch.float32
    assert single.samples is None or single.samples.dtype == torch.float32
    assert single.gaussians is None or single.gaussians.variance.dtype == torch.float32
    assert_same(e.to(), e)


@every_kind
def test_no_images(make: Make) -> None:
    none = make(0)
    assert (len(none), none.dim) == (0, 3)
    assert none.sample(3).shape == (3, 0, 3)
    assert_same(none[:], none)
    assert_same(StochasticEmbedding.cat([none, make(3)]), make(3))
    assert none.to(dtype=torch.float32).kappa.dtype == torch.float32


def test_the_variance_before_the_norm() -> None:
    axes = torch.linalg.qr(normal(3, 3, seed=7)).Q
    turned = Gaussians(normal(2, 3, seed=0), normal(2, 3, seed=1).square(), axes)
    e = StochasticEmbedding.from_gaussians(turned)
    close(e.variance, turned.covariance.diagonal(dim1=1, dim2=2))


@every_kind
def test_another_score(make: Make) -> None:
    e = make(3)
    score = torch.tensor([3.0, -1.0, 2.0])
    scored = e.with_uncertainty(score)
    assert scored.uncertainty is score
    assert_same(scored.with_uncertainty(e.uncertainty), e)


def test_joint_samples_beside_the_distribution() -> None:
    e, samples = _closed_form(3), joint_samples(3)
    assert_same(e.with_samples(samples), _both(3))


@every_kind
def test_the_posterior_it_comes_from_stays_with_it(make: Make) -> None:
    e = make(4).with_source("one")
    assert (
        e.source
        == e[1:].source
        == e.to(dtype=torch.float64).source
        == e.with_uncertainty(e.kappa).source
        == "one"
    )
    assert StochasticEmbedding.cat([e, e[:2]]).source == "one"


def around(kappa: Tensor, dim: int = 5, seed: int = 0) -> StochasticEmbedding:
    generator = torch.Generator().manual_seed(seed)
    mean = F.normalize(torch.randn(len(kappa), dim, dtype=float64, generator=generator), dim=1).to(
        kappa.dtype
    )
    return StochasticEmbedding(mean, mean, kappa, kappa.reciprocal())


def test_samples_of_both_have_its_kappa_and_variance() -> None:
    generator = torch.Generator().manual_seed(1)
    aleatoric = around(torch.tensor([4.0, 50.0, 10.0], dtype=float64))
    epistemic = around(torch.tensor([30.0, 6.0, 10.0], dtype=float64))
    combined = combine(aleatoric, epistemic)
    count = 100_000
    directions = vmf.sample(epistemic.mean, epistemic.kappa, count, generator=generator)
    flat = directions.reshape(-1, 5)
    drawn = vmf.sample(flat, aleatoric.kappa.repeat(count), 1, generator=generator)[0].reshape(count, 3, 5)
    mean = drawn.mean(0)
    variance = 1 - mean.square().sum(1)
    torch.testing.assert_close(combined.total.uncertainty, variance, rtol=0.01, atol=0)
    torch.testing.assert_close(
        combined.total.kappa, vmf.concentration(mean.norm(dim=1), 5), rtol=0.01, atol=0
    )
    # What the network leaves open is the variance of the mean directions that images with its weights would have.
    torch.testing.assert_close(
        combined.epistemic,
        vmf.mean_resultant_length(aleatoric.kappa, 5).square() * (1 - directions.mean(0).square().sum(1)),
        rtol=0.01,
        atol=0,
    )


@settings(max_examples=50, deadline=None)
@given(
    one=st.floats(0, 1e9),
    other=st.floats(0, 1e9),
    dim=st.sampled_from([2, 3, 16, 512]),
    seed=st.integers(0, 9),
)
def test_shares_add_up_and_the_total_is_no_surer_than_either(
    one: float, other: float, dim: int, seed: int
) -> None:
    kappas = [torch.tensor([value], dtype=float64) for value in (one, other)]
    combined = combine(around(kappas[0], dim, seed), around(kappas[1], dim, seed))
    torch.testing.assert_close(combined.aleatoric + combined.epistemic, combined.total.uncertainty)
    lengths = [vmf.mean_resultant_length(kappa, dim) for kappa in kappas]
    torch.testing.assert_close(
        1 - (lengths[0] * lengths[1]).square(), combined.total.uncertainty, rtol=1e-6, atol=1e-12
    )
    assert (combined.total.kappa <= torch.minimum(*kappas) * (1 + 1e-6)).all()


def test_the_total_tells_images_apart_of_which_little_is_known() -> None:
    kappa = torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0])
    total = combine(around(kappa, 512), around(kappa, 512)).total
    assert (total.uncertainty.diff() < 0).all()
    assert total.kappa.dtype == torch.float32


def test_certainty_of_one_leaves_the_other() -> None:
    kappa = torch.tensor([0.0, 3.0, 1e4], dtype=float64)
    certain = torch.full_like(kappa, math.inf)
    by_image, by_network = combine(around(kappa), around(certain)), combine(around(certain), around(kappa))
    for combined in (by_image, by_network):
        torch.testing.assert_close(combined.total.kappa, kappa, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(by_image.epistemic, torch.zeros(3, dtype=float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(by_network.aleatoric, torch.zeros(3, dtype=float64), rtol=0, atol=1e-12)


def test_small_concentrations_add_their_reciprocals_where_both_are_large() -> None:
    """In the plane around a direction both are Gaussians, whose variances add up."""
    one, other = torch.tensor([1e7], dtype=float64), torch.tensor([3e7], dtype=float64)
    kappa = combine(around(one), around(other)).total.kappa
    torch.testing.assert_close(kappa, 1 / (1 / one + 1 / other), rtol=1e-6, atol=0)


def test_spaces_may_differ_and_directions_are_the_networks() -> None:
    aleatoric, epistemic = (
        around(torch.tensor([4.0, 9.0]), dim=3),
        around(torch.tensor([4.0, 9.0]), dim=8, seed=5),
    )
    combined = combine(aleatoric, epistemic)
    assert torch.equal(combined.total.point, epistemic.point)
    assert combined.total.kappa.dtype == torch.float32
    assert len(combined) == 2
    assert len(combine(aleatoric[:0], epistemic[:0])) == 0


@pytest.mark.parametrize("whole", [False, True])
def test_at_one_norm_only_the_covariance_counts(whole: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(6, 4, dtype=float64, generator=generator)
    variance = 0.01 * torch.rand(6, 4, dtype=float64, generator=generator)
    covariance = torch.diag_embed(variance) if whole else variance
    e = StochasticEmbedding.from_gaussians(Gaussians(mean, covariance))
    scaled = StochasticEmbedding.from_gaussians(Gaussians(7 * mean, covariance))
    placed, other = at_norm(e, 2.0), at_norm(scaled, 2.0)
    torch.testing.assert_close(placed.kappa, other.kappa)
    torch.testing.assert_close(placed.point, e.point)
    assert placed.gaussians is not None
    torch.testing.assert_close(placed.gaussians.mean.norm(dim=1), torch.full((6,), 2.0, dtype=float64))
    assert torch.equal(placed.variance, e.variance)
    # Where a mean has the norm already, nothing changes.
    norm = float(mean[0].norm())
    torch.testing.assert_close(at_norm(e, norm).kappa[0], e.kappa[0])


EYE, ONES = torch.eye(3), torch.ones(3)
LOST = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
join = StochasticEmbedding.cat


@pytest.mark.parametrize(
    ("use", "error", "named"),
    [
        (lambda: join([_closed_form(2), _sampled(2)]), ValueError, "parts"),
        (lambda: join([_both(2), _closed_form(2)]), ValueError, "parts"),
        (lambda: join([_scored(2), _both(2)]), ValueError, "parts"),
        (lambda: join([]), ValueError, "parts"),
        (
            lambda: join([StochasticEmbedding.from_samples(joint_samples(2, draws=k)) for k in (4, 5)]),
            ValueError,
            "samples, 4 and 5",
        ),
        (
            lambda: join([StochasticEmbedding.from_gaussians(gaussians(2, dim)) for dim in (3, 2)]),
            ValueError,
            "dimensions, 2 and 3",
        ),
        (lambda: join([_closed_form(2).with_source("one"), _closed_form(2)]), ValueError, "posteriors"),
        (lambda: StochasticEmbedding(EYE, EYE[:2], ONES, ONES), ValueError, "mean"),
        (lambda: StochasticEmbedding(EYE, EYE, ONES[:, None], ONES), ValueError, "kappa"),
        (lambda: StochasticEmbedding(EYE, EYE, ONES, ONES, gaussians(2)), ValueError, "gaussians"),
        (lambda: StochasticEmbedding(ONES, EYE, ONES, ONES), ValueError, "point"),
        (lambda: _closed_form(2).sample(0), ValueError, "k is 0"),
        (lambda: _sampled(2).variance, ValueError, "variance"),
        (lambda: _scored(2).variance, ValueError, "variance"),
        (lambda: _closed_form(3).with_uncertainty(ONES[:2]), ValueError, "uncertainty"),
        (lambda: _closed_form(3).with_samples(joint_samples(2)), ValueError, "samples"),
        (lambda: _both(4)[4], IndexError, "image 4 of 4"),
        (lambda: _sampled(4)[-5], IndexError, "image -5 of 4"),
        (lambda: _scored(0)[0], IndexError, "image 0 of 0"),
        (lambda: unit_rows(LOST), ValueError, "row 1 with norm 0"),
        (lambda: unit_rows(LOST / LOST.norm(dim=1, keepdim=True)), ValueError, "row 1 with norm nan"),
        (lambda: unit_rows(LOST + torch.tensor([[0.0], [math.inf], [0.0], [0.0]])), ValueError, "norm inf"),
        (
            lambda: StochasticEmbedding.from_gaussians(Gaussians(LOST, torch.ones(4, 2))),
            ValueError,
            "2 of 4 embeddings",
        ),
        (lambda: combine(around(ONES[:2]), around(ONES)), ValueError, "aleatoric"),
        (lambda: combine(around(torch.tensor([1.0, math.nan])), around(ONES[:2])), ValueError, "kappa"),
        (lambda: at_norm(around(ONES), 1.0), ValueError, "norm"),
        (lambda: at_norm(_closed_form(2), 0.0), ValueError, "norm"),
    ],
)
def test_bad_input_is_named(use: Callable[[], object], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        use()
