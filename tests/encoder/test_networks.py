"""The ready-made backbones against the paper's sizes, closed forms and torchvision."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from laplacian_metric import data
from laplacian_metric.encoder import Encoder, ReadyMade, save_encoder, whitening_head
from laplacian_metric.encoder.layers import GeM, PixelScaling, batch_norm_statistics, tracking_layers
from laplacian_metric.encoder.ready_made import CIFAR10, FashionMNIST, NDigit, original_v1, trunk


def resnet50() -> nn.Module:
    models = pytest.importorskip("torchvision.models", reason="comes with the extra vision")
    torch.manual_seed(0)
    return models.resnet50(weights=None).eval()  # type: ignore[no-any-return]


# --- the small ones ---


def test_sides_of_the_cifar_network() -> None:
    sides, x = [], torch.zeros(1, 3, 32, 32)
    for layer in CIFAR10().backbone():
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            sides.append(tuple(x.shape[1:]))
    assert sides == [(32, 30, 30), (64, 28, 28), (64, 14, 14), (64, 12, 12)]
    assert x.shape == (1, CIFAR10().num_features)


def test_two_poolings_of_the_cifar_network() -> None:
    encoder = Encoder.from_name("cifar-10", dim=4, poolings=2, seed=0)
    assert encoder.num_features == CIFAR10(2).num_features == 1024
    assert encoder(torch.rand(3, 3, 32, 32)).shape == (3, 4)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (FashionMNIST(), (1, 28, 28)),
        (CIFAR10(), (3, 32, 32)),
        (NDigit(), (1, 28, 56)),
    ],
)
def test_what_is_done_for_speed_changes_nothing(network: ReadyMade, shape: tuple[int, int, int]) -> None:
    backbone = network.backbone().double()
    layers = list(backbone.children())
    pools = [place for place, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]
    assert pools
    for place in pools:  # into the order of the papers
        assert isinstance(layers[place + 1], nn.ReLU)
        layers[place : place + 2] = layers[place + 1], layers[place]
    plain = copy.deepcopy(nn.Sequential(*layers)).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    x = torch.randn(3, *shape, dtype=torch.float64)
    weights = torch.randn(backbone(x).shape, dtype=torch.float64)
    (backbone(x) * weights).sum().backward()
    (plain(x) * weights).sum().backward()
    torch.testing.assert_close(backbone(x), plain(x), rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(backbone.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar-10", "n-digit", "small-cnn"])
def test_seeds(name: str) -> None:
    state = torch.get_rng_state()
    one, two, other = (Encoder.from_name(name, dim=4, seed=seed) for seed in (1, 1, 2))
    assert one.fingerprint() == two.fingerprint() != other.fingerprint()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("digits", [1, 3])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("hidden", [0, 7])
def test_as_many_features_as_a_network_says(digits: int, padded: bool, hidden: int) -> None:
    network = NDigit(digits, (4, 5), padded, hidden)
    assert network.backbone()(torch.zeros(2, 1, 28, 28 * digits)).shape == (2, network.num_features)


# --- generalised mean ---


@settings(max_examples=20)
@given(
    count=st.integers(0, 3),
    channels=st.integers(1, 3),
    positions=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    p=st.floats(0.5, 8),
)
def test_generalised_mean_against_its_definition(
    count: int, channels: int, positions: list[int], p: float
) -> None:
    x = torch.randn(count, channels, *positions, dtype=torch.float64)
    pool = GeM(p).double()
    expected = torch.zeros(count, channels, dtype=torch.float64)
    for n in range(count):
        for c in range(channels):
            values = x[n, c].flatten().clamp(min=1e-6)
            expected[n, c] = (sum(float(v) ** p for v in values) / len(values)) ** (1 / p)
    torch.testing.assert_close(pool(x).detach(), expected, rtol=1e-6, atol=1e-12)


def test_its_gradients() -> None:
    x = torch.rand(2, 3, 4, 5, dtype=torch.float64, requires_grad=True) + 0.1
    p = torch.tensor([2.5], dtype=torch.float64, requires_grad=True)
    pool = GeM().double()
    assert torch.autograd.gradcheck(lambda x, p: torch.func.functional_call(pool, {"p": p}, (x,)), (x, p))


def test_great_and_small_values_in_single_precision() -> None:
    for scale in (1e-5, 1.0, 1e15):
        x = scale * torch.rand(2, 3, 4, 4) + scale
        torch.testing.assert_close(GeM(8.0)(x).double(), GeM(8.0).double()(x.double()), rtol=1e-5, atol=0)


# --- scaling ---


def test_scaling_of_pixels() -> None:
    images = torch.rand(2, 3, 4, 5)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = torch.stack([(images[:, c] - mean[c]) / std[c] for c in range(3)], dim=1)
    torch.testing.assert_close(PixelScaling.of_imagenet()(images), expected)
    blue_first = torch.stack(
        [images[:, 2] * 255 - 103.939, images[:, 1] * 255 - 116.779, images[:, 0] * 255 - 123.68], dim=1
    )
    torch.testing.assert_close(PixelScaling.of_original_resnet()(images), blue_first, rtol=1e-5, atol=1e-4)
    assert not PixelScaling.of_imagenet().state_dict()


# --- ResNet-50 ---


def test_the_trunk_is_torchvisions_up_to_its_pooling() -> None:
    model = resnet50()
    pooled: list[Tensor] = []
    handle = model.get_submodule("avgpool").register_forward_pre_hook(
        lambda _, inputs: pooled.append(inputs[0])
    )
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        model(images)
        torch.testing.assert_close(trunk(model)(images), pooled[0])
    handle.remove()
    names = {name for name in model.state_dict() if not name.startswith("fc.")}
    assert set(trunk(model).state_dict()) == names


def test_the_original_form_strides_in_the_first_convolution() -> None:
    """A block of the original form skips every second pixel at once, so that it equals one on a smaller image."""
    model = original_v1(resnet50())
    block = model.get_submodule("layer2.0")
    x = torch.rand(1, 256, 8, 8)
    for stage in ("layer2.0", "layer3.0", "layer4.0"):
        strides = [
            model.get_submodule(f"{stage}.{name}").stride for name in ("conv1", "conv2", "downsample.0")
        ]  # type: ignore[union-attr]
        assert strides == [(2, 2), (1, 1), (2, 2)]
    with torch.no_grad():
        whole = block(x)
        for name in ("conv1", "downsample.0"):
            block.get_submodule(name).stride = (1, 1)
        torch.testing.assert_close(whole, block(x[:, :, ::2, ::2]))
    assert {m.eps for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {1.001e-5}


@pytest.mark.slow
def test_the_original_weights_know_fruit() -> None:
    """Nearest neighbours among photographs of 14 kinds of fruit, of which one in 14 is right by chance."""
    folder = Path(os.environ.get("LAPLACIAN_METRIC_DATA", ""))
    weights = folder / "weights" / "resnet50_imagenet_v1.safetensors"
    if not weights.is_file() or not (folder / "grocery" / "train").is_dir():
        pytest.skip("needs real photographs and weights; say where with LAPLACIAN_METRIC_DATA")
    pytest.importorskip("torchvision.models", reason="comes with the extra vision")
    photographs = data.folder(folder / "grocery" / "train", 128)
    photographs = photographs.select(torch.arange(0, len(photographs), 8))

    def recall(h: Tensor) -> float:
        z = nn.functional.normalize(h, dim=1)
        nearest = (z @ z.T).fill_diagonal_(-1).argmax(1)
        return float((photographs.labels[nearest] == photographs.labels).float().mean())

    def features(name: str) -> Tensor:
        encoder = Encoder.from_checkpoint(weights, name, part="backbone", dim=64, seed=0).eval()
        with torch.no_grad():
            return torch.cat([encoder.features(batch) for batch in photographs.floats().split(32)])

    h = features("resnet50-gem-v1")
    assert recall(h) > 0.55
    assert recall(h) > recall(features("resnet50-gem")) + 0.1  # the same weights in torchvision's form
    assert recall(whitening_head(h, 32)(h).detach()) > 0.45


def normed() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    layers.train()
    layers(torch.randn(5, 3, generator=torch.Generator().manual_seed(1)))
    return layers.double()


def points(count: int) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("sizes", [[12], [4, 4, 4], [7, 3, 2]])
def test_they_are_averages_over_the_images(sizes: list[int]) -> None:
    layers, x = normed(), points(12)
    W, b = torch.full((4, 3), 0.5, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    W[1, 2] = 3.0
    before = {name: tensor.clone() for name, tensor in layers.state_dict().items()}
    parts = list(x.split(sizes))
    statistics = batch_norm_statistics(
        layers, {"0.weight": W, "0.bias": b}, [(part, torch.zeros(0)) for part in parts]
    )
    seen = [part @ W.T + b for part in parts]
    mean = sum(len(h) * h.mean(0) for h in seen) / 12
    variance = sum(len(h) * h.var(0) for h in seen) / 12
    assert statistics.keys() == {"1.running_mean", "1.running_var"}
    torch.testing.assert_close(statistics["1.running_mean"], mean)
    torch.testing.assert_close(statistics["1.running_var"], variance)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layers.state_dict().items())
    assert layers[1].momentum == 0.1
    assert all(module.training for module in layers.modules())


def test_layers_without_statistics_need_none() -> None:
    assert tracking_layers(nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.LayerNorm(4))) == {}
    assert list(tracking_layers(nn.Sequential(nn.Sequential(nn.BatchNorm2d(4))))) == ["0.0"]


IMAGES = torch.rand(2, 3, 64, 64)


def feature_map(name: str, model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """What torchvision's or timm's ResNet pools."""
    if name.startswith("timm"):
        return model.forward_features(images)  # type: ignore[operator,no-any-return]
    return nn.Sequential(*list(model.children())[:-2])(images)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
def test_another_pooling_in_other_libraries(name: str, tmp_path: Path) -> None:
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
def test_another_pooling_of_ours(name: str) -> None:
    pytest.importorskip("torchvision.models", reason="comes with the extra vision")
    encoder = Encoder.from_name(name, dim=4, seed=0, pooling="average").eval()
    gem = Encoder.from_name(name, dim=4, seed=0).eval()
    with torch.no_grad():
        maps = gem.backbone.trunk(gem.backbone.scaling(IMAGES))  # type: ignore[operator]
        torch.testing.assert_close(encoder.features(IMAGES), maps.mean((2, 3)))
    assert isinstance(Encoder.from_name(name, dim=4, pooling="gem").backbone.pool, GeM)
