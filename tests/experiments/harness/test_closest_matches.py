"""The closest matches against the probabilities of all pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from laplacian_metric.methods.gaussian.match_probability import MatchProbability, mismatch_probability
from experiments.harness import closest_matches as module
from experiments.harness.closest_matches import closest_matches


def clouds(number: int, samples: int, dim: int, spread: Tensor, generator: torch.Generator) -> Tensor:
    """Samples (K, N, Z) of images around points that differ by about 3."""
    centres = 3 * torch.randn(number, dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(samples, number, dim, generator=generator, dtype=torch.float64)
    return centres + spread[:, None] * noise


def check(first: Tensor, second: Tensor, match: MatchProbability, best: int) -> Tensor:
    """That the greatest scores are those of all pairs and that all scores are right; returns what was ruled out."""
    whole = -mismatch_probability(first, second, match)
    likelihood = closest_matches(first, second, match, best)(torch.arange(first.shape[1]))
    ruled_out = likelihood == -torch.inf
    torch.testing.assert_close(likelihood[~ruled_out], whole[~ruled_out], rtol=1e-6, atol=0)
    kept = min(best, second.shape[1])
    torch.testing.assert_close(likelihood.topk(kept).values, whole.topk(kept).values, rtol=1e-6, atol=0)
    return ruled_out


@given(
    seed=st.integers(0, 10_000),
    number=st.integers(1, 6),
    size=st.integers(1, 60),
    samples=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    dim=st.integers(1, 4),
    widest=st.sampled_from([0.0, 1e-3, 0.1, 3.0]),
    scale=st.sampled_from([0.1, 2.0, 30.0]),
    offset=st.sampled_from([-3.0, 0.0, 5.0]),
    squared=st.booleans(),
    best=st.integers(1, 8),
    single=st.booleans(),
)
def test_none_of_the_closest_is_ruled_out(
    seed: int,
    number: int,
    size: int,
    samples: tuple[int, int],
    dim: int,
    widest: float,
    scale: float,
    offset: float,
    squared: bool,
    best: int,
    single: bool,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    spreads = [widest * torch.rand(n, generator=generator, dtype=torch.float64) for n in (number, size)]
    first, second = (
        clouds(n, k, dim, spread, generator)
        for n, k, spread in zip((number, size), samples, spreads, strict=True)
    )
    match = MatchProbability(scale, offset, squared=squared).double()
    if single:
        first, second, match = first.float(), second.float(), match.float()
    check(first, second, match, best)


@pytest.mark.parametrize(("queries", "gallery"), [(0.05, 0.05), (2.0, 0.05), (0.05, 2.0)])
def test_most_pairs_are_ruled_out_where_either_image_is_sure(queries: float, gallery: float) -> None:
    generator = torch.Generator().manual_seed(0)
    first = clouds(20, 4, 2, torch.full((20,), queries, dtype=torch.float64), generator)
    second = clouds(2000, 4, 2, torch.full((2000,), gallery, dtype=torch.float64), generator)
    ruled_out = check(first, second, MatchProbability(2.0, 4.0).double(), best=6)
    assert float(ruled_out.double().mean()) > 0.75


def test_an_image_is_not_ruled_out_by_the_middle_of_its_samples() -> None:
    match = MatchProbability(30.0, 5.0).double()
    # Half of its samples are where the query is; others lie where a mismatch has the probability 0.6, or far away.
    torn = torch.tensor([0.0, 8.0]).double()
    near = float((5.0 + torch.tensor(0.6).double().logit()) / 30.0)
    others = torch.cat([torch.full((12,), near), torch.linspace(20.0, 30.0, 60)]).double()
    point = torch.zeros(2, 1, 1).double()
    gallery = torch.stack([torn, *others[:, None].expand(-1, 2)], 1)[..., None]
    likelihood = closest_matches(point, gallery, match, best=1)(torch.tensor([0]))
    torch.testing.assert_close(likelihood[0, 0], -0.5 * (1 + match(point[0, 0, 0]).neg().sigmoid()))
    assert int(likelihood.argmax()) == 0
    # And the other way round: the query is torn, and one image is where half of it is, the others nowhere near.
    likelihood = closest_matches(
        gallery[:, :1], torch.cat([point, 4 + torch.randn(2, 40, 1).double()], 1), match, 1
    )
    assert int(likelihood(torch.tensor([0])).argmax()) == 0


def test_where_nothing_can_be_ruled_out_all_pairs_are_computed() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (clouds(n, 4, 2, torch.full((n,), 20.0).double(), generator) for n in (5, 100))
    assert not check(first, second, MatchProbability(2.0, 4.0).double(), best=3).any()


def test_in_pieces_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", 7)
    generator = torch.Generator().manual_seed(0)
    first, second = (clouds(n, 3, 2, torch.full((n,), 0.3).double(), generator) for n in (9, 80))
    assert check(first, second, MatchProbability(2.0, 4.0).double(), best=4).any()


def test_equal_images_are_all_kept() -> None:
    same = torch.zeros(2, 50, 2)
    assert not check(same[:, :3], same, MatchProbability(2.0, 1.0), best=2).any()


def test_far_away_probabilities_that_are_equal_to_1_rule_nothing_wrong_out() -> None:
    first, second = torch.zeros(1, 1, 1), 1e4 + torch.arange(30.0)[None, :, None]
    check(first, second, MatchProbability(30.0, 0.0), best=3)


def test_what_does_not_fit_is_said() -> None:
    match, some = MatchProbability(), torch.zeros(1, 2, 2)
    with pytest.raises(ValueError, match="at least one match must be wanted"):
        closest_matches(some, some, match, 0)
    with pytest.raises(ValueError, match="first has 2 dimensions and second 3"):
        closest_matches(some, torch.zeros(1, 2, 3), match, 1)
    with pytest.raises(ValueError, match="gallery is empty"):
        closest_matches(some, some[:, :0], match, 1)
    broken = some.clone()
    broken[0, 1, 0] = torch.nan
    with pytest.raises(ValueError, match="second has NaN or infinite entries in 1 of 2 rows"):
        closest_matches(some, broken, match, 1)
