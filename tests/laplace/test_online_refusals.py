"""Online LAM: mistakes are named where they are made, and what is not finite changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.online import OnlineLAM
from laplacian_metric.laplace.posthoc import NotFittedError
from tests.laplace.online_cases import LOSS, a_batch, an_encoder, an_online, float64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_images": None}, r"num_images is missing: .* num_images=len\(dataset\)"),
        ({"num_images": 0}, "num_images"),
        ({"num_images": 2.5}, "num_images"),
        ({"n_effective": -1.0}, "n_effective"),
        ({"temperature": 0.0}, "temperature"),
        ({"prior_precision": float("nan")}, "prior_precision"),
        ({"memory": 0.0}, "memory"),
        ({"memory": 1.5}, "memory"),
        ({"memory": "long"}, "memory"),
        ({"samples": 0}, "samples"),
        ({"warmup": -1}, "warmup"),
        ({"approximation": "half"}, "approximation"),
        (
            {"structure": "kron"},
            "structure",
        ),
        ({"structure": "dense"}, "structure is 'dense', one of"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        an_online(**options)


def test_optimizers_that_do_not_fit_are_refused() -> None:
    encoder, other = an_encoder(), an_encoder()
    with pytest.raises(
        ValueError, match=r"does not train encoder\.head\.weight: make it with encoder\.parameters"
    ):
        OnlineLAM(encoder, torch.optim.SGD(other.parameters(), lr=0.1), LOSS, 10)
    with pytest.raises(TypeError, match="optimizer is an LBFGS"):
        OnlineLAM(encoder, torch.optim.LBFGS(encoder.parameters()), LOSS, 10)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    encoder.head.requires_grad_(False)
    with pytest.raises(ValueError, match=r"head\.weight requires no gradient"):
        OnlineLAM(encoder, optimizer, LOSS, 10)


def test_no_posterior_before_a_step() -> None:
    with pytest.raises(NotFittedError, match=r"has taken no step yet: call step\(images, labels\)"):
        an_online().posterior()


@pytest.mark.parametrize(
    ("images", "labels", "error", "message"),
    [
        (torch.zeros(4, 6, dtype=torch.uint8), torch.arange(4), TypeError, "images has dtype torch.uint8"),
        (
            torch.zeros(4, 6, dtype=float64),
            torch.arange(3),
            ValueError,
            "labels has 3 entries for a batch of 4 images",
        ),
        (torch.zeros(0, 6, dtype=float64), torch.arange(0), ValueError, "the batch is empty: leave it out"),
        (
            torch.zeros(4, 6, dtype=float64),
            torch.rand(4),
            TypeError,
            "labels has dtype torch.float32",
        ),
        (
            torch.zeros(4, 6, dtype=float64),
            torch.zeros(4, 1).long(),
            ValueError,
            r"labels has shape \(4, 1\)",
        ),
        (
            torch.zeros(4, 6, dtype=float64),
            Pairs.from_labels([0, 1]),
            ValueError,
            "the pairs are over 2 images for a batch of 4 images",
        ),
    ],
)
def test_batches_are_checked(images: Tensor, labels: Any, error: type[Exception], message: str) -> None:
    online = an_online()
    with pytest.raises(error, match=message):
        online.step(images, labels)
    assert online.steps == 0


def test_a_miner_needs_labels() -> None:
    online = an_online(miner=lambda z, y: ())
    images, labels = a_batch()
    with pytest.raises(TypeError, match=r"labels are pairs, but a miner .* pass the labels"):
        online.step(images, Pairs.from_labels(labels))


def test_a_generator_of_another_device_is_refused() -> None:
    class Elsewhere:
        device = torch.device("cuda")

    with pytest.raises(ValueError, match=r"generator is on cuda, the head's weights are on cpu"):
        an_online(generator=Elsewhere())


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
