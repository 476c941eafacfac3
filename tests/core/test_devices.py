"""What can be tried of GPUs without one: which is chosen, what float64 is replaced by, and how batches get there."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from hessians import ContrastiveLoss, checks
from hessians.checks import exact_device
from laplacian_metric import LAM, Encoder
from laplacian_metric.cli.options import checked_device
from laplacian_metric.core.batch import best_device
from laplacian_metric.training import loop
from laplacian_metric.vmf.checks import precise
from tests.training.cases import Case


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu"), (True, False, "cuda")],
)
def test_auto_takes_a_gpu_where_there_is_one(
    cuda: bool, mps: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert best_device().type == checked_device("auto").type == expected


def test_a_device_that_is_not_there_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match="take cpu, or auto"):
        checked_device("cuda:7")


def test_posteriors_are_computed_where_there_is_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exact_device("mps") == torch.device("cpu")
    assert exact_device("cuda:1") == torch.device("cuda:1")
    monkeypatch.setattr(checks, "WITHOUT_FLOAT64", ("meta",))
    lam = LAM(Encoder(torch.nn.Identity(), torch.nn.Linear(4, 3)), ContrastiveLoss())
    features, labels = torch.eye(4).repeat(10, 1), torch.arange(40) % 4
    kappa = lam.fit_features(features, labels, check_mode=False).embed_features(features).kappa
    fitted = lam.fitted
    # An encoder on a device without float64: its posterior stays on the processor, where the numbers are.
    lam.to("meta")
    assert lam.encoder.head.weight.device.type == "meta"
    assert fitted is not None
    assert lam.fitted is not None
    assert {tensor.device.type for tensor in lam.fitted.curvature.tensors().values()} == {"cpu"}
    assert len(kappa) == 40


def test_concentrations_are_computed_in_float32_where_there_is_nothing_wider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert precise(torch.ones(2)).dtype == torch.float64
    monkeypatch.setattr(checks, "WITHOUT_FLOAT64", ("cpu",))
    assert precise(torch.ones(2)).dtype == torch.float32
    loss = ContrastiveLoss(power=1, distance="euclidean")
    assert loss._centre(torch.randn(4, 3)).dtype == torch.float32


def test_losses_that_are_read_later_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = Case(options={"epochs": 2}).run(tmp_path / "a", progress=False).history
    monkeypatch.setattr(loop, "steps_between_reads", lambda device: 20)
    later = Case(options={"epochs": 2}).run(tmp_path / "b", progress=False).history
    assert [entry["loss"] for entry in later] == pytest.approx([entry["loss"] for entry in at_once])


def test_a_loss_that_is_not_finite_is_named_by_its_step_even_if_it_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "steps_between_reads", lambda device: 20)
    own, steps = loop.processes.loss_function, itertools.count(1)

    def failing(learner: Any) -> Any:
        loss = own(learner)
        return lambda *batch: loss(*batch) * (torch.nan if next(steps) == 2 else 1)

    monkeypatch.setattr(loop.processes, "loss_function", failing)
    with pytest.raises(FloatingPointError, match=r"step 2 of epoch 1"):
        Case(options={"epochs": 1}).run(tmp_path, progress=False)
    assert not (tmp_path / "last.safetensors").exists()
