"""Images in a page: what they look like when they are read again, and that they stay within their budget."""

from __future__ import annotations

import base64
import io

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image as Pillow

from laplacian_metric.report.blocks import Image
from laplacian_metric.report.blocks.gallery import SIDES, as_pixels, encode, encode_within
from tests.experiments.tables.runs import images


def decoded(image: Image) -> npt.NDArray[np.uint8]:
    data = base64.b64decode(image.uri.split(",", 1)[1])
    return np.asarray(Pillow.open(io.BytesIO(data)))


@pytest.mark.parametrize("shape", [(28, 28), (10, 64), (32, 32, 3), (1, 1)])
def test_small_images_come_back_exactly(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    image = encode(pixels, 256)
    assert image.small
    np.testing.assert_array_equal(decoded(image), pixels)


@pytest.mark.parametrize(
    ("shape", "side", "expected"), [((300, 200, 3), 100, (100, 67, 3)), ((200, 400), 64, (32, 64))]
)
def test_large_images_are_scaled(shape: tuple[int, ...], side: int, expected: tuple[int, ...]) -> None:
    pixels = np.full(shape, 200, dtype=np.uint8)
    pixels[: shape[0] // 2] = 20
    image = encode(pixels, side)
    assert not image.small
    assert image.uri.startswith("data:image/jpeg;base64,")
    encoded = decoded(image)
    assert encoded.shape == expected
    assert abs(float(encoded[0, 0].mean()) - 20) < 6
    assert abs(float(encoded[-1, -1].mean()) - 200) < 6


def test_as_large_as_the_budget_allows() -> None:
    noise = list(images(30, 256, 3))
    for budget in (3_000_000, 300_000, 60_000):
        encoded = encode_within(noise, budget)
        assert all(encoded)
        assert sum(len(one.uri) for one in encoded if one) <= budget
        side = decoded(encoded[0]).shape[0]  # type: ignore[arg-type]
        larger = [other for other in SIDES if other > side]
        if larger:
            assert sum(len(encode(one, larger[-1]).uri) for one in noise) > budget


def test_what_never_fits_is_left_out_from_the_end() -> None:
    encoded = encode_within(list(images(30, 64)), 20_000)
    kept = [one is not None for one in encoded]
    assert 0 < sum(kept) < 30
    assert kept == sorted(kept, reverse=True)
    assert len(encoded) == 30
    assert encode_within([], 10) == []


def test_an_image_that_is_there_often_counts_as_often() -> None:
    noise = list(images(4, 64))
    size = len(encode(noise[0], 64).uri)
    budget = int(5.5 * size)
    once, often = encode_within(noise, budget), encode_within(noise, budget, [1, 1, 1, 3])
    assert decoded(once[0]).shape == (64, 64)  # type: ignore[arg-type]
    assert all(often)
    assert decoded(often[0]).shape < (64, 64)  # type: ignore[arg-type]
    assert sum(len(one.uri) * n for one, n in zip(often, [1, 1, 1, 3], strict=True) if one) <= budget
    with pytest.raises(ValueError, match="uses has 1 entries for 4 images"):
        encode_within(noise, budget, [1])


def test_tensors_and_a_single_channel_will_do() -> None:
    assert as_pixels("t", torch.zeros(3, 5, 6, 1, dtype=torch.uint8), 3).shape == (3, 5, 6)
    assert as_pixels("t", torch.zeros(3, 5, 6, 3, dtype=torch.uint8), 3).shape == (3, 5, 6, 3)


def test_wrong_input_is_named() -> None:
    with pytest.raises(ValueError, match="move the channels to the end"):
        as_pixels("t", np.zeros((2, 3, 8, 8), dtype=np.uint8), 2)
    with pytest.raises(ValueError, match=r"t has shape \(2, 8\)"):
        as_pixels("t", np.zeros((2, 8), dtype=np.uint8), 2)
    with pytest.raises(TypeError, match="t has dtype float64, uint8"):
        as_pixels("t", np.zeros((2, 8, 8)), 2)
    with pytest.raises(ValueError, match="t has 2 entries for 3 embeddings"):
        as_pixels("t", np.zeros((2, 8, 8), dtype=np.uint8), 3)
