"""What is too little for a LAM, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hessians import ContrastiveLoss, Pairs
from hessians.checks import CurvatureWarning
from laplacian_metric import LAM, NetworkLAM, OnlineLAM
from laplacian_metric.encoder import train_head, whitening_head
from laplacian_metric.laplace import accumulate
from laplacian_metric.laplace.posthoc import NotFittedError
from tests.laplace.fit_reference import STRUCTURES, Layer, images_of, network

pytestmark = pytest.mark.filterwarnings("ignore:theta. is no mode")
LAYER = Layer.random(24, 5, 3, classes=4, seed=5)


def fitted() -> LAM:
    return LAM(network(LAYER), ContrastiveLoss(0.9)).fit_features(LAYER.features, LAYER.labels)


DEGENERATE = {
    "one class": (torch.zeros(24, dtype=torch.long), "all images are of one class"),
    "singletons": (torch.arange(24), "no two images share a class"),
    "a single image": (torch.tensor([*[0] * 12, *[1] * 11, 2]), "1 of 3 classes have a single image"),
}


@pytest.mark.parametrize("approximation", ["fixed", "positive", "full", "clipped"])
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_classes(case: str, approximation: str) -> None:
    labels, message = DEGENERATE[case]
    for structure in STRUCTURES:
        if (structure, approximation) == ("kron", "full"):
            continue
        lam = LAM(network(LAYER), ContrastiveLoss(0.9), approximation, structure)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            e = lam.fit_features(LAYER.features, labels).embed_features(LAYER.features)
        said = [str(each.message) for each in caught if issubclass(each.category, CurvatureWarning)]
        assert sum(message in text for text in said) == 1
        assert not any("there is no" in text and "pair (" in text for text in said)
        assert bool(e.kappa.isfinite().all())
        nothing = not lam.fitted.curvature.trace() > 0
        assert any("the curvature is 0 for every weight" in text for text in said) == nothing


Refusal = tuple[Callable[[LAM], object], type[Exception], str]
H, LABELS, IMAGES = LAYER.features, LAYER.labels, images_of(LAYER, network(LAYER))
NAN = H.clone()
NAN[3, 1] = torch.nan
UNSQUARED, TRIPLET = ContrastiveLoss(0.9, power=1), torch.nn.TripletMarginLoss()
NET = torch.nn.Sequential(torch.nn.Linear(4, 3))
MAKERS: list[Callable[[Any, Any], Any]] = [
    LAM,
    lambda encoder, loss: NetworkLAM(encoder, loss, layers=1),
    lambda encoder, loss: OnlineLAM(encoder, torch.optim.SGD(NET.parameters(), lr=0.1), loss, 10),
    lambda encoder, loss: LAM.load("lam", encoder, loss),
]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda lam: lam.fit_features(H, LABELS[:20]), ValueError, "labels has 20 entries for 24 rows of features"),
        (lambda lam: lam.fit_features(H), ValueError, "labels are missing"),
        (lambda lam: lam.fit_features(H, LABELS.double()), TypeError, "labels has dtype torch.float64"),
        (lambda lam: lam.fit_features(H[:, :4], LABELS), ValueError, "4 columns, the encoder's head takes 5"),
        (lambda lam: lam.fit_features(NAN, LABELS), ValueError, "in 1 of 24 rows, the first is row 3"),
        (lambda lam: lam.fit_features(H[:1], LABELS[:1]), ValueError, "there is 1 image: a pair needs two"),
        (lambda lam: lam.fit_features(H[:0], LABELS[:0]), ValueError, "there is 0 image"),
        (lambda lam: lam.fit_features(H, Pairs.from_labels([0, 0, 1])), ValueError, "over 3 images for 24 features"),
        (lambda lam: lam.fit_features(H, LABELS, batches=[]), ValueError, "batches is empty"),
        (lambda lam: lam.fit_features(H, LABELS, batches=[LABELS + 21]), ValueError, "position 24, but there are 24"),
        (lambda lam: lam.fit_features(H, LABELS, batches=[torch.tensor([0.5])]), ValueError, "integers of shape"),
        (lambda lam: lam.fit([]), ValueError, "the loader is empty"),
        (lambda lam: lam.embed([]), ValueError, "the loader is empty"),
        (lambda lam: lam.embed_features(H[:, :4]), ValueError, "features has 4 columns, the head takes 5"),
        (lambda lam: lam.embed_features(NAN), ValueError, "the first is row 3"),
        (lambda lam: lam.embed([IMAGES, IMAGES / 0]), ValueError, "features of batch 1 of the loader has NaN"),
        (lambda lam: lam.sample_embeddings(NAN, 3), ValueError, "the first is row 3"),
        (lambda lam: LAM(lam.encoder, lam.loss).embed(IMAGES), NotFittedError, r"call fit\(loader\)"),
        (lambda lam: LAM(lam.encoder, lam.loss, "some"), ValueError, "'fixed'"),
        (lambda lam: LAM(lam.encoder, lam.loss, structure="some"), ValueError, "'lowrank'"),
        (lambda lam: LAM(lam.encoder, lam.loss, temperature=0), ValueError, "temperature is 0"),
        (lambda lam: LAM(lam.encoder, lam.loss, n_effective=-1), ValueError, "n_effective is -1"),
        (lambda lam: setattr(lam, "prior_precision", float("nan")), ValueError, "prior_precision is nan"),
        (lambda lam: LAM(lam.encoder, lam.loss, rank=0), ValueError, "rank is 0"),
        (lambda lam: LAM(lam.encoder, lam.loss, pairs="some"), ValueError, "pairs"),
        (lambda lam: lam.fit_features(H, LABELS, pair_tolerance=0), ValueError, "pair_tolerance"),
        (lambda lam: LAM(lam.encoder, UNSQUARED, pairs="estimate").fit_features(H, LABELS), ValueError, "power"),
        (lambda lam: lam.optimize_prior_precision("evidence"), ValueError, "method"),
        (lambda lam: lam.optimize_prior_precision("validation"), ValueError, "features"),
        (lambda lam: lam.optimize_prior_precision("validation", H, Pairs.from_labels(LABELS)), TypeError, "labels"),
        (lambda lam: LAM(lam.encoder, lam.loss).optimize_prior_precision(), NotFittedError, "fit"),
        (lambda lam: lam.recall_lost(H, Pairs.from_labels(LABELS)), TypeError, "labels"),
        (lambda lam: lam.embed_features(H[0]), ValueError, "features"),
        (lambda lam: lam.embed_features(LABELS[:, None]), TypeError, "features"),
        *((lambda lam, k=k: lam.embed_features(H, samples=k), ValueError, "samples") for k in (-1, 2.5)),
        *((lambda lam, k=k: lam.embed(IMAGES, samples=k), ValueError, "samples") for k in (-1, 2.5)),
        (lambda lam: lam.sample_weights(0), ValueError, "samples"),
        (lambda lam: lam.sample_embeddings(H, 0), ValueError, "samples"),
        *((lambda lam, make=make: make(NET, lam.loss), TypeError, "encoder") for make in MAKERS),
        *((lambda lam, make=make: make(lam.encoder, TRIPLET), TypeError, "loss") for make in MAKERS),
    ],
)  # fmt: skip
def test_refusals(call: Callable[[LAM], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(fitted())


@pytest.mark.parametrize("structure", ["lowrank", "kron", "full"])
def test_more_memory_than_there_is_is_refused_beforehand(
    structure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lam = LAM(network(LAYER), ContrastiveLoss(0.9), "fixed", structure)
    monkeypatch.setattr(accumulate, "memory_of", lambda device: 100.0)
    with pytest.raises(MemoryError, match=r"GiB, and cpu has 0.0: take .*structure"):
        lam.fit_features(LAYER.features, LAYER.labels)
    assert lam.fitted is None
    monkeypatch.undo()
    assert accumulate.memory_of(torch.device("cpu")) > 2**27


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("normalize", [True, False])
def test_a_curvature_beyond_the_dtype_is_refused_with_the_remedy(structure: str, normalize: bool) -> None:
    loss = ContrastiveLoss(0.9, distance="euclidean", normalize=normalize)
    lam = LAM(network(LAYER).float(), loss, "positive", structure)
    with pytest.raises(
        ValueError, match=r"(?i)divide the features by their standard deviation, or .* float64"
    ):
        lam.fit_features(1e25 * LAYER.features.float(), LAYER.labels)
    assert lam.fitted is None


@pytest.mark.parametrize("value", [0.0, 3.7])
@pytest.mark.parametrize("noise", [0.0, 1e-17])
def test_constant_features_are_named_as_the_cause(value: float, noise: float) -> None:
    features, loss = torch.full_like(H, value) + value * noise * H, ContrastiveLoss(0.9)
    for call in (
        lambda: LAM(network(LAYER), loss).fit_features(features, LABELS),
        lambda: train_head(features, LABELS, loss, 3, steps=1),
        lambda: whitening_head(features, 2),
    ):
        with pytest.raises(ValueError, match="features"):
            call()
    features[3, 2] += 1e-3  # one image that differs is enough to go on
    LAM(network(LAYER), loss).fit_features(features, LABELS)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_posterior_moves_with_its_encoder(structure: str) -> None:
    lam = LAM(network(LAYER), ContrastiveLoss(0.9), "positive", structure)
    lam.fit_features(LAYER.features, LAYER.labels)
    before, fingerprint = lam.embed_features(LAYER.features).kappa, lam.fingerprint()
    assert lam.to("cpu") is lam
    assert lam.fingerprint() == fingerprint
    assert torch.equal(lam.embed_features(LAYER.features).kappa, before)
    assert LAM(network(LAYER), ContrastiveLoss(0.9)).to("cpu").fitted is None
