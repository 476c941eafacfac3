"""Images that were prepared in another way than those of the fit: kappa does not see it, so that it is said."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder
from laplacian_metric.data import load
from laplacian_metric.laplace.encoder_posterior import FAR, PreparationWarning, warn_if_longer


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    clothes = load("sample-fashion-mnist", "train+validation")
    return clothes.floats()[:300], clothes.labels[:300]


def an_encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU()), nn.Linear(20, 3)).eval()


@pytest.fixture(scope="module")
def lam(images: tuple[Tensor, Tensor]) -> LAM:
    return LAM(an_encoder(), ContrastiveLoss(0.7)).fit([images], check_mode=False)


def raw(encoder: Encoder, images: Tensor) -> Tensor:
    with torch.no_grad():
        return encoder.head(encoder.backbone(images))


def said(lam: LAM, images: Tensor) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lam.embed(images)
        lam.embed_features(lam.encoder.features(images))
    return [str(each.message) for each in caught if each.category is PreparationWarning]


def test_the_length_of_a_fit_is_the_root_mean_square(lam: LAM, images: tuple[Tensor, Tensor]) -> None:
    lengths = torch.stack([u.double().norm() for u in raw(lam.encoder, images[0])])
    assert lam.fitted.length == pytest.approx(float(lengths.square().mean().sqrt()), rel=1e-6)


def test_pixels_up_to_255_are_noticed_where_kappa_is_not_lower(
    lam: LAM, images: tuple[Tensor, Tensor]
) -> None:
    wrong = images[0][:50] * 255
    assert len(said(lam, wrong)) == 2  # of the images, and of their features
    # Why it has to be said: the distributions of these images are as narrow as those of the right ones.
    with pytest.warns(PreparationWarning):
        kappa = lam.embed(wrong).kappa.median()
    assert kappa > 0.5 * lam.embed(images[0][:50]).kappa.median()


def test_images_as_they_should_be_and_ood_images_are_not(lam: LAM, images: tuple[Tensor, Tensor]) -> None:
    digits = load("sample-mnist", "test").floats()[:50]
    for trained_on in (images[0], digits, images[0][:1], images[0] * 0.5):
        assert said(lam, trained_on) == []


@given(factor=st.floats(0.01, 100.0), number=st.integers(1, 9))
def test_half_of_the_images_have_to_be_longer(factor: float, number: int) -> None:
    u = torch.ones(number, 2, dtype=torch.float64)
    u[: number // 2 + 1] *= factor
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_longer(u, 2**0.5)
    few = torch.ones(number, 2, dtype=torch.float64)
    few[: (number - 1) // 2] *= 1e6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_longer(few, 2**0.5)
    if abs(factor - FAR) > 1e-6:
        assert bool(caught) == (factor > FAR)


@pytest.mark.parametrize("length", [None, 0.0])
def test_nothing_is_said_where_no_length_is_known(length: float | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_longer(torch.full((3, 2), 1e9), length)
        warn_if_longer(torch.empty(0, 2), 1.0)
