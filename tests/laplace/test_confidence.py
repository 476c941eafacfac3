"""The confidence in a match: against plain loops, on images of known kinds and on strangers."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder, metrics
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.laplace.confidence import MatchConfidence

DIM, WIDTH, CLASSES = 3, 12, 4


def blobs(number: int, seed: int, noise: float = 0.35) -> Dataset:
    """Classes along the axes, with noise in the first half of the dimensions only."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % CLASSES
    h = torch.zeros(number, WIDTH, dtype=torch.float64)
    h[:, :CLASSES] = F.one_hot(labels, CLASSES).double()
    h[:, :6] += noise * torch.randn(number, 6, generator=generator, dtype=torch.float64)
    return Dataset(h, labels)


@pytest.fixture(scope="module")
def lam() -> LAM:
    """A head that spreads four classes over the sphere, with its posterior."""
    head = nn.Linear(WIDTH, DIM).double()
    corners = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=torch.float64)
    with torch.no_grad():
        head.weight.zero_()[:, :CLASSES] = corners.T
        head.bias.zero_()
    train = blobs(400, seed=0)
    fitted = LAM(Encoder(nn.Identity(), head), ContrastiveLoss(margin=0.7), structure="full")
    return fitted.fit_features(train, check_mode=False)


@pytest.fixture(scope="module")
def confidence(lam: LAM) -> MatchConfidence:
    return MatchConfidence.fit(lam.head, blobs(400, seed=0), blobs(200, seed=1))


def by_hand(confidence: MatchConfidence, lam: LAM, h: Tensor) -> float:
    """The confidence in one image (H,), from the definitions, in loops."""
    e = lam.embed_features(h[None])
    variance = float(e.variance.mean())
    length = float(e.gaussians.mean.square().sum()) if e.gaussians is not None else math.nan
    width = 1 / confidence.kernel + confidence.spread * variance / length
    shares = [0.0] * CLASSES
    for z, label in zip(confidence.reference, confidence.classes, strict=True):
        shares[int(label)] += math.exp((float(e.point[0] @ z) - 1) / width)
    match = sum((share / sum(shares)) ** 2 for share in shares)
    rho = variance * lam.prior_precision / (float(h @ h) + 1)
    v = [
        (math.log(value) - float(location)) / float(scale)
        for value, location, scale in zip(
            (variance, rho, variance / length), confidence.location, confidence.scale, strict=True
        )
    ]
    surprise = -float(stats.norm.logsf(v[0]) + stats.norm.logsf(v[1]))
    surprise += sum(v[i] * float(confidence.precision[i, j]) * v[j] for i in range(3) for j in range(3)) / 2
    return match * math.exp(-max(0.0, surprise - confidence.threshold) / confidence.tail)


def test_it_is_what_its_definition_says(lam: LAM, confidence: MatchConfidence) -> None:
    rows = torch.cat([blobs(8, seed=2).features, 3 * torch.randn(4, WIDTH, dtype=torch.float64)])
    actual = confidence(lam.head, rows)
    expected = torch.tensor([by_hand(confidence, lam, h) for h in rows], dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-9)
    product = confidence.known(lam.head, rows) * confidence.match(lam.head, rows)
    torch.testing.assert_close(actual, product)


def test_threshold_and_tail_are_those_of_the_validation_images(lam: LAM) -> None:
    validation = blobs(200, seed=1)
    confidence = MatchConfidence.fit(lam.head, blobs(400, seed=0), validation, alpha=0.2)
    probabilities = confidence.known(lam.head, validation.features)
    assert float((probabilities < 1).double().mean()) == pytest.approx(0.2, abs=0.01)
    # The mean excess of an exponential tail is its scale.
    assert float(-probabilities[probabilities < 1].log().mean()) == pytest.approx(1, rel=1e-6)


def test_kernel_and_spread_maximise_the_likelihood_of_right_neighbours(
    lam: LAM, confidence: MatchConfidence
) -> None:
    validation = blobs(200, seed=1)
    point = lam.embed_features(validation.features).point
    right = metrics.rank(point, validation.labels, k=1).first_is_right().double()

    def value(kernel: float, spread: float) -> float:
        p = replace(confidence, kernel=kernel, spread=spread).match(lam.head, validation.features)
        p = p.clamp(1e-6, 1 - 1e-6)
        return float((right * p.log() + (1 - right) * (1 - p).log()).mean())

    best = value(confidence.kernel, confidence.spread)
    for kernel in (confidence.kernel / 2, confidence.kernel * 2):
        assert value(kernel, confidence.spread) <= best + 5e-3


def test_strangers_and_borders_are_both_uncertain(lam: LAM, confidence: MatchConfidence) -> None:
    test = blobs(300, seed=3)
    strangers = torch.zeros(300, WIDTH, dtype=torch.float64)
    strangers[:, 6:] = torch.randn(300, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    strangers[:, :CLASSES] += test.features[:, :CLASSES]
    inside, outside = (1 - confidence(lam.head, h) for h in (test.features, strangers))
    point = lam.embed_features(test.features).point
    assert metrics.ood_auroc(inside, outside) > 0.9
    assert metrics.r_auroc(point, test.labels, inside) > 0.75


def test_images_without_contrast_are_strangers_too(lam: LAM, confidence: MatchConfidence) -> None:
    """All their features are small, so that their variance is."""
    dark = 0.02 * blobs(100, seed=6).features
    assert float(lam.embed_features(dark).variance.mean()) < float(
        lam.embed_features(blobs(100, seed=6)).variance.mean()
    )
    assert float(confidence.known(lam.head, dark).mean()) < 0.05


def test_tensors_and_back(lam: LAM, confidence: MatchConfidence) -> None:
    again = MatchConfidence.from_tensors(confidence.tensors())
    rows = blobs(5, seed=5).features
    torch.testing.assert_close(again(lam.head, rows), confidence(lam.head, rows), rtol=0, atol=0)


def test_few_references_are_evenly_spaced(lam: LAM) -> None:
    train = blobs(401, seed=0)
    confidence = MatchConfidence.fit(lam.head, train, blobs(100, seed=1), max_reference=100)
    assert len(confidence.reference) == 81
    torch.testing.assert_close(confidence.reference[1], lam.embed_features(train.features[5:6]).point[0])


def test_validation_images_that_are_all_alike(lam: LAM) -> None:
    same = Dataset(blobs(4, seed=0).features[:1].expand(6, -1).clone(), torch.zeros(6, dtype=torch.long))
    confidence = MatchConfidence.fit(lam.head, blobs(400, seed=0), same)
    assert bool(torch.isfinite(confidence(lam.head, same.features)).all())


@pytest.mark.parametrize(
    ("reference", "validation", "alpha", "message"),
    [
        (0, 20, 0.1, "reference is empty"),
        (20, 3, 0.1, "no two validation images share a class"),
        (20, 20, 0.0, "alpha is 0.0"),
    ],
)
def test_bad_input_is_named(lam: LAM, reference: int, validation: int, alpha: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MatchConfidence.fit(lam.head, blobs(reference, seed=0), blobs(validation, seed=1), alpha=alpha)


def test_a_lam_with_a_confidence_reports_it(lam: LAM, tmp_path: Path) -> None:
    train, validation = blobs(400, seed=0), blobs(200, seed=1)
    fitted = LAM(lam.encoder, lam.loss, structure="full").fit_features(train, check_mode=False)
    before = fitted.embed_features(validation)
    with pytest.deprecated_call(match="Trust"):
        confidence = fitted.fit_confidence(train, validation)
    e = fitted.embed_features(validation)
    torch.testing.assert_close(e.uncertainty, 1 - confidence(fitted.head, validation.features))
    torch.testing.assert_close(e.kappa, before.kappa, rtol=0, atol=0)
    torch.testing.assert_close(fitted.embed(validation.features).uncertainty, e.uncertainty)
    fitted.save(tmp_path / "lam.safetensors")
    again = LAM.load(tmp_path / "lam.safetensors", lam.encoder)
    torch.testing.assert_close(again.embed_features(validation).uncertainty, e.uncertainty, rtol=0, atol=0)


def test_what_it_is_is_shown_in_a_line(lam: LAM) -> None:
    train, validation = blobs(400, seed=0), blobs(200, seed=1)
    fitted = LAM(lam.encoder, lam.loss, structure="lowrank")
    assert repr(fitted) == "LAM(lowrank, fixed, 3 x 12 weights, not fitted)"
    confidence = fitted.fit_features(train, check_mode=False).fit_confidence(train, validation)
    assert repr(fitted) == "LAM(lowrank, fixed, 3 x 12 weights, fitted to 400 images, with a confidence)"
    assert repr(confidence).startswith("MatchConfidence(400 reference images of 4 classes, kernel ")


def test_validation_images_that_are_reference_images_are_told(lam: LAM) -> None:
    train, validation = blobs(400, seed=0), blobs(200, seed=1)
    fitted = LAM(lam.encoder, lam.loss, structure="full").fit_features(train, check_mode=False)
    with pytest.warns(UserWarning, match="validation images are among the reference images"):
        fitted.fit_confidence(train, train)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fitted.fit_confidence(train, validation)
    loader = [(validation.features, validation.labels)]
    with pytest.raises(TypeError, match=r"validation is a list: pass what lam\.features\(loader\) returns"):
        fitted.fit_confidence(train, loader)  # type: ignore[arg-type]


def test_a_confidence_of_another_posterior_is_refused(lam: LAM, tmp_path: Path) -> None:
    train, validation = blobs(400, seed=0), blobs(200, seed=1)
    fitted = LAM(lam.encoder, lam.loss, structure="full").fit_features(train, check_mode=False)
    fitted.fit_confidence(train, validation)
    fitted.prior_precision = 7.0
    for act in (lambda: fitted.embed_features(validation), lambda: fitted.save(tmp_path / "lam.safetensors")):
        with pytest.raises(RuntimeError, match="after its confidence was calibrated"):
            act()
    fitted.set_confidence(None)
    torch.testing.assert_close(
        fitted.embed_features(validation).uncertainty, 1 / fitted.embed_features(validation).kappa
    )
    fitted.fit_features(train, check_mode=False)
    assert fitted.confidence is None
