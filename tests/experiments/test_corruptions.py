"""Corruptions: the same for an image wherever it is, stronger when asked to be, and what they are meant to be."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from experiments import corruptions
from experiments.corruptions import HIDING, KINDS, corrupt, corrupt_some
from laplacian_metric.core.splits import uniforms
from laplacian_metric.data import load


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return load("sample-fashion-mnist", "test").floats()[:64]


shapes = st.tuples(st.integers(1, 4), st.sampled_from([1, 3]), st.integers(1, 17), st.integers(1, 17))


@given(
    shape=shapes,
    kind=st.sampled_from(KINDS),
    strength=st.floats(0, 1),
    seed=st.integers(0, 2**40),
    start=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16]),
)
@settings(max_examples=150)
def test_any_image_stays_an_image_and_depends_on_nothing_else(
    shape: tuple[int, int, int, int], kind: str, strength: float, seed: int, start: int, dtype: torch.dtype
) -> None:
    clean = torch.rand(shape, generator=torch.Generator().manual_seed(seed % 2**31)).to(dtype)
    before = clean.clone()
    indices = list(range(start, start + shape[0]))
    corrupted = corrupt(clean, kind, strength, indices=indices, seed=seed)
    assert corrupted.shape == clean.shape
    assert corrupted.dtype == dtype
    assert bool(((corrupted >= 0) & (corrupted <= 1)).all())
    assert torch.equal(clean, before)
    backwards = corrupt(clean.flip(0), kind, strength, indices=indices[::-1], seed=seed)
    assert torch.equal(backwards.flip(0), corrupted)
    alone = corrupt(clean[-1:], kind, strength, indices=indices[-1:], seed=seed)
    assert torch.equal(alone, corrupted[-1:])


@pytest.mark.parametrize("kind", KINDS)
def test_stronger_corruptions_change_more(kind: str, images: torch.Tensor) -> None:
    changes = [float((corrupt(images, kind, level / 5) - images).abs().mean()) for level in range(6)]
    assert changes[0] == 0
    assert all(weak < strong for weak, strong in itertools.pairwise(changes))


def test_blur_is_gaussian(images: torch.Tensor) -> None:
    corrupted = corrupt(images[:4].double(), "blur", 0.6)
    deviation = corruptions.WIDEST_BLUR * 0.6 * 28
    reach = math.ceil(3 * deviation)
    for image, blurred in zip(images[:4].double(), corrupted, strict=True):
        expected = ndimage.gaussian_filter(image[0].numpy(), deviation, mode="nearest", radius=reach)
        torch.testing.assert_close(blurred[0], torch.from_numpy(expected).clamp(0, 1), atol=1e-12, rtol=0)


def test_occlusion_covers_its_share_and_nothing_else() -> None:
    white = torch.ones(40, 3, 40, 20)
    corrupted = corrupt(white, "occlusion", 1.0)
    share = (corrupted == 0).float().mean(dim=(1, 2, 3))
    torch.testing.assert_close(share, torch.full((40,), corruptions.LARGEST_OCCLUSION), atol=0.03, rtol=0)
    assert set(corrupted.unique().tolist()) == {0.0, 1.0}
    # A stronger one covers a rectangle of the weaker one's shape and channels alike.
    assert torch.equal(corrupted[:, 0], corrupted[:, 2])


def test_noise_has_its_deviation_and_grows_in_proportion() -> None:
    grey = torch.full((50, 1, 32, 32), 0.5, dtype=torch.float64)
    weak = corrupt(grey, "noise", 0.1) - grey
    assert float(weak.std()) == pytest.approx(0.1 * corruptions.STRONGEST_NOISE, rel=0.02)
    assert abs(float(weak.mean())) < 4 * 0.05 / math.sqrt(weak.numel())
    weaker = corrupt(grey, "noise", 0.05) - grey
    torch.testing.assert_close(2 * weaker, weak)


def test_draws_do_not_change_from_release_to_release() -> None:
    raw = np.random.PCG64(np.random.SeedSequence((7, 1))).random_raw(3)
    assert uniforms((7, 1), (3,)).tolist() == [int(number) // 2**11 / 2**53 for number in raw]
    # Published results rest on these; a change of them is a change of every corrupted image.
    assert [math.floor(100 * number) for number in uniforms((0, 0), (4,))] == [63, 26, 4, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "fog"}, "no corruption is called 'fog'; there are: crop, blur, occlusion, noise"),
        ({"strength": 1.5}, "strength is 1.5; it must be from 0 to 1"),
        ({"strength": float("nan")}, "strength is nan"),
        (
            {"images": torch.zeros(2, 3, 3)},
            r"of shape \(N, C, H, W\), not torch.float32 of shape \(2, 3, 3\)",
        ),
        ({"images": torch.zeros(2, 1, 3, 3, dtype=torch.uint8)}, "must be floating point"),
        ({"images": torch.full((2, 1, 3, 3), 2.0)}, "images go from 2 to 2; corrupt them in"),
        ({"images": torch.full((2, 1, 3, 3), float("nan"))}, "images go from nan to nan"),
        ({"indices": [1]}, "indices has 1 entries for 2 images"),
        ({"indices": [1, -1]}, "must be 0 or more"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    usual: dict[str, object] = {"images": torch.zeros(2, 1, 3, 3), "kind": "blur", "strength": 0.5}
    with pytest.raises(ValueError, match=message):
        corrupt(**{**usual, **arguments})  # type: ignore[arg-type]


def test_some_images_are_corrupted_by_the_kind_and_to_the_strength_of_their_lot(images: torch.Tensor) -> None:
    indices = torch.arange(100, 164)
    corrupted = corrupt_some(images, 0.5, indices=indices, seed=3)
    number = 0
    for row, index in enumerate(indices.tolist()):
        whether, which, strength = uniforms((3, index, 4), (3,))
        expected = images[row : row + 1]
        if whether < 0.5:
            number += 1
            expected = corrupt(expected, HIDING[int(3 * which)], strength, indices=[index], seed=3)
        assert torch.equal(corrupted[row], expected[0])
    assert 20 < number < 44  # four standard errors are 16
    part = corrupt_some(images[10:20], 0.5, indices=indices[10:20], seed=3)
    assert torch.equal(part, corrupted[10:20])
    assert torch.equal(corrupt_some(images, 0.0), images)
    everything = corrupt_some(images, 1.0, kinds=["noise"])
    assert bool((everything != images).flatten(1).any(1).all())
