"""Online LAM: mistakes are named where they are made, and what is not finite changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.online import OnlineLAM
from laplacian_metric.laplace.posthoc import NotFittedError
from tests.laplace.online_cases import LOSS, a_batch, an_encoder, an_online, float64


class Elsewhere:
    """A generator of another device."""

    device = torch.device("cuda")


def with_optimizer(make: type[torch.optim.Optimizer], trained: Encoder, frozen: bool = False) -> OnlineLAM:
    encoder = an_encoder().requires_grad_(not frozen)
    return OnlineLAM(encoder, make(trained.parameters(), lr=0.1), LOSS, 10)


def step(images: Tensor, labels: Any, **options: Any) -> float:
    return an_online(**options).step(images, labels)


FOUR = torch.zeros(4, 6, dtype=float64)
SGD, LBFGS = torch.optim.SGD, torch.optim.LBFGS


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: an_online(num_images=None), ValueError, "num_images"),
        (lambda: an_online(num_images=0), ValueError, "num_images"),
        (lambda: an_online(num_images=2.5), ValueError, "num_images"),
        (lambda: an_online(n_effective=-1.0), ValueError, "n_effective"),
        (lambda: an_online(temperature=0.0), ValueError, "temperature"),
        (lambda: an_online(prior_precision=float("nan")), ValueError, "prior_precision"),
        (lambda: an_online(memory=0.0), ValueError, "memory"),
        (lambda: an_online(memory=1.5), ValueError, "memory"),
        (lambda: an_online(memory="long"), ValueError, "memory"),
        (lambda: an_online(samples=0), ValueError, "samples"),
        (lambda: an_online(warmup=-1), ValueError, "warmup"),
        (lambda: an_online(approximation="half"), ValueError, "approximation"),
        (lambda: an_online(structure="kron"), ValueError, "structure"),
        (lambda: an_online(structure="dense"), ValueError, "structure"),
        (lambda: an_online(generator=Elsewhere()), ValueError, "generator"),
        (lambda: with_optimizer(SGD, an_encoder()), ValueError, r"encoder\.head\.weight"),
        (lambda: with_optimizer(LBFGS, an_encoder()), TypeError, "optimizer"),
        (lambda: with_optimizer(SGD, an_encoder(), frozen=True), ValueError, r"head\.weight"),
        (lambda: an_online().posterior(), NotFittedError, "step"),
        (lambda: an_online().load_state_dict({"encoder": {}}), ValueError, "state"),
        (lambda: step(FOUR.to(torch.uint8), torch.arange(4)), TypeError, "images"),
        (lambda: step(FOUR, torch.arange(3)), ValueError, "labels"),
        (lambda: step(FOUR[:0], torch.arange(0)), ValueError, "batch"),
        (lambda: step(FOUR, torch.rand(4)), TypeError, "labels"),
        (lambda: step(FOUR, torch.zeros(4, 1).long()), ValueError, "labels"),
        (lambda: step(FOUR, Pairs.from_labels([0, 1])), ValueError, "pairs"),
        (lambda: step(*a_batch()[:1], Pairs.from_labels(a_batch()[1]), miner=lambda z, y: ()), TypeError, "miner"),
    ],
)  # fmt: skip
def test_bad_inputs(call: Callable[[], object], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        call()


def unchanged(online: OnlineLAM, images: Tensor, labels: Tensor, message: str) -> None:
    """A third step raises, names itself, and leaves weights, optimizer and running averages as they were."""
    for step in range(2):
        online.step(*a_batch(seed=step))
    before = copy.deepcopy(online.state_dict())
    fingerprint = online.encoder.fingerprint()
    with pytest.raises(ValueError, match=rf"step 3: {message}.*Weights and curvature are as they were"):
        online.step(images, labels)
    assert online.encoder.fingerprint() == fingerprint
    after = online.state_dict()
    for part in ("running", "optimizer", "generator"):
        torch.testing.assert_close(after[part], before[part], rtol=0, atol=0)
    assert online.step(*a_batch(seed=4)) > 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_images_that_are_not_finite_change_nothing(value: float) -> None:
    images, labels = a_batch(seed=3)
    images[5, 0] = value
    encoder = Encoder(nn.Sequential(nn.Linear(6, 5, dtype=float64)), nn.Linear(5, 3, dtype=float64))
    unchanged(an_online(encoder=encoder), images, labels, "1 of 12 embeddings have NaN or infinite entries")


class Odd(ContrastiveLoss):
    """A loss that is not finite when the first image is labelled so; ``at`` says where."""

    at = "value"

    def __call__(self, u: Tensor, pairs: Pairs) -> Tensor:
        value = super().__call__(u, pairs)
        if pairs.num_negatives:
            return value
        return value * float("nan") if self.at == "value" else value + (u.sum() * 0).sqrt()


class OddGradient(Odd):
    at = "gradient"


@pytest.mark.parametrize(
    ("loss", "message"),
    [(Odd(), "the loss is nan"), (OddGradient(), "the gradient has NaN or infinite entries")],
)
def test_a_loss_or_gradient_that_is_not_finite_changes_nothing(loss: ContrastiveLoss, message: str) -> None:
    unchanged(an_online(loss=loss), a_batch(seed=3)[0], torch.zeros(12, dtype=torch.long), message)


def test_a_curvature_that_overflows_changes_nothing() -> None:
    """Features whose squares do not fit into their dtype."""
    encoder = Encoder(
        nn.Linear(6, 5, bias=False, dtype=float64), nn.Linear(5, 3, dtype=float64), normalize=False
    )
    loss = ContrastiveLoss(margin=1e-3, distance="euclidean", normalize=False)
    online = an_online(rate=0.0, encoder=encoder, loss=loss, warmup=10**6)
    images, labels = a_batch(seed=3)
    images = images.clone()
    images[1:] = images[0] * 1e160
    images[0] = images[1]
    unchanged(online, images, labels, "the curvature has NaN or infinite entries")
