"""Saving and loading a fitted LAM, bit for bit, and what a file says about itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hessians import ContrastiveLoss
from hessians.pair_loss import PairLoss
from laplacian_metric.laplace import storage
from laplacian_metric.laplace.layer import Structure
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.laplace.storage import describe
from tests.laplace.stored_lam import EUCLIDEAN, UNNORMALISED, a_lam, an_encoder, same


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
    assert lam.fitted is not None
    assert lam.fitted.bias_is_random == (bias and loss is not UNNORMALISED)
    lam.save(tmp_path / "lam.safetensors")
    again = LAM.load(tmp_path / "lam.safetensors", an_encoder(bias, dtype))
    same(lam, again)
    for going_on in (lam, again):
        going_on.temperature = 3.0
    assert lam.optimize_prior_precision() == again.optimize_prior_precision()
    same(lam, again)
    again.save(tmp_path / "again.safetensors")
    same(again, LAM.load(tmp_path / "again.safetensors", again.encoder))


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
    stored = describe(tmp_path / "lam")["settings"]
    assert stored == {
        "approximation": "fixed", "structure": "diag", "rank": 50, "n_effective": None, "temperature": 1.0,
        "prior_precision": None, "weight_decay": None, "pairs": "auto", **settings,
    }  # fmt: skip
    again = LAM.load(tmp_path / "lam", an_encoder())
    assert (again.n_effective, again.prior_precision) == (lam.n_effective, lam.prior_precision)
    lam.n_effective = again.n_effective = 7.0
    assert again.prior_precision == lam.prior_precision


def test_two_files_of_one_lam_are_the_same_bytes(tmp_path: Path) -> None:
    lam = a_lam(structure="kron")
    for name in ("one", "two"):
        lam.save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_the_file_is_described_without_reading_its_tensors(tmp_path: Path) -> None:
    lam = a_lam(structure="lowrank", rank=2)
    assert lam.fitted is not None
    lam.save(tmp_path / "lam")
    description = describe(str(tmp_path / "lam"))
    assert description["format"] == 1
    assert description["loss"] == {
        "class": "hessians.ContrastiveLoss",
        "fields": {
            "margin": 0.9, "distance": "euclidean", "negative_weight": 0.25, "normalize": True, "negatives": "all",
            "power": 2,
        },
    }  # fmt: skip
    assert description["tensors"] == {
        "curvature.factor": {"shape": [2, 3, 9], "dtype": "F32"},
        "curvature.rest": {"shape": [3, 9], "dtype": "F32"},
        "gradient": {"shape": [3, 9], "dtype": "F32"},
    }
    assert description["fit"]["num_images"] == 60
    assert description["fit"]["num_positives"] == lam.fitted.num_positives
    assert description["encoder"]["fingerprint"] == lam.encoder.fingerprint()
    assert description["versions"]["torch"] == torch.__version__
    json.dumps(description, allow_nan=False)
    # Zeros for all numbers, and the header is what it was.
    size = int.from_bytes((tmp_path / "lam").read_bytes()[:8], "little") + 8
    whole = (tmp_path / "lam").read_bytes()
    (tmp_path / "zeros").write_bytes(whole[:size] + bytes(len(whole) - size))
    assert describe(tmp_path / "zeros") == description


def test_shapes_are_described_as_they_are_not_as_they_lie(tmp_path: Path) -> None:
    lam = a_lam()
    assert lam.fitted is not None
    lam.fitted = replace(lam.fitted, gradient=lam.fitted.gradient.T.contiguous().T)
    lam.save(tmp_path / "lam")
    assert describe(tmp_path / "lam")["tensors"]["gradient"]["shape"] == [3, 9]
    again = LAM.load(tmp_path / "lam", lam.encoder)
    assert again.fitted is not None
    assert torch.equal(again.fitted.gradient, lam.fitted.gradient)


def test_three_dimensions_in_any_order() -> None:
    tensor = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)
    packed, order = storage._packed(tensor)
    assert packed.is_contiguous()
    assert order == [1, 2, 0]
    again = storage._unpacked(packed, order)
    assert torch.equal(again, tensor)
    assert again.stride() == tensor.stride()
