"""Encoders by name, those of this library, registered ones, and models of timm and torchvision: architectures, weights
from a file or published ones, and how images are prepared for them.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import nn

from laplacian_metric.core.arguments import check_known
from laplacian_metric.core.images import Preparation
from laplacian_metric.core.registry import Registry
from laplacian_metric.encoder.checkpoint import read_weights
from laplacian_metric.encoder.encoder import Encoder
from laplacian_metric.encoder.layers import seeded

LOGGER = logging.getLogger(__name__)
_NETWORKS = "laplacian_metric.encoder.ready_made"
LIBRARIES = ("timm", "torchvision")
_OF_LIBRARIES = ", timm:NAME and torchvision:NAME"
_ENCODERS: Registry[ReadyMade] = Registry(
    "encoder",
    {
        "fashion-mnist": f"{_NETWORKS}:FashionMNIST",
        "cifar-10": f"{_NETWORKS}:CIFAR10",
        "n-digit": f"{_NETWORKS}:NDigit",
        "small-cnn": f"{_NETWORKS}:SmallCNN",
        "resnet50-gem": f"{_NETWORKS}:ResNet50GeM",
        "resnet50-gem-v1": f"{_NETWORKS}:ResNet50GeMV1",
    },
)


@dataclass(frozen=True)
class Target:
    """A module that the weights of a file may be those of, and how its head is called there.

    ``complete`` says that the module has all that the encoder needs: if not, only its backbone can be read from there.
    ``names`` has the name in the file for each of the module's own, where they differ, and ``new`` is what the module
    has beyond the published one.
    """

    module: nn.Module
    head: str
    complete: bool = True
    names: Mapping[str, str] = field(default_factory=dict)
    new: tuple[str, ...] = ()


@dataclass(frozen=True)
class Architecture:
    """An encoder, and the modules whose names published files of weights use; they share its parameters."""

    encoder: Encoder
    published: tuple[Target, ...] = ()


class ReadyMade(ABC):
    """A backbone with a name: a subclass is a frozen dataclass of its options.

    Attributes:
        default_dim: Z, the rows of the linear head where none are named.
        images: the side and the channels of images, as they are prepared by default; None leaves their size.

    Example:
        >>> import torch
        >>> @dataclass(frozen=True)
        ... class Linear(ReadyMade):
        ...     default_dim = 4
        ...     images = 28, 1
        ...     width: int = 32
        ...
        ...     @property
        ...     def num_features(self) -> int:
        ...         return self.width
        ...
        ...     def backbone(self) -> nn.Module:
        ...         return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, self.width), nn.Tanh())
        >>> Linear(width=8).backbone()(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 8])
    """

    default_dim: ClassVar[int]
    images: ClassVar[tuple[int | None, int]] = 224, 3

    @property
    @abstractmethod
    def num_features(self) -> int:
        """H, what the backbone returns for an image."""

    @abstractmethod
    def backbone(self) -> nn.Module:
        """Return a new backbone, inputs -> (N, H); its weights come from torch's global generator."""

    def published(self, backbone: nn.Module) -> tuple[Target, ...]:
        """Return the parts of a backbone whose names published files of weights use."""
        return ()


def encoder_names() -> tuple[str, ...]:
    """Return the names that `Encoder.from_name` takes, beside those of timm and torchvision.

    Example:
        >>> encoder_names()[:3]
        ('fashion-mnist', 'cifar-10', 'n-digit')
    """
    return _ENCODERS.names()


def find(name: str) -> type[ReadyMade]:
    """Return the class of a ready-made network.

    Example:
        >>> find("fashion-mnist").images
        (28, 1)
    """
    return _ENCODERS.find(name)


def register(name: str, network: type[ReadyMade], *, replace: bool = False) -> None:
    """Make a network of your own, a dataclass of its options, known by a name, for `Encoder.from_name` and cells.

    With ``replace`` it takes the place of another of that name.

    Example:
        >>> register("cifar-10", find("fashion-mnist"))
        Traceback (most recent call last):
        ...
        ValueError: there is another encoder called 'cifar-10': choose another name
    """
    _ENCODERS.register(name, network, replace=replace)


def is_of_library(name: str) -> bool:
    """Return whether a name is one of timm's or torchvision's models, as "timm:resnet18" is."""
    library, colon, _ = name.partition(":")
    return bool(colon) and library in LIBRARIES


def check_name(name: str) -> None:
    """Refuse a name that no encoder has; whether timm or torchvision have a model is not looked up.

    Example:
        >>> check_name("cifar10")
        Traceback (most recent call last):
        ...
        ValueError: no encoder is called 'cifar10'; did you mean 'cifar-10'? there are: fashion-mnist, cifar-10, ...
    """
    if not is_of_library(name):
        check_known("encoder", name, encoder_names(), _OF_LIBRARIES)


def make(
    name: str,
    *,
    dim: int | None,
    pretrained: bool,
    seed: int | None,
    normalize: bool,
    options: dict[str, Any],
) -> Architecture:
    """Return the architecture of a name; see `Encoder.from_name`."""
    if dim is not None and dim < 2:
        raise ValueError(f"dim is {dim}; a direction on a sphere needs at least 2")
    check_name(name)
    with seeded(seed):
        if is_of_library(name):
            from laplacian_metric.encoder.libraries import from_library

            library, _, model = name.partition(":")
            backbone, head, published = from_library(library, model, dim, pretrained, options)
        else:
            network = _network(name, pretrained, options)
            backbone = network.backbone()
            head = nn.Linear(network.num_features, dim or network.default_dim)
            published = network.published(backbone)
    encoder = Encoder(backbone, head, normalize=normalize)
    # Options are for who calls, not for a file to decide: what was made with them has to be named again.
    encoder.recipe = None if options else {"name": name, "dim": encoder.dim}
    return Architecture(encoder, published)


def _network(name: str, pretrained: bool, options: dict[str, Any]) -> ReadyMade:
    """Return a ready-made network with its options."""
    if pretrained and "pretrained" not in [field.name for field in fields(find(name))]:  # type: ignore[arg-type]
        raise ValueError(
            f"there are no weights to download for {name!r}: train it, or load a file with Encoder.from_checkpoint("
            f"path, {name!r})"
        )
    return _ENCODERS.make(name, **options, **({"pretrained": True} if pretrained else {}))


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder with weights.

    Attributes:
        encoder: in evaluation mode.
        head: what its last linear layer is: trained to embed, the classifier of a published network, or new.
        options: of the architecture.
    """

    encoder: Encoder
    head: Literal["trained", "classifier", "new"]
    options: dict[str, Any]


def load_encoder(
    name: str | None,
    weights: Path | None,
    *,
    pretrained: bool = False,
    dim: int | None = None,
    options: dict[str, Any] | None = None,
    seed: int = 0,
) -> LoadedEncoder:
    """Load an encoder by name with the weights of a file, or with published weights.

    Args:
        name: as `Encoder.from_name` takes it; None where the file names its encoder.
        weights: a file with the weights of the whole encoder or of its backbone.
        pretrained: download published weights instead.
        dim: Z; by default that of the head in the file. Another one leaves the file's head out.
        options: of the architecture.
        seed: of a head that no file has.
    """
    options = dict(options or {})
    head: Literal["trained", "classifier", "new"]
    names = f"{', '.join(encoder_names())}, timm:NAME and torchvision:NAME"
    if weights is not None and pretrained:
        raise ValueError("--weights and --pretrained exclude each other: pass one of them")
    if weights is None and not pretrained:
        if name is not None:
            check_name(name)
        missing = "no encoder is named" if name is None else f"the encoder {name} has no weights"
        raise ValueError(
            f"{missing}: pass --encoder NAME ({names}) with --weights FILE or --pretrained, or --features FILE"
        )
    if weights is None:
        if name is None:
            raise ValueError(f"--pretrained needs the name of an encoder: pass --encoder NAME ({names})")
        encoder = Encoder.from_name(name, dim=dim, pretrained=True, seed=seed, **options)
        head = "classifier" if dim is None and ":" in name else "new"
    elif name is None:
        return LoadedEncoder(Encoder.from_checkpoint(weights).eval(), "trained", options)
    else:
        encoder, head = _with_weights(name, weights, dim, {"seed": seed, **options})
    encoder.recipe = {"name": name, "dim": encoder.dim}  # an encoder with options has none of its own
    return LoadedEncoder(encoder.eval(), head, options)


def _with_weights(
    name: str, weights: Path, dim: int | None, options: dict[str, Any]
) -> tuple[Encoder, Literal["trained", "classifier", "new"]]:
    """Return an encoder with the weights of a file, and what its head is."""
    tensors, notes = read_weights(weights)
    own = tensors.get("head.weight") if notes or ":" not in name else None
    if (
        own is not None and own.ndim == 2 and dim in (None, len(own))
    ):  # an embedding's head: nothing else will do
        return Encoder.from_checkpoint(weights, name, dim=len(own), **options), "trained"
    if own is not None:
        LOGGER.warning(
            "the head in %s has %d dimensions and not %d: it is left out, and the new one is not trained yet",
            weights.name,
            len(own),
            dim,
        )
        return Encoder.from_checkpoint(weights, name, part="backbone", dim=dim, **options), "new"
    try:
        encoder = Encoder.from_checkpoint(weights, name, dim=dim, **options)
    except ValueError as error:
        try:
            return Encoder.from_checkpoint(weights, name, part="backbone", dim=dim, **options), "new"
        except ValueError:
            raise error from None
    return encoder, "classifier" if ":" in name and dim is None else "trained"


def preparation_for(name: str, *, image_size: int | None = None, channels: int | None = None) -> Preparation:
    """Return how images are prepared for an encoder; a size or a number of channels may be given instead.

    Photographs are scaled to 224 and have three channels. They stay in [0, 1], since the first layer of the networks
    subtracts the mean that they were trained with.

    Example:
        >>> preparation_for("fashion-mnist").image_size, preparation_for("resnet50-gem").image_size
        (28, 224)
    """
    kind = ReadyMade if is_of_library(name) else find(name)
    size, colours = kind.images
    return Preparation(image_size or size, channels or colours, "unit")
