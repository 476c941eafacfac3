"""A fitted LAM on random images of five classes, to be saved and loaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss
from hessians.pair_loss import PairLoss
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.posthoc import LAM

EUCLIDEAN = ContrastiveLoss(margin=0.9, distance="euclidean", negative_weight=0.25)
UNNORMALISED = ContrastiveLoss(distance="euclidean", normalize=False)


def an_encoder(bias: bool = True, dtype: torch.dtype = torch.float32, outputs: int = 3) -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
        return Encoder(backbone, nn.Linear(8, outputs, bias=bias)).to(dtype).eval()


def inputs(count: int = 60, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def a_lam(encoder: Encoder | None = None, loss: PairLoss = EUCLIDEAN, **options: Any) -> LAM:
    """Fitted to random images of five classes."""
    encoder = an_encoder(outputs=options.pop("outputs", 3)) if encoder is None else encoder
    x = inputs(dtype=encoder.head.weight.dtype)
    with torch.no_grad():
        features = encoder.features(x)
    lam = LAM(encoder, loss, **options)
    generator = torch.Generator().manual_seed(2)
    return lam.fit_features(
        features, torch.arange(60) % 5, batch_size=20, generator=generator, check_mode=False
    )


def same(one: LAM, other: LAM) -> None:
    """Bit for bit: embeddings, samples, and everything that was measured."""
    x = inputs(7, one.encoder.head.weight.dtype)
    embedded = [lam.embed(x, samples=3, generator=torch.Generator().manual_seed(5)) for lam in (one, other)]
    for name in ("point", "mean", "kappa", "uncertainty", "samples", "variance"):
        assert torch.equal(*(getattr(e, name) for e in embedded)), name
    a, b = one.fitted, other.fitted
    for name in (
        "num_images", "num_positives", "num_negatives", "num_batches", "loss_value", "bias_is_random", "fingerprint",
        "length",
    ):  # fmt: skip
        assert getattr(a, name) == getattr(b, name), name
    assert torch.equal(a.gradient, b.gradient)
    assert a.curvature.clamped == b.curvature.clamped
    assert a.curvature.dtype == b.curvature.dtype
    for name, tensor in a.curvature.tensors().items():
        assert torch.equal(tensor, b.curvature.tensors()[name]), name
        assert tensor.stride() == b.curvature.tensors()[name].stride(), name
    assert (one.loss, one.options) == (other.loss, other.options)
    assert one.diagnostics() == other.diagnostics()
