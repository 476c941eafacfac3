"""Random views of images by batches."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from laplacian_metric.data.views import ImageViews, views_of

STILL = {"area": (1.0, 1.0), "ratio": (1.0, 1.0), "flip": 0.0, "jitter": 0.0, "grey": 0.0}


def _images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=15, deadline=None)
@given(
    number=st.integers(0, 5),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 17),
    width=st.integers(1, 17),
    seed=st.integers(0, 9),
)
def test_any_size_grey_and_colour(number: int, channels: int, height: int, width: int, seed: int) -> None:
    images = _images(number, channels, height, width)
    augment = ImageViews(blur=0.5)
    one, other = augment(images, _generator(seed)), augment(images, _generator(seed))
    assert torch.equal(one, other)
    assert one.shape == images.shape
    assert one.dtype == images.dtype
    assert number == 0 or (float(one.min()) >= 0 and float(one.max()) <= 1)


def test_without_any_change_an_image_stays_as_it_is() -> None:
    images = _images(4, 3, 9, 7).double()
    torch.testing.assert_close(ImageViews(**STILL)(images), images, atol=1e-12, rtol=0)


def test_mirror_images() -> None:
    images = _images(3, 3, 6, 8).double()
    viewed = ImageViews(**{**STILL, "flip": 1.0})(images)
    torch.testing.assert_close(viewed, images.flip(3), atol=1e-12, rtol=0)


def test_windows_are_parts_of_the_image() -> None:
    # A picture of its own coordinates: a window's values say where it was.
    rows, columns = torch.meshgrid(torch.linspace(0, 1, 64), torch.linspace(0, 1, 64), indexing="ij")
    images = torch.stack([rows, columns, 0 * rows]).expand(200, 3, 64, 64)
    viewed = ImageViews(**{**STILL, "area": (0.25, 0.25)})(images, _generator())
    for channel in (0, 1):
        side = viewed[:, channel].flatten(1).amax(1) - viewed[:, channel].flatten(1).amin(1)
        assert bool(((side - 0.5).abs() < 0.03).all())
        place = viewed[:, channel].flatten(1).mean(1)
        assert 0.24 < float(place.min()) < 0.3
        assert 0.7 < float(place.max()) < 0.76


def test_shares_of_images_are_as_asked_for() -> None:
    images = _images(2000, 3, 4, 4)
    grey = ImageViews(**{**STILL, "grey": 0.2})(images, _generator())
    is_grey = (grey - grey.mean(1, keepdim=True)).abs().amax((1, 2, 3)) < 1e-3
    assert abs(float(is_grey.float().mean()) - 0.2) < 0.03
    flipped = ImageViews(**{**STILL, "flip": 0.5})(images, _generator())
    same = (flipped - images).abs().amax((1, 2, 3)) < 1e-5
    assert abs(float(same.float().mean()) - 0.5) < 0.04


def test_grey_has_the_luminance_of_the_image() -> None:
    images = _images(3, 3, 5, 5).double()
    viewed = ImageViews(**{**STILL, "grey": 1.0})(images)
    luminance = (images * torch.tensor([0.299, 0.587, 0.114]).double()[:, None, None]).sum(1, keepdim=True)
    torch.testing.assert_close(viewed, luminance.expand(-1, 3, -1, -1), atol=1e-3, rtol=0)


def test_a_change_of_hue_keeps_the_luminance() -> None:
    images = 0.4 + 0.2 * _images(50, 3, 5, 5).double()
    options = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.5, "jitter": 1.0}
    viewed = ImageViews(**{**STILL, **options})(images, _generator())
    weights = torch.tensor([0.299, 0.587, 0.114]).double()[:, None, None]
    torch.testing.assert_close((viewed * weights).sum(1), (images * weights).sum(1), atol=1e-3, rtol=0)
    assert float((viewed - images).abs().max()) > 0.05


def test_brightness_and_contrast_of_grey_images() -> None:
    images = 0.4 + 0.2 * _images(1, 1, 6, 6).double().expand(500, -1, -1, -1)
    only = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0, "jitter": 1.0}
    bright = ImageViews(**{**STILL, **only, "brightness": 0.4})(images, _generator())
    factor = bright.mean((1, 2, 3)) / images.mean((1, 2, 3))
    assert 0.6 < float(factor.min()) < 0.63
    assert 1.37 < float(factor.max()) < 1.4
    contrast = ImageViews(**{**STILL, **only, "contrast": 0.4})(images, _generator())
    torch.testing.assert_close(contrast.mean((1, 2, 3)), images.mean((1, 2, 3)), atol=1e-9, rtol=0)


def test_blur_is_a_convolution_with_a_gaussian() -> None:
    images = _images(2, 1, 15, 11).double()
    deviation = 0.1
    viewed = ImageViews(**{**STILL, "blur": 1.0, "deviation": (deviation, deviation)})(images)
    sigma = deviation * 11
    reach = 4
    steps = torch.arange(-reach, reach + 1).double()
    kernel = torch.exp(-0.5 * (steps / sigma) ** 2)
    kernel = torch.outer(kernel, kernel)[None, None] / kernel.sum() ** 2
    expected = F.conv2d(F.pad(images, (reach,) * 4, mode="replicate"), kernel)
    torch.testing.assert_close(viewed, expected, atol=1e-9, rtol=0)


def test_views_of_a_batch() -> None:
    batch = views_of(_images(5, 3, 8, 8), generator=_generator(), count=3)
    assert len(batch.views) == 2
    assert not torch.equal(batch.inputs, batch.views[0])
