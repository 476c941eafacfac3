"""Saving and loading a fitted LAM, bit for bit, with its own encoder and loss; others are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss
from hessians.pair_loss import PairBlocks, PairLoss
from laplacian_metric.core.artifact import ArtifactError, MissingArtifactError, read_manifest
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.encoder_posterior import EncoderChangedError
from laplacian_metric.laplace.layer import Structure
from laplacian_metric.laplace.posthoc import LAM, NotFittedError
from laplacian_metric.laplace.storage import TENSORS, LamManifest
from tests.laplace.stored_lam import EUCLIDEAN, UNNORMALISED, a_lam, an_encoder, inputs, same
from tests.manifests import content, rewrite, version


@pytest.mark.parametrize("structure", list(Structure))
@pytest.mark.parametrize(
    ("bias", "loss", "approximation", "dtype"),
    [
        (True, EUCLIDEAN, "fixed", torch.float32),
        (True, ContrastiveLoss(negatives="active"), "positive", torch.float64),
        (False, EUCLIDEAN, "full", torch.float32),
        (True, UNNORMALISED, "positive", torch.float32),  # the bias is not random
        (False, EUCLIDEAN, "clipped", torch.float64),
        (True, ContrastiveLoss(margin=0.9, power=1), "fixed", torch.float64),
    ],
)
def test_what_is_loaded_is_what_was_saved(
    structure: Structure,
    bias: bool,
    loss: PairLoss,
    approximation: str,
    dtype: torch.dtype,
    tmp_path: Path,
) -> None:
    if structure is Structure.KRONECKER and approximation == "full":
        approximation = "fixed"  # "full" has no Kronecker factors
    lam = a_lam(an_encoder(bias, dtype), loss, structure=structure, approximation=approximation, rank=4)
    assert lam.fitted.bias_is_random == (bias and loss is not UNNORMALISED)
    lam.save(tmp_path / "lam")
    again = LAM.load(tmp_path / "lam", an_encoder(bias, dtype))
    same(lam, again)
    for going_on in (lam, again):
        going_on.temperature = 3.0
    assert lam.optimize_prior_precision() == again.optimize_prior_precision()
    same(lam, again)
    again.save(tmp_path / "lam")  # in place of the first
    same(again, LAM.load(tmp_path / "lam", again.encoder))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_effective": 12.5, "temperature": 0.1, "prior_precision": 1e-7, "weight_decay": 1e-4},
        {"weight_decay": 0.1 + 0.2},
    ],
)
def test_settings_stay_as_they_were_given(settings: dict[str, float], tmp_path: Path) -> None:
    """None stays None: what is left open goes on to follow the data and the weight decay."""
    lam = a_lam(**settings)
    lam.save(tmp_path / "lam")
    assert read_manifest(tmp_path / "lam", LamManifest).options == lam.options
    again = LAM.load(tmp_path / "lam", an_encoder())
    assert (again.n_effective, again.prior_precision) == (lam.n_effective, lam.prior_precision)
    lam.n_effective = again.n_effective = 7.0
    assert again.prior_precision == lam.prior_precision


def test_a_default_device_makes_no_difference(tmp_path: Path) -> None:
    lam = a_lam(structure="full")
    encoder = an_encoder()
    with torch.device("meta"):
        lam.save(tmp_path / "lam")
        again = LAM.load(tmp_path / "lam", encoder)
    same(lam, again)


# --- what is refused ---


def test_what_is_not_saved(tmp_path: Path) -> None:
    lam = a_lam()
    moved, none, infinite = a_lam(), a_lam(), a_lam()
    moved.encoder.train()(inputs())  # moves the running statistics
    none.fitted = replace(lam.fitted, gradient=lam.fitted.gradient * float("nan"))
    infinite.fitted = replace(lam.fitted, loss_value=float("inf"))
    for case, error in (
        (LAM(an_encoder(), EUCLIDEAN), NotFittedError),
        (moved, EncoderChangedError),
        (none, ValueError),
        (infinite, ValueError),
    ):
        with pytest.raises(error):
            case.save(tmp_path / "lam")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"fit": ...},
        {"fit": {"num_images": 3}},
        {"options": {"temperature": -1.0}},
        {"options": {"structure": "dense"}},
        {"options": {"structure": "kron"}},
        {"options": {"encoder": 1}},
        {"loss": {"kind": "hessians.ContrastiveLoss", "fields": {"margin": "wide"}}},
        {"loss": {"kind": "hessians.ContrastiveLoss", "fields": {"system": "rm"}}},
        {"loss": {"kind": "os.system", "fields": None}},
        {"encoder": {}},
        {"format": "laplacian_metric model"},
    ],
)
def test_manifests_that_cannot_be(changes: dict[str, Any], tmp_path: Path) -> None:
    a_lam().save(tmp_path / "lam")
    rewrite(tmp_path / "lam", **changes)
    with pytest.raises((ValueError, TypeError)):
        LAM.load(tmp_path / "lam", an_encoder())


def test_tensors_that_cannot_be(tmp_path: Path) -> None:
    a_lam(outputs=4).save(tmp_path / "other")
    for name in ("lam", "full"):
        a_lam(structure="full" if name == "full" else "diag").save(tmp_path / name)
    for source in ("other", "full"):
        path = version(tmp_path / "lam") / TENSORS
        path.write_bytes((version(tmp_path / source) / TENSORS).read_bytes())
        files = content(tmp_path / source)["files"]
        rewrite(tmp_path / "lam", files=files)
        with pytest.raises(ArtifactError, match="lam"):
            LAM.load(tmp_path / "lam", an_encoder())
    with pytest.raises(MissingArtifactError):
        LAM.load(tmp_path / "nothing", an_encoder())


def no_bias(encoder: Encoder) -> None:
    encoder.head.bias = None


def other_norm(encoder: Encoder) -> None:
    encoder.normalize = False


def wider(encoder: Encoder) -> None:
    encoder.backbone = nn.Linear(6, 10)
    encoder.head = nn.Linear(10, 3)


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        (lambda e: e.backbone[0].weight.add_(1e-3), "backbone"),
        (lambda e: e.head.weight.add_(1e-3), "head"),
        (lambda e: e.backbone[1].running_mean.add_(1), "backbone"),
        (lambda e: e.double(), "backbone, head, dtype"),
        (no_bias, "head, bias"),
        (other_norm, "normalize"),
        (wider, "backbone, head, features"),
    ],
)
def test_other_encoders_are_refused_by_what_differs(
    change: Callable[[Encoder], object], differing: str, tmp_path: Path
) -> None:
    a_lam().save(tmp_path / "lam")
    encoder = an_encoder()
    with torch.no_grad():
        change(encoder)
    with pytest.raises(ValueError, match=differing):
        LAM.load(tmp_path / "lam", encoder)
    with pytest.raises(ValueError, match="meta"):
        LAM.load(tmp_path / "lam", an_encoder().to("meta"))


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


@pytest.mark.parametrize(
    ("loss", "right", "wrong"),
    [
        (Attraction(), Attraction(), (None, Attraction(strength=3.0), Plain())),
        (type("ContrastiveLoss", (ContrastiveLoss,), {})(), None, (None, ContrastiveLoss())),
        (EUCLIDEAN, EUCLIDEAN, (replace(EUCLIDEAN, margin=0.7),)),
    ],
)
def test_a_loss_that_is_passed_is_the_one(
    loss: PairLoss, right: PairLoss | None, wrong: tuple[PairLoss | None, ...], tmp_path: Path
) -> None:
    lam = a_lam(loss=loss)
    lam.save(tmp_path / "lam")
    for other in wrong:
        with pytest.raises(ValueError, match="loss"):
            LAM.load(tmp_path / "lam", an_encoder(), other)
    if right is not None:
        same(lam, LAM.load(tmp_path / "lam", an_encoder(), right))
