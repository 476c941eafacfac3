"""Files of a LAM that are damaged, altered or something else's are refused, and nothing of them runs."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from laplacian_metric.encoder import save_encoder
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.laplace.storage import KEY, describe
from tests.laplace.stored_lam import a_lam, an_encoder


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
