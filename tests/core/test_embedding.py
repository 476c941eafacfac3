"""What every method returns: made from Gaussians or from samples, cut, joined, moved and sampled."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import vmf
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
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
    for beyond in (4, -5):
        with pytest.raises(IndexError, match=f"image {beyond} of 4 images"):
            e[beyond]
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


def test_what_cannot_be_joined() -> None:
    for parts in (
        [_closed_form(2), _sampled(2)],
        [_both(2), _closed_form(2)],
        [_scored(2), _both(2)],
    ):
        with pytest.raises(ValueError, match="some parts have Gaussians or samples and some have not"):
            StochasticEmbedding.cat(parts)
    with pytest.raises(ValueError, match="no parts"):
        StochasticEmbedding.cat([])
    draws = [StochasticEmbedding.from_samples(joint_samples(2, draws=draws)) for draws in (4, 5)]
    with pytest.raises(ValueError, match="different numbers of joint samples, 4 and 5"):
        StochasticEmbedding.cat(draws)
    with pytest.raises(ValueError, match="different numbers of dimensions, 2 and 3"):
        StochasticEmbedding.cat([StochasticEmbedding.from_gaussians(gaussians(2, dim)) for dim in (3, 2)])


@every_kind
def test_no_images(make: Make) -> None:
    none = make(0)
    assert (len(none), none.dim) == (0, 3)
    assert none.sample(3).shape == (3, 0, 3)
    assert_same(none[:], none)
    assert_same(StochasticEmbedding.cat([none, make(3)]), make(3))
    assert none.to(dtype=torch.float32).kappa.dtype == torch.float32
    with pytest.raises(IndexError, match="image 0 of 0 images"):
        none[0]


def test_the_variance_before_the_norm() -> None:
    for make in (_sampled, _scored):
        with pytest.raises(ValueError, match="no Gaussian of u, so there is no variance before the norm"):
            _ = make(2).variance
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
    with pytest.raises(ValueError, match=r"uncertainty has shape \(2,\), \(3,\) is needed"):
        e.with_uncertainty(score[:2])


def test_joint_samples_beside_the_distribution() -> None:
    e, samples = _closed_form(3), joint_samples(3)
    assert_same(e.with_samples(samples), _both(3))
    with pytest.raises(ValueError, match=r"samples has shape \(6, 2, 3\), \(S, 3, 3\) is needed"):
        e.with_samples(samples[:, :2])


@pytest.mark.parametrize(("wrong", "norm"), [(0.0, "0"), (math.nan, "nan"), (math.inf, "inf")])
def test_embeddings_without_a_direction_are_named(wrong: float, norm: str) -> None:
    u = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
    u[[1, 3]] = wrong
    message = f"2 of 4 embeddings have no direction, the first is row 1 with norm {norm}"
    with pytest.raises(ValueError, match=message):
        unit_rows(u)
    with pytest.raises(ValueError, match=message):
        StochasticEmbedding.from_gaussians(Gaussians(u, torch.ones(4, 2)))


def test_shapes_are_checked() -> None:
    point, one = torch.eye(3), torch.ones(3)
    with pytest.raises(ValueError, match=r"mean has shape \(2, 3\), \(3, 3\) is needed"):
        StochasticEmbedding(point, point[:2], one, one)
    with pytest.raises(ValueError, match=r"kappa has shape \(3, 1\), \(3,\) is needed"):
        StochasticEmbedding(point, point, one[:, None], one)
    with pytest.raises(ValueError, match=r"gaussians are \(2, 3\), \(3, 3\) is needed"):
        StochasticEmbedding(point, point, one, one, gaussians(2))
    with pytest.raises(ValueError, match=r"point has shape \(3,\), two dimensions are needed"):
        StochasticEmbedding(one, point, one, one)
    with pytest.raises(ValueError, match="k is 0, at least one sample"):
        _closed_form(2).sample(0)


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
    with pytest.raises(ValueError, match="different posteriors"):
        StochasticEmbedding.cat([e, make(4)])
