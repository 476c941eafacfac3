"""bfloat16 in the backbone and nowhere else, and nothing of it afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss
from laplacian_metric import methods
from laplacian_metric.core.method import Setup
from laplacian_metric.encoder import Encoder, precision
from laplacian_metric.encoder.precision import Precision, computing_in, has_bfloat16
from laplacian_metric.training import TrainingOptions, train
from tests.training.cases import Case, an_encoder, clusters, plain, timeless

LOW = Precision.BFLOAT16
X = clusters().inputs
assert isinstance(X, Tensor)


@pytest.fixture(autouse=True)
def _bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the processor had it: torch imitates it otherwise, with the same results."""
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: True)


def test_the_backbone_computes_in_bfloat16_and_the_head_in_float32() -> None:
    encoder = an_encoder().eval()
    exact = encoder.features(X).detach()
    seen: list[torch.dtype] = []
    encoder.backbone[1].register_forward_hook(lambda *arguments: seen.append(arguments[2].dtype))
    with computing_in(LOW, nn.Sequential(encoder)):
        features = encoder.features(X)
        u = encoder.raw(X)
    assert seen == [torch.bfloat16, torch.bfloat16]
    assert features.dtype == u.dtype == torch.float32
    assert 1e-5 < float((features.detach() - exact).abs().max()) < 0.05
    assert torch.equal(u, encoder.head(features))
    assert torch.equal(encoder.features(X), exact)


@pytest.mark.parametrize("name", ["deterministic", "mc-dropout", "hib", "vmf", "online-laplace", "swag"])
def test_every_method_that_trains_a_backbone_does_so_in_bfloat16(name: str) -> None:
    encoder = an_encoder()
    data = clusters()
    assert isinstance(data.inputs, Tensor)
    learner = methods.make(name).learner([encoder], Setup(ContrastiveLoss(), num_images=len(data)))
    learner.begin(torch.optim.SGD(learner.parameters(), lr=0.1), torch.Generator())
    seen: list[torch.dtype] = []
    encoder.backbone[1].register_forward_hook(lambda *arguments: seen.append(arguments[2].dtype))
    learner.train_mode()
    with computing_in(LOW, learner.module):
        learner.loss(data.inputs, data.labels).backward()  # type: ignore[no-untyped-call]
    assert set(seen) == {torch.bfloat16}
    assert all(parameter.grad is not None for parameter in encoder.parameters())


@pytest.mark.parametrize("fails", [False, True])
def test_the_modules_are_afterwards_what_they_were(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(options={"epochs": 1, "precision": "bfloat16"})
    learner = case.learner()
    if fails:
        monkeypatch.setattr(learner, "points", lambda inputs: inputs[100])
    arguments = learner, clusters(), clusters(20), case.training_options(), tmp_path
    if fails:
        with pytest.raises(IndexError):
            train(*arguments)
    else:
        train(*arguments)
    encoder = learner.module
    assert isinstance(encoder, Encoder)
    assert "forward" not in vars(encoder.backbone)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}
    assert encoder.eval().features(X).dtype == torch.float32


def test_a_forward_of_ones_own_and_a_shared_backbone_stay() -> None:
    encoder = an_encoder().eval()
    other = Encoder(encoder.backbone, nn.Linear(8, 2))
    before = nn.Sequential.forward

    def doubled(x: Tensor) -> Tensor:
        return 2 * before(encoder.backbone, x)

    plainly = encoder.features(X)
    encoder.backbone.forward = doubled
    with computing_in(LOW, nn.ModuleList([encoder, other])):
        torch.testing.assert_close(other.features(X), 2 * plainly, rtol=0.05, atol=0.05)
        assert other.features(X).dtype == torch.float32
    assert encoder.backbone.forward is doubled
    assert torch.equal(encoder.features(X), 2 * plainly)


def test_there_has_to_be_a_backbone(tmp_path: Path) -> None:
    options = TrainingOptions(epochs=1, precision="bfloat16")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="precision is 'bfloat16', but the module has no Encoder"):
        train(plain(), clusters(), clusters(20), options, tmp_path)


def test_it_learns_nearly_the_same(tmp_path: Path) -> None:
    exact = Case(options={"learning_rate": 1e-3}).run(tmp_path / "exact").history
    lower = Case(options={"learning_rate": 1e-3, "precision": "bfloat16"}).run(tmp_path / "lower").history
    assert [entry["loss"] for entry in exact] != [entry["loss"] for entry in lower]
    assert {entry["precision"] for entry in lower} == {"bfloat16"}
    assert lower[-1]["loss"] == pytest.approx(exact[-1]["loss"], rel=0.05)


def test_what_would_be_imitated_is_computed_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = Case().run(tmp_path / "exact").history
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: False)
    imitated = Case(options={"precision": "bfloat16"}).run(tmp_path / "asked").history
    assert timeless(exact) == timeless(imitated)
    assert {entry["precision"] for entry in imitated} == {"float32"}


@pytest.mark.parametrize("instructions", [(True, False), (False, True), (False, False), (None, None)])
def test_either_kind_of_instructions_will_do(
    instructions: tuple[bool | None, bool | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, has_it in zip(
        ("_is_avx512_bf16_supported", "_is_amx_tile_supported"), instructions, strict=True
    ):
        # An older or newer torch may not have them.
        replacement = None if has_it is None else lambda has_it=has_it: has_it
        monkeypatch.setattr(torch.cpu, name, replacement, raising=False)
    assert has_bfloat16(torch.device("cpu")) is any(instructions)
    assert not has_bfloat16(torch.device("meta"))
