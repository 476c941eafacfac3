"""Loading a LAM with its own encoder and loss; others are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss
from hessians.pair_loss import PairBlocks, PairLoss
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.encoder_posterior import EncoderChangedError
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.laplace.storage import describe
from tests.laplace.stored_lam import EUCLIDEAN, a_lam, an_encoder, inputs, same


def changed(change: Callable[[Encoder], object]) -> Encoder:
    encoder = an_encoder()
    with torch.no_grad():
        change(encoder)
    return encoder


def no_bias(encoder: Encoder) -> None:
    encoder.head.bias = None


def other_norm(encoder: Encoder) -> None:
    encoder.normalize = False


def wider(encoder: Encoder) -> None:
    encoder.backbone = nn.Linear(6, 10)
    encoder.head = nn.Linear(10, 3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda e: e.backbone[0].weight.add_(1e-3), "the backbone differs"),
        (lambda e: e.backbone[1].running_mean.add_(1e-3), "the backbone differs"),
        (lambda e: e.head.weight[0, 0].add_(1e-3), "only the head's weights differ"),
        (lambda e: [p.add_(1) for p in e.parameters()], "the backbone differs; the head's weights differ"),
        (no_bias, r"the head has another shape: \(3, 8\) with bias in the file, \(3, 8\) without bias here"),
        (
            wider,
            r"the backbone differs; the head has another shape: "
            r"\(3, 8\) with bias in the file, \(3, 10\) with bias here",
        ),
        (
            Encoder.double,
            r"the backbone differs; the dtype differs: torch\.float32 in the file, torch\.float64 here",
        ),
        (other_norm, "normalize is True in the file, False here"),
    ],
)
def test_another_encoder_is_refused_and_told_why(
    change: Callable[[Encoder], object], reason: str, tmp_path: Path
) -> None:
    a_lam().save(tmp_path / "lam")
    with pytest.raises(
        ValueError, match=rf"lam is the posterior of another encoder: {reason}\. Load it with"
    ):
        LAM.load(tmp_path / "lam", changed(change))


def test_an_encoder_without_weights_is_refused(tmp_path: Path) -> None:
    a_lam().save(tmp_path / "lam")
    with pytest.raises(ValueError, match="an encoder on the meta device, which has no weights"):
        LAM.load(tmp_path / "lam", an_encoder().to("meta"))


def test_a_default_device_makes_no_difference(tmp_path: Path) -> None:
    lam = a_lam(structure="full")
    encoder = an_encoder()
    with torch.device("meta"):
        lam.save(tmp_path / "lam")
        again = LAM.load(tmp_path / "lam", encoder)
    same(lam, again)


def test_an_encoder_that_changed_since_the_fit_is_not_saved(tmp_path: Path) -> None:
    lam = a_lam()
    lam.encoder.train()(inputs())  # moves the running statistics
    with pytest.raises(EncoderChangedError, match=r"the encoder is not the one any more .* fit again"):
        lam.save(tmp_path / "lam")
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Attraction(PairLoss):
    """|u_i - u_j|^2/2 for positives, nothing for negatives."""

    negative_weight: float = 0.5
    strength: float = 2.0

    def pair_values(self, first: Tensor, second: Tensor, positive: bool) -> Tensor:
        return self.strength * (first - second).square().sum(1) / 2 * positive

    def pair_blocks(self, first: Tensor, second: Tensor, positive: bool) -> PairBlocks:
        identity = torch.eye(first.shape[1], dtype=first.dtype).expand(len(first), -1, -1)
        own = self.strength * identity * positive
        return PairBlocks(own, -own, own)


class Plain(Attraction):
    """A subclass that says nothing of its settings."""


def test_a_loss_of_somebody_elses_is_passed(tmp_path: Path) -> None:
    lam = a_lam(loss=Attraction())
    lam.save(tmp_path / "lam")
    assert describe(tmp_path / "lam")["loss"]["class"] == "Attraction"
    with pytest.raises(
        ValueError, match=r"the loss Attraction, which is not this library's: pass it, LAM.load"
    ):
        LAM.load(tmp_path / "lam", an_encoder())
    same(lam, LAM.load(tmp_path / "lam", an_encoder(), loss=Attraction()))
    with pytest.raises(ValueError, match=r"another Attraction: strength 2.0, not 3.0"):
        LAM.load(tmp_path / "lam", an_encoder(), Attraction(strength=3.0))
    with pytest.raises(ValueError, match="the loss Attraction, but loss is a Plain"):
        LAM.load(tmp_path / "lam", an_encoder(), Plain())


def test_a_subclass_is_not_taken_for_the_known_class(tmp_path: Path) -> None:
    other = type("ContrastiveLoss", (ContrastiveLoss,), {})
    a_lam(loss=other()).save(tmp_path / "lam")
    with pytest.raises(ValueError, match="which is not this library's"):
        LAM.load(tmp_path / "lam", an_encoder())
    with pytest.raises(ValueError, match=r"but loss is a hessians\.ContrastiveLoss"):
        LAM.load(tmp_path / "lam", an_encoder(), ContrastiveLoss())


def test_the_known_loss_may_be_passed_too(tmp_path: Path) -> None:
    lam = a_lam()
    lam.save(tmp_path / "lam")
    same(lam, LAM.load(tmp_path / "lam", an_encoder(), EUCLIDEAN))
    with pytest.raises(ValueError, match=r"margin 0.9, not 0.7"):
        LAM.load(tmp_path / "lam", an_encoder(), replace(EUCLIDEAN, margin=0.7))
