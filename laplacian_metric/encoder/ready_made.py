"""The networks of this library that `Encoder.from_name` makes, each as a dataclass of its options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from torch import nn

from laplacian_metric.encoder.architecture import ReadyMade, Target
from laplacian_metric.encoder.libraries import torchvision_model
from laplacian_metric.encoder.networks import resnet
from laplacian_metric.encoder.networks.layers import PixelScaling, pooling_layer
from laplacian_metric.encoder.networks.resnet import STAGES, narrow_resnet18, small_cnn
from laplacian_metric.encoder.networks.small import (
    FASHION_FEATURES,
    cifar_backbone,
    cifar_features,
    fashion_backbone,
    n_digit_backbone,
    n_digit_features,
)


@dataclass(frozen=True)
class FashionMNIST(ReadyMade):
    """The network of the LAM paper for FashionMNIST; see `fashion_backbone`."""

    default_dim = 3
    images = 28, 1

    @property
    def num_features(self) -> int:
        return FASHION_FEATURES

    def backbone(self) -> nn.Module:
        return fashion_backbone()


@dataclass(frozen=True)
class CIFAR10(ReadyMade):
    """The network of the LAM paper for CIFAR-10; see `cifar_backbone`."""

    default_dim = 16
    images = 32, 3

    poolings: int = 1

    @property
    def num_features(self) -> int:
        return cifar_features(self.poolings)

    def backbone(self) -> nn.Module:
        return cifar_backbone(self.poolings)


@dataclass(frozen=True)
class NDigit(ReadyMade):
    """The network of the HIB paper for digits side by side; see `n_digit_backbone`."""

    default_dim = 2
    images = None, 1

    digits: int = 2
    channels: tuple[int, int] = (8, 16)
    padded: bool = False
    hidden: int = 0

    @property
    def num_features(self) -> int:
        return n_digit_features(self.digits, self.channels, self.padded, self.hidden)

    def backbone(self) -> nn.Module:
        return n_digit_backbone(self.digits, self.channels, self.padded, self.hidden)


@dataclass(frozen=True)
class SmallCNN(ReadyMade):
    """Four convolutions; see `small_cnn`."""

    default_dim = 128

    width: int = 32
    channels: int = 3

    @property
    def num_features(self) -> int:
        return 4 * self.width

    def backbone(self) -> nn.Module:
        return small_cnn(self.width, self.channels)


@dataclass(frozen=True)
class NarrowResNet18(ReadyMade):
    """ResNet-18 for small images; see `narrow_resnet18`."""

    default_dim = 128

    width: int = 32
    channels: int = 3
    stride: int = 2

    @property
    def num_features(self) -> int:
        return STAGES[-1] * self.width

    def backbone(self) -> nn.Module:
        return narrow_resnet18(self.width, self.channels, self.stride)


@dataclass(frozen=True)
class ResNet50GeMV1(ReadyMade):
    """ResNet-50 in the form of the original weights, with generalised-mean pooling and a whitening layer as its head.

    Attributes:
        pooling: "gem" or "average"; None takes the former.
        zero_init_residual, groups, width_per_group, replace_stride_with_dilation, norm_layer: of torchvision's ResNet.
    """

    default_dim = resnet.RESNET50_FEATURES

    pooling: str | None = None
    zero_init_residual: bool = False
    groups: int = 1
    width_per_group: int = 64
    replace_stride_with_dilation: Sequence[bool] | None = None
    norm_layer: Callable[..., nn.Module] | None = None

    @property
    def num_features(self) -> int:
        return resnet.RESNET50_FEATURES

    def backbone(self) -> nn.Module:
        return self._pooled(resnet.original_v1(self._model(False)), PixelScaling.of_original_resnet())

    def published(self, backbone: nn.Module) -> tuple[Target, ...]:
        return (Target(backbone.get_submodule("trunk"), "fc", complete=False),)

    def _model(self, pretrained: bool) -> nn.Module:
        names = [field.name for field in fields(ResNet50GeMV1) if field.name != "pooling"]
        return torchvision_model("resnet50", pretrained, {name: getattr(self, name) for name in names})

    def _pooled(self, model: nn.Module, scaling: PixelScaling) -> nn.Module:
        backbone = resnet.resnet50_gem(model, scaling)
        if self.pooling is not None:
            backbone.pool = pooling_layer(self.pooling)
        return backbone


@dataclass(frozen=True)
class ResNet50GeM(ResNet50GeMV1):
    """The same in torchvision's form.

    Attributes:
        pretrained: with torchvision's weights, which are downloaded.
    """

    pretrained: bool = False

    def backbone(self) -> nn.Module:
        return self._pooled(self._model(self.pretrained), PixelScaling.of_imagenet())
