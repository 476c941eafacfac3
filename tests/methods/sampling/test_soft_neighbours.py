"""The disagreement of soft neighbours: against a plain loop, its limits, and what must not change it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laplacian_metric.methods.sampling.soft_neighbours import RandomImages, neighbour_disagreement


def units(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(
        torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1
    )


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
