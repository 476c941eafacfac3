"""Classes by name: the library's, and those that are registered from outside of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from experiments.harness.sections import LossSection, MethodSection, NetworkSection
from experiments.losses import LOSSES
from hessians import ContrastiveLoss
from laplacian_metric import methods
from laplacian_metric.core.registry import Registry
from laplacian_metric.encoder import Encoder, ReadyMade, encoder_names, register, save_encoder, zoo
from laplacian_metric.encoder.zoo import preparation_for
from laplacian_metric.methods.pairs.deterministic import Deterministic


@dataclass(frozen=True)
class Wide(ContrastiveLoss):
    """A loss from outside of the library."""

    width: float = 2.0


@dataclass(frozen=True)
class Steady(Deterministic):
    """A method from outside of the library."""

    name: ClassVar[str] = "steady"

    tempo: int = 1


@dataclass(frozen=True)
class Tiny(ReadyMade):
    """A network from outside of the library."""

    default_dim = 2
    images = 4, 1

    width: int = 8

    @property
    def num_features(self) -> int:
        return self.width

    def backbone(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, self.width))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, until the test is over."""
    for registry in (LOSSES, methods._METHODS, zoo._ENCODERS):
        monkeypatch.setattr(registry, "_registered", {})
    register("tiny", Tiny)
    LOSSES.register("wide", Wide)
    methods.register(Steady)


@pytest.mark.usefixtures("registered")
def test_what_is_registered_is_found_by_name_and_in_cells() -> None:
    assert LOSSES.names()[-1] == "wide"
    assert methods.names()[-1] == "steady"
    assert LOSSES.make("wide", margin=1.0, width=3.0) == Wide(margin=1.0, width=3.0)
    assert methods.make("steady", tempo=3) == Steady(tempo=3)
    section = LossSection(kind="wide", margin=0.3, options={"width": 4.0})
    assert section.make() == Wide(margin=0.3, width=4.0)
    assert MethodSection.model_validate({"name": "steady", "tempo": 2}).make() == Steady(tempo=2)
    LOSSES.register("wide", Wide)  # once more is no harm
    with pytest.raises(ValueError, match="there is another loss called 'wide'"):
        LOSSES.register("wide", ContrastiveLoss)
    with pytest.raises(ValueError, match="wide has no option 'widht'; did you mean 'width'"):
        LossSection(kind="wide", options={"widht": 1.0})


@pytest.mark.usefixtures("registered")
def test_a_registered_encoder_is_made_by_name_in_cells_and_out_of_files(tmp_path: Path) -> None:
    assert encoder_names()[-1] == "tiny"
    encoder = Encoder.from_name("tiny", seed=0)
    assert (encoder.num_features, encoder.dim) == (8, 2)
    assert Encoder.from_name("tiny", dim=3, width=5)(torch.rand(2, 1, 4, 4)).shape == (2, 3)
    section = NetworkSection(name="tiny", dim=3, options={"width": 6})
    assert section.make(0).num_features == 6
    assert preparation_for("tiny").image_size == 4
    save_encoder(encoder, tmp_path / "tiny.safetensors")
    assert Encoder.from_checkpoint(tmp_path / "tiny.safetensors").fingerprint() == encoder.fingerprint()
    with pytest.raises(ValueError, match="no weights to download for 'tiny'"):
        Encoder.from_name("tiny", pretrained=True)
    with pytest.raises(ValueError, match="tiny has no option 'widht'; did you mean 'width'"):
        Encoder.from_name("tiny", widht=5)
    with pytest.raises(ValueError, match="another encoder called 'tiny'"):
        register("tiny", zoo.find("cifar-10"))
    register("tiny", zoo.find("cifar-10"), replace=True)
    assert Encoder.from_name("tiny").num_features == 9216


@pytest.mark.usefixtures("registered")
def test_what_extends_a_method_takes_its_place_when_it_is_asked_to() -> None:
    @dataclass(frozen=True)
    class Extended(Deterministic):
        extra: int = 0

    with pytest.raises(ValueError, match="choose another name"):
        methods.register(Extended)
    methods.register(Extended, replace=True)
    assert methods.make("deterministic", extra=2) == Extended(extra=2)
    assert methods.names().count("deterministic") == 1


@pytest.mark.parametrize("name", [*LOSSES.names(), *methods.names()])
def test_the_library_has_what_it_names(name: str) -> None:
    registry: Any = LOSSES if name in LOSSES.names() and name not in methods.names() else methods
    assert registry.find(name) is registry.find(name)


def test_unknown_names_say_which_there_are() -> None:
    with pytest.raises(ValueError, match="no loss is called 'tripled'; did you mean 'triplet'"):
        LossSection(kind="tripled")
    with pytest.raises(ValueError, match="no thing is called 'x'; there are: "):
        Registry[object]("thing", {}).find("x")
