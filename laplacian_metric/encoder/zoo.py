"""Encoders by name: those of this library, registered ones, and models of timm and torchvision."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import nn

from laplacian_metric.core.arguments import check_known
from laplacian_metric.core.registry import Registry
from laplacian_metric.encoder.architecture import Architecture, ReadyMade
from laplacian_metric.encoder.encoder import Encoder
from laplacian_metric.encoder.libraries import LIBRARIES, from_library
from laplacian_metric.encoder.networks.small import seeded

_NETWORKS = "laplacian_metric.encoder.networks"
_OF_LIBRARIES = ", timm:NAME and torchvision:NAME"
_ENCODERS: Registry[ReadyMade] = Registry(
    "encoder",
    {
        "fashion-mnist": f"{_NETWORKS}.small:FashionMNIST",
        "cifar-10": f"{_NETWORKS}.small:CIFAR10",
        "n-digit": f"{_NETWORKS}.small:NDigit",
        "small-cnn": f"{_NETWORKS}.small:SmallCNN",
        "resnet50-gem": f"{_NETWORKS}.resnet:ResNet50GeM",
        "resnet50-gem-v1": f"{_NETWORKS}.resnet:ResNet50GeMV1",
    },
)


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
