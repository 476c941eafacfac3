"""Whether an encoder is still the one that a posterior is of, without reading its weights every time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric import LAM, Encoder
from laplacian_metric.laplace.encoder_posterior import EncoderChangedError, EncoderPosterior, FittedData
from laplacian_metric.laplace.options import LamOptions
from tests.laplace.fit_reference import Layer, network


def encoder() -> Encoder:
    backbone = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    return Encoder(backbone, nn.Linear(5, 3))


def posterior(watched: Encoder) -> EncoderPosterior[FittedData, LamOptions]:
    """What is common to posteriors, as it is after a fit of this encoder."""
    guard: EncoderPosterior[FittedData, LamOptions] = EncoderPosterior(
        watched, ContrastiveLoss(), LamOptions()
    )
    guard.fitted = FittedData(
        num_images=2,
        num_positives=1,
        num_negatives=0,
        num_batches=1,
        loss_value=0.0,
        fingerprint=guard.encoder_fingerprint(),
    )
    return guard


@torch.no_grad()
def write_in_place(watched: Encoder) -> None:
    watched.head.weight[0, 0] += 1


def sgd(watched: Encoder) -> None:
    watched(torch.randn(8, 6)).sum().backward()
    torch.optim.SGD(watched.parameters(), lr=0.1).step()


CHANGES: dict[str, Callable[[Encoder], object]] = {
    "batch statistics": lambda watched: watched.train()(torch.randn(8, 6)),
    "norm": lambda watched: setattr(watched, "normalize", False),
    "in place": write_in_place,
    "data": lambda watched: setattr(watched.head.weight, "data", watched.head.weight.data + 1),
    "layer": lambda watched: setattr(watched.backbone, "0", nn.Linear(6, 5)),
    "step": sgd,
    "dtype": lambda watched: watched.double(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_an_encoder(change: Callable[[Encoder], None]) -> None:
    watched = encoder()
    guard = posterior(watched)
    guard.check_encoder()
    change(watched)
    for _ in range(2):
        with pytest.raises(EncoderChangedError, match="fit again, or load the weights that it had"):
            guard.check_encoder()
    posterior(watched).check_encoder()
    assert guard.encoder_fingerprint() == watched.fingerprint()


def test_what_does_not() -> None:
    """Gradients, modes, new storage with the same numbers; weights that come back."""
    watched = encoder().eval()
    guard = posterior(watched)
    watched(torch.randn(8, 6)).sum().backward()
    watched.train().eval().requires_grad_(False)
    guard.check_encoder()
    state = {name: tensor.clone() for name, tensor in watched.state_dict().items()}
    watched.load_state_dict(state)
    guard.check_encoder()
    write_in_place(watched)
    watched.load_state_dict(state)
    guard.check_encoder()


def test_the_weights_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for every embedding; and they are read for a posterior that came from elsewhere."""
    layer = Layer.random(20, 5, 3)
    lam = LAM(network(layer), ContrastiveLoss()).fit_features(layer.features, layer.labels, check_mode=False)
    other = LAM(lam.encoder, lam.loss)
    other.fitted = lam.fitted
    reads, read = [], Encoder.fingerprint
    monkeypatch.setattr(Encoder, "fingerprint", lambda self: reads.append(1) or read(self))
    for posterior, times in ((lam, 0), (other, 1)):
        for _ in range(3):
            posterior.embed_features(layer.features)
        assert len(reads) == times


def test_tensors_of_inference_mode() -> None:
    with torch.inference_mode():
        watched = encoder()
    posterior(watched).check_encoder()
