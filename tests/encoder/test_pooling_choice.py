"""Networks with another pooling at their end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from laplacian_metric.encoder import Encoder, save_encoder
from laplacian_metric.encoder.layers import GeM, pooling_layer

IMAGES = torch.rand(2, 3, 64, 64)


def feature_map(name: str, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """What torchvision's or timm's ResNet pools."""
    if name.startswith("timm"):
        return model.forward_features(images)  # type: ignore[operator,no-any-return]
    return nn.Sequential(*list(model.children())[:-2])(images)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
def test_of_other_libraries(name: str, tmp_path: Path) -> None:
    library, _, model_name = name.partition(":")
    module = pytest.importorskip(
        library if library == "timm" else "torchvision.models", reason="the extra vision"
    )
    plain = (module.create_model if library == "timm" else module.get_model)(model_name).eval()
    torch.save(plain.state_dict(), tmp_path / "plain.pt")
    for pooling in ("gem", "average"):
        # A published file knows nothing of the exponent.
        encoder = Encoder.from_checkpoint(tmp_path / "plain.pt", name, pooling=pooling).eval()
        with torch.no_grad():
            maps = feature_map(name, plain, encoder.backbone[0](IMAGES))  # type: ignore[index]
            expected = GeM()(maps) if pooling == "gem" else maps.mean((2, 3))
            torch.testing.assert_close(encoder.features(IMAGES), expected)
            torch.testing.assert_close(encoder.raw(IMAGES), plain.get_submodule("fc")(expected))
        # The encoder's own file does, and has to have it.
        save_encoder(encoder, tmp_path / "own.safetensors")
        again = Encoder.from_checkpoint(tmp_path / "own.safetensors", name, pooling=pooling)
        assert again.fingerprint() == encoder.fingerprint()
    with pytest.raises(ValueError, match=r"missing in the file: backbone\.model\.module\..*pool\.p"):
        Encoder.from_checkpoint(tmp_path / "own.safetensors", name, pooling="gem")


@pytest.mark.parametrize("name", ["resnet50-gem", "resnet50-gem-v1"])
def test_of_ours(name: str) -> None:
    pytest.importorskip("torchvision.models", reason="comes with the extra vision")
    encoder = Encoder.from_name(name, dim=4, seed=0, pooling="average").eval()
    gem = Encoder.from_name(name, dim=4, seed=0).eval()
    with torch.no_grad():
        maps = gem.backbone.trunk(gem.backbone.scaling(IMAGES))  # type: ignore[operator]
        torch.testing.assert_close(encoder.features(IMAGES), maps.mean((2, 3)))
    assert isinstance(Encoder.from_name(name, dim=4, pooling="gem").backbone.pool, GeM)


def test_both_poolings_agree_on_constant_maps() -> None:
    x = torch.rand(2, 5, 1, 1, dtype=torch.float64).expand(2, 5, 3, 4)
    for name in ("gem", "average"):
        torch.testing.assert_close(pooling_layer(name).double()(x), x[:, :, 0, 0])


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("torchvision:resnet18", {"pooling": "max"}, "'max'"),
        ("torchvision:alexnet", {"pooling": "gem", "dim": 4}, "alexnet"),
        ("torchvision:vit_b_32", {"pooling": "gem", "dim": 4}, "vit_b_32"),
        ("timm:resnet18", {"pooling": "gem", "global_pool": "catavgmax"}, "timm:resnet18"),
        ("timm:resnet18", {"pooling": "gem", "global_pool": ""}, "timm:resnet18"),
        ("fashion-mnist", {"pooling": "gem"}, "'pooling'"),
    ],
)
def test_networks_without_such_a_pooling(name: str, options: dict[str, Any], named: str) -> None:
    if ":" in name:
        pytest.importorskip(name.partition(":")[0], reason="the extra vision")
    with pytest.raises(ValueError, match=named):
        Encoder.from_name(name, **options)
