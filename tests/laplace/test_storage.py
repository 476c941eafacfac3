"""Saving and loading a fitted LAM: bit for bit, whole or not at all, and for its own encoder only."""

from __future__ import annotations

import errno
import json
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hessians import ContrastiveLoss
from hessians.pair_loss import PairBlocks, PairLoss
from laplacian_metric.encoder import Encoder, save_encoder
from laplacian_metric.laplace import storage
from laplacian_metric.laplace.encoder_guard import EncoderChangedError
from laplacian_metric.laplace.layer import Structure
from laplacian_metric.laplace.posthoc import LAM, NotFittedError
from laplacian_metric.laplace.storage import KEY, describe

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
    encoder = an_encoder() if encoder is None else encoder
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
    assert a is not None
    assert b is not None
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
    assert (one.loss, one.approximation, one.structure, one.rank) == (
        other.loss, other.approximation, other.structure, other.rank,
    )  # fmt: skip
    assert one.diagnostics() == other.diagnostics()


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


# --- other encoders and other losses ---


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


# --- broken files ---


def rewritten(path: Path, change: Callable[[dict[str, Any]], object], **tensors: Tensor | None) -> Path:
    """A copy with another header and other tensors; None leaves one out."""
    with safe_open(path, "pt") as opened:
        header = json.loads(opened.metadata()[KEY])
    change(header)
    kept = {name: x for name, x in {**load_file(path), **tensors}.items() if x is not None}
    other = path.with_name("changed")
    save_file(kept, other, metadata={KEY: json.dumps(header)})
    return other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.update(format=2), "changed has format 2, .* update"),
        (lambda h: h.pop("format"), "changed has no format number"),
        (lambda h: h.update(format="1"), "changed has no format number"),
        (lambda h: h.pop("fit"), "the header of changed: fit is missing"),
        (lambda h: h["fit"].pop("clamped"), "the header of changed: fit.clamped is missing"),
        (lambda h: h["fit"].update(num_images="60"), "the header of changed: fit.num_images is '60'"),
        (lambda h: h["fit"].update(loss_value=float("nan")), "the header of changed is .*NaN"),
        (lambda h: h["settings"].update(temperature=-1.0), "changed cannot be loaded: temperature is -1.0"),
        (lambda h: h["settings"].update(n_effective=10**400), "the header of changed: settings.n_effective"),
        (lambda h: h["settings"].update(structure="dense"), "changed cannot be loaded: structure is 'dense'"),
        (lambda h: h["settings"].update(structure="kron"), "changed cannot be loaded: its tensors are diagonal"),
        (lambda h: h["settings"].update(encoder=1), "the header of changed: settings has no key 'encoder'"),
        (lambda h: h["loss"]["fields"].update(margin="wide"), "changed cannot be loaded: '>' not supported"),
        (lambda h: h["loss"]["fields"].update(system="rm"), "changed cannot be loaded: .*system"),
        (lambda h: h["loss"].update({"class": "os.system"}), "the loss os.system, which is not this library's"),
        (lambda h: h["orders"].update(gradient=[0, 0]), r"orders.gradient in the header of changed is \[0, 0\]"),
        (lambda h: h["orders"].update(other=[0]), "changed lacks tensors"),
    ],
)  # fmt: skip
def test_a_header_that_cannot_be(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    a_lam().save(tmp_path / "lam")
    with pytest.raises(ValueError, match=message):
        LAM.load(rewritten(tmp_path / "lam", change), an_encoder())


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"curvature.diagonal": torch.full((3, 9), torch.nan)}, "curvature.diagonal has 27 NaN .* changed is damaged"),
        ({"gradient": torch.full((3, 9), torch.inf)}, "gradient has 27 NaN or infinite entries: changed is damaged"),
        ({"gradient": None}, "changed lacks tensors that a LAM has"),
        ({"gradient": torch.zeros(3, 8)}, r"changed cannot be loaded: gradient has shape \(3, 8\), \(3, 9\) is needed"),
        ({"curvature.diagonal": torch.ones(9, 3)}, r"diagonal has shape \(9, 3\), \(3, 9\) is needed"),
        ({"curvature.diagonal": torch.ones(3, 9).int()}, "diagonal has dtype torch.int32"),
        ({"curvature.clamped": torch.ones(3, 9)}, "its tensors are clamped, diagonal, diagonal are needed"),
    ],
)  # fmt: skip
def test_tensors_that_cannot_be(tensors: dict[str, Tensor | None], message: str, tmp_path: Path) -> None:
    a_lam().save(tmp_path / "lam")
    with pytest.raises(ValueError, match=message):
        LAM.load(rewritten(tmp_path / "lam", lambda header: None, **tensors), an_encoder())


def test_the_outputs_of_a_full_matrix_are_not_believed(tmp_path: Path) -> None:
    a_lam(structure="full").save(tmp_path / "lam")
    for wrong in (0, 9):
        path = rewritten(
            tmp_path / "lam", lambda header: None, **{"curvature.num_outputs": torch.tensor(wrong)}
        )
        with pytest.raises(ValueError, match=f"num_outputs is {wrong}, 3 is needed"):
            LAM.load(path, an_encoder())


def test_a_part_of_a_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    a_lam().save(tmp_path / "lam")
    whole = (tmp_path / "lam").read_bytes()
    for length in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "part").write_bytes(whole[:length])
        for read in (describe, lambda path: LAM.load(path, an_encoder())):
            with pytest.raises(ValueError, match="part is no whole safetensors file"):
                read(tmp_path / "part")


class Bomb:
    """Unpickled, it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_foreign_files_are_refused_and_nothing_of_them_runs(tmp_path: Path) -> None:
    (tmp_path / "pickle").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    torch.save({"a": Bomb(tmp_path / "ran")}, tmp_path / "torch")
    for name in ("pickle", "torch"):
        with pytest.raises(ValueError, match=f"{name} is no whole safetensors file"):
            LAM.load(tmp_path / name, an_encoder())
    save_file({"a": torch.ones(2)}, tmp_path / "foreign")
    with pytest.raises(ValueError, match=r"foreign was not written by LAM\.save$"):
        LAM.load(tmp_path / "foreign", an_encoder())
    save_encoder(an_encoder(), tmp_path / "encoder")
    with pytest.raises(ValueError, match=r"it holds an encoder: Encoder.from_checkpoint reads it"):
        describe(tmp_path / "encoder")
    save_file({"a": torch.ones(2)}, tmp_path / "deep", metadata={KEY: "[" * 100_000})
    with pytest.raises(ValueError, match=r"the header of deep is .*no JSON"):
        describe(tmp_path / "deep")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing"):
        LAM.load(tmp_path / "nothing", an_encoder())
    with pytest.raises(IsADirectoryError, match="is a folder"):
        LAM.load(tmp_path, an_encoder())
    assert not (tmp_path / "ran").exists()


# --- writing ---


def test_without_a_fit_there_is_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="call fit"):
        LAM(an_encoder(), EUCLIDEAN).save(tmp_path / "lam")
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_none_are_not_saved(tmp_path: Path) -> None:
    lam = a_lam()
    fitted = lam.fitted
    assert fitted is not None
    lam.fitted = replace(fitted, gradient=fitted.gradient * float("nan"))
    with pytest.raises(ValueError, match="gradient has 27 NaN or infinite entries: fit again"):
        lam.save(tmp_path / "lam")
    lam.fitted = fitted
    fitted.curvature.tensors()["diagonal"][0, 0] = float("inf")
    with pytest.raises(ValueError, match=r"curvature\.diagonal has 1 NaN or infinite entries: fit again"):
        lam.save(tmp_path / "lam")
    lam = a_lam()
    lam.fitted = replace(
        fitted, curvature=lam.posterior and a_lam().fitted.curvature, loss_value=float("inf")
    )  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"fit.loss_value is inf"):
        lam.save(tmp_path / "lam")
    assert list(tmp_path.iterdir()) == []


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("target", ["laplacian_metric.core.tensor_file.bytes_of", "os.fsync"])
def test_a_full_disk_leaves_the_old_file(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lam"
    a_lam().save(path)
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(target, full_disk)
        for name in ("lam", "new"):
            with pytest.raises(OSError, match="No space left"):
                a_lam(temperature=2.0).save(tmp_path / name)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    a_lam(temperature=2.0).save(path)
    assert describe(path)["settings"]["temperature"] == 2.0


def test_a_file_system_that_takes_no_more_leaves_the_old_file(root: Path, tmp_path: Path) -> None:
    """For real: the process may write no file beyond 600 bytes."""
    path = tmp_path / "lam"
    a_lam().save(path)
    before = path.read_bytes()
    assert len(before) > 1000
    code = (
        "import resource, sys\n"
        "from tests.laplace.test_storage import a_lam\n"
        "lam = a_lam(temperature=2.0)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))\n"
        "try:\n    lam.save(sys.argv[1])\n"
        "except Exception as error:\n    sys.exit(f'refused: {type(error).__name__}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=root, capture_output=True, text=True, check=False
    )
    assert "refused: " in done.stderr
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 600


def test_without_safetensors_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lam = a_lam()
    lam.save(tmp_path / "lam")
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    for use in (describe, lambda path: LAM.load(path, lam.encoder)):
        with pytest.raises(ImportError, match="pip install safetensors"):
            use(tmp_path / "lam")
