"""Encoders by name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from laplacian_metric.encoder import Encoder, save_encoder
from laplacian_metric.encoder.layers import GeM, PixelScaling

safetensors = pytest.importorskip("safetensors.torch")


@pytest.mark.parametrize("name", ["resnet50-gem", "resnet50-gem-v1"])
def test_resnet50_with_generalised_mean_and_whitening(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torchvision.models", reason="comes with the extra vision")
    encoder = Encoder.from_name(name, dim=8, seed=0).eval()
    assert isinstance(encoder.backbone.pool, GeM)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        expected = encoder(images)
    assert encoder.num_features == 2048
    # Its own file, and one of an ImageNet classifier in torchvision's names.
    save_encoder(encoder, tmp_path / "own.safetensors")
    assert Encoder.from_checkpoint(tmp_path / "own.safetensors").fingerprint() == encoder.fingerprint()
    published = {
        name.removeprefix("backbone.trunk."): x
        for name, x in encoder.state_dict().items()
        if name.startswith("backbone.trunk.") and not name.endswith("num_batches_tracked")
    }
    published |= {"fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}
    safetensors.save_file(published, tmp_path / "imagenet.safetensors")
    again = Encoder.from_checkpoint(
        tmp_path / "imagenet.safetensors", name, part="backbone", dim=8, seed=0
    ).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(images), expected)
    with pytest.raises(ValueError, match='or part="backbone" to leave the head out'):
        Encoder.from_checkpoint(tmp_path / "imagenet.safetensors", name, dim=8)


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet18", "timm:vit_tiny_patch16_224"])
def test_models_of_other_libraries(name: str, tmp_path: Path) -> None:
    library, _, model_name = name.partition(":")
    module = pytest.importorskip(
        library if library == "timm" else "torchvision.models", reason="the extra vision"
    )
    side = 224 if "vit" in name else 64
    images = torch.rand(2, 3, side, side)
    encoder = Encoder.from_name(name, dim=8, seed=0).eval()
    scaling = encoder.backbone[0]  # type: ignore[index]
    assert isinstance(scaling, PixelScaling)
    assert encoder.dim == 8
    # The same model, as its library makes and calls it.
    make = module.create_model if library == "timm" else module.get_model
    plain = make(model_name, num_classes=8).eval()
    torch.save(plain.state_dict(), tmp_path / "plain.pt")
    loaded = Encoder.from_checkpoint(tmp_path / "plain.pt", name, dim=8).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded.raw(images), plain(scaling(images)))
    save_encoder(loaded, tmp_path / "own.safetensors")
    assert Encoder.from_checkpoint(tmp_path / "own.safetensors").fingerprint() == loaded.fingerprint()
    assert Encoder.from_name(name, seed=1).dim == 1000


def test_options_reach_the_library_and_are_not_read_from_a_file(tmp_path: Path) -> None:
    pytest.importorskip("timm", reason="the extra vision")
    encoder = Encoder.from_name("timm:resnet18", dim=4, in_chans=1).eval()
    assert encoder(torch.rand(2, 1, 64, 64)).shape == (2, 4)
    save_encoder(encoder, tmp_path / "grey.safetensors")
    with pytest.raises(ValueError, match="does not say what its weights are of"):
        Encoder.from_checkpoint(tmp_path / "grey.safetensors")
    again = Encoder.from_checkpoint(tmp_path / "grey.safetensors", "timm:resnet18", dim=4, in_chans=1)
    assert again.fingerprint() == encoder.fingerprint()


def test_timm_knows_its_own_scaling() -> None:
    pytest.importorskip("timm", reason="the extra vision")
    scaling = Encoder.from_name("timm:vit_tiny_patch16_224", dim=4).backbone[0]  # type: ignore[index]
    torch.testing.assert_close(scaling(torch.full((1, 3, 1, 1), 0.5)), torch.zeros(1, 3, 1, 1))


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (
            "fashion",
            {},
            ValueError,
            "'fashion'; did you mean 'fashion-mnist'?",
        ),
        ("keras:resnet50", {}, ValueError, "no encoder is called 'keras:resnet50'"),
        ("cifar-10", {"dim": 1}, ValueError, "dim is 1; a direction"),
        ("cifar-10", {"pretrained": True}, ValueError, "no weights to download for 'cifar-10': train it"),
        ("resnet50-gem-v1", {"pretrained": True}, ValueError, "no weights to download"),
        ("cifar-10", {"depth": 3}, ValueError, "cifar-10 has no option 'depth'; it has: poolings"),
        (
            "torchvision:resnet17",
            {},
            ValueError,
            "torchvision has no model 'resnet17': torchvision.models.list",
        ),
        ("timm:resnet17x", {}, ValueError, "timm has no model 'resnet17x': timm.list_models"),
        ("torchvision:squeezenet1_0", {}, ValueError, "no linear layer that could be its head"),
    ],
)
def test_refusals(name: str, options: dict[str, object], error: type[Exception], message: str) -> None:
    if ":" in name and not name.startswith("keras"):
        pytest.importorskip(name.partition(":")[0], reason="the extra vision")
    with pytest.raises(error, match=re.escape(message)):
        Encoder.from_name(name, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18", "resnet50-gem"])
def test_without_the_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm" if name.startswith("timm") else "torchvision", None)
    with pytest.raises(ImportError, match=r'pip install "laplacian-metric\[vision\]"'):
        Encoder.from_name(name)


def test_importing_encoders_is_light(root: Path) -> None:
    code = "import sys, laplacian_metric.encoder; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "laplacian_metric" in loaded
    assert loaded.isdisjoint(
        {"torchvision", "timm", "safetensors", "sentence_transformers", "laplace", "scipy", "PIL"}
    )


def test_pretrained_weights_are_asked_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no network, it is the libraries' own download that is reached."""
    models = pytest.importorskip("torchvision.models", reason="comes with the extra vision")
    requested: list[object] = []
    real = models.get_model

    def get_model(name: str, weights: object = None, **options: object) -> nn.Module:
        requested.append(weights)
        return real(name, weights=None, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(models, "get_model", get_model)
    encoder = Encoder.from_name("torchvision:resnet18", pretrained=True, dim=4)
    assert requested == [models.ResNet18_Weights.DEFAULT]
    assert encoder.dim == 4
    Encoder.from_name("resnet50-gem", pretrained=True, dim=4)
    assert requested[1] == models.ResNet50_Weights.DEFAULT
