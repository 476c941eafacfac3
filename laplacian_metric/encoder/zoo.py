"""Encoders by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from laplacian_metric.encoder.encoder import Encoder
from laplacian_metric.encoder.from_module import cut_module
from laplacian_metric.encoder.linear_layers import linears, list_linears
from laplacian_metric.encoder.networks import resnet
from laplacian_metric.encoder.networks.layers import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    PixelScaling,
    pooling_layer,
    replace_pooling,
)
from laplacian_metric.encoder.networks.resnet import STAGES, narrow_resnet18, small_cnn
from laplacian_metric.encoder.networks.small import (
    FASHION_FEATURES,
    cifar_backbone,
    cifar_features,
    fashion_backbone,
    n_digit_backbone,
    n_digit_features,
    seeded,
)
from laplacian_metric.encoder.weight_files import efficientnet_names

VISION = 'pip install "laplacian-metric[vision]"'
LIBRARIES = ("timm", "torchvision")


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


@dataclass(frozen=True)
class _Wanted:
    dim: int | None
    pretrained: bool
    options: dict[str, Any]
    pooling: str | None = None


def _fashion(wanted: _Wanted) -> tuple[nn.Module, nn.Linear, tuple[Target, ...]]:
    return fashion_backbone(), nn.Linear(FASHION_FEATURES, wanted.dim or 3), ()


def _cifar(wanted: _Wanted) -> tuple[nn.Module, nn.Linear, tuple[Target, ...]]:
    _check_names("cifar-10", wanted.options, "poolings")
    backbone = cifar_backbone(**wanted.options)
    return backbone, nn.Linear(cifar_features(**wanted.options), wanted.dim or 16), ()


def _n_digit(wanted: _Wanted) -> tuple[nn.Module, nn.Linear, tuple[Target, ...]]:
    _check_names("n-digit", wanted.options, "digits", "channels")
    backbone = n_digit_backbone(**wanted.options)
    return backbone, nn.Linear(n_digit_features(**wanted.options), wanted.dim or 2), ()


def _narrow_resnet18(wanted: _Wanted) -> tuple[nn.Module, nn.Linear, tuple[Target, ...]]:
    _check_names("narrow-resnet18", wanted.options, "width", "channels", "stride")
    width = wanted.options.get("width", 32)
    return narrow_resnet18(**wanted.options), nn.Linear(STAGES[-1] * width, wanted.dim or 128), ()


def _small_cnn(wanted: _Wanted) -> tuple[nn.Module, nn.Linear, tuple[Target, ...]]:
    _check_names("small-cnn", wanted.options, "width", "channels")
    return (
        small_cnn(**wanted.options),
        nn.Linear(4 * wanted.options.get("width", 32), wanted.dim or 128),
        (),
    )


def _check_names(network: str, options: dict[str, Any], *known: str) -> None:
    """Refuse options that a network does not have."""
    unknown = [key for key in options if key not in known]
    if unknown:
        raise TypeError(f"{network!r} takes no option {', '.join(unknown)}; there are: {', '.join(known)}")


def _resnet50_gem(wanted: _Wanted) -> tuple[nn.Module, nn.Linear, tuple[Target, ...]]:
    model = _torchvision_model("resnet50", wanted.pretrained, wanted.options)
    return _with_gem(model, PixelScaling.of_imagenet(), wanted)


def _resnet50_gem_v1(wanted: _Wanted) -> tuple[nn.Module, nn.Linear, tuple[Target, ...]]:
    model = resnet.original_v1(_torchvision_model("resnet50", False, wanted.options))
    return _with_gem(model, PixelScaling.of_original_resnet(), wanted)


def _with_gem(
    model: nn.Module, scaling: PixelScaling, wanted: _Wanted
) -> tuple[nn.Module, nn.Linear, tuple[Target, ...]]:
    backbone = resnet.resnet50_gem(model, scaling)
    if wanted.pooling is not None:
        backbone.pool = pooling_layer(wanted.pooling)
    head = nn.Linear(resnet.RESNET50_FEATURES, wanted.dim or resnet.RESNET50_FEATURES)
    return backbone, head, (Target(backbone.get_submodule("trunk"), "fc", complete=False),)


_Maker = Callable[[_Wanted], tuple[nn.Module, nn.Linear, tuple[Target, ...]]]
_MAKERS: dict[str, _Maker] = {
    "fashion-mnist": _fashion,
    "cifar-10": _cifar,
    "n-digit": _n_digit,
    "small-cnn": _small_cnn,
    "narrow-resnet18": _narrow_resnet18,
    "resnet50-gem": _resnet50_gem,
    "resnet50-gem-v1": _resnet50_gem_v1,
}
_WITH_WEIGHTS = ("resnet50-gem",)
_WITH_OPTIONS = ("cifar-10", "n-digit", "small-cnn", "narrow-resnet18", "resnet50-gem", "resnet50-gem-v1")
_WITH_POOLING = ("resnet50-gem", "resnet50-gem-v1")


def encoder_names() -> tuple[str, ...]:
    """The names of our own that `Encoder.from_name` knows.

    Example:
        >>> encoder_names()
        ('fashion-mnist', 'cifar-10', 'n-digit', 'small-cnn', 'narrow-resnet18', 'resnet50-gem', 'resnet50-gem-v1')
    """
    return tuple(_MAKERS)


def make(
    name: str,
    *,
    dim: int | None,
    pretrained: bool,
    seed: int | None,
    normalize: bool,
    options: dict[str, Any],
) -> Architecture:
    """The architecture of a name; see `Encoder.from_name`."""
    if dim is not None and dim < 2:
        raise ValueError(f"dim is {dim}; a direction on a sphere needs at least 2")
    library, colon, model_name = name.partition(":")
    passed = {key: value for key, value in options.items() if key != "pooling"}
    wanted = _Wanted(dim, pretrained, passed, options.get("pooling"))
    with seeded(seed):
        if colon and library in LIBRARIES:
            backbone, head, published = _from_library(library, model_name, wanted)
        elif name in _MAKERS:
            _check_options(name, wanted)
            backbone, head, published = _MAKERS[name](wanted)
        else:
            raise ValueError(
                f"there is no encoder {name!r}: the names are {', '.join(_MAKERS)}, and timm:NAME or torchvision:NAME "
                "for the models of these libraries"
            )
    encoder = Encoder(backbone, head, normalize=normalize)
    # Options are for who calls, not for a file to decide: what was made with them has to be named again.
    encoder.recipe = None if options else {"name": name, "dim": encoder.dim}
    return Architecture(encoder, published)


def _check_options(name: str, wanted: _Wanted) -> None:
    if wanted.pretrained and name not in _WITH_WEIGHTS:
        raise ValueError(
            f"there are no weights to download for {name!r}: train it, or load a file with Encoder.from_checkpoint("
            f"path, {name!r})"
        )
    if wanted.options and name not in _WITH_OPTIONS:
        raise TypeError(f"{name!r} takes no option {', '.join(wanted.options)}")
    if wanted.pooling is not None and name not in _WITH_POOLING:
        raise TypeError(f"{name!r} takes no option pooling")


# --- torchvision and timm ---


def _from_library(
    library: str, name: str, wanted: _Wanted
) -> tuple[nn.Module, nn.Linear, tuple[Target, ...]]:
    if library == "timm":
        model, scaling = _timm_model(name, wanted.pretrained, wanted.options)
    else:
        model = _torchvision_model(name, wanted.pretrained, wanted.options)
        scaling = _torchvision_scaling(name, wanted.pretrained)
    if not linears(model):
        raise ValueError(
            f"{library}:{name} has no linear layer that could be its head: make the model, and put a head on top with "
            "Encoder.with_head(model, example_inputs)"
        )
    label = f"{library}:{name}"
    new = () if wanted.pooling is None else replace_pooling(model, wanted.pooling, label)
    head_name = list(linears(model))[-1]
    if wanted.dim is not None:
        _replace_head(model, head_name, wanted.dim)
    backbone, head = cut_module(model, head_name, None)
    scaled = nn.Sequential()
    scaled.add_module("scaling", scaling)
    scaled.add_module("model", backbone)
    targets = [Target(model, head_name, new=new)]
    # Only timm's models of this name pad as the network did that the published weights are of.
    if label.startswith("timm:tf_efficientnet"):
        own = [entry for entry in model.state_dict() if entry not in new]
        if names := efficientnet_names(own):
            targets.append(Target(model, head_name, names=names, new=new))
    return scaled, head, tuple(targets)


def _replace_head(model: nn.Module, name: str, dim: int) -> None:
    """Another head for a model that was made here: the old one's classes are not ours."""
    before = model.get_submodule(name)
    assert isinstance(before, nn.Linear), list_linears(model)
    parent, _, last = name.rpartition(".")
    after = nn.Linear(before.in_features, dim)
    model.get_submodule(parent)._modules[last] = after


def _torchvision_model(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    try:
        from torchvision import models
    except (
        ImportError,
        RuntimeError,
    ) as error:  # it raises the latter beside a torch that it was not built for
        raise ImportError(f"torchvision:{name} needs torchvision: {VISION} ({error})") from error
    try:
        weights = models.get_model_weights(name).DEFAULT if pretrained else None
        return models.get_model(name, weights=weights, **options)  # type: ignore[no-any-return]
    except ValueError as error:
        if name in models.list_models():
            raise
        raise ValueError(
            f"torchvision has no model {name!r}: torchvision.models.list_models() lists them"
        ) from error


def _torchvision_scaling(name: str, pretrained: bool) -> PixelScaling:
    from torchvision import models

    # Some weights were trained with other numbers than ImageNet's own.
    preset = models.get_model_weights(name).DEFAULT.transforms() if pretrained else None
    return PixelScaling(getattr(preset, "mean", IMAGENET_MEAN), getattr(preset, "std", IMAGENET_STD))


def _timm_model(name: str, pretrained: bool, options: dict[str, Any]) -> tuple[nn.Module, PixelScaling]:
    try:
        import timm
        from timm.data import resolve_model_data_config
    except (ImportError, RuntimeError) as error:
        raise ImportError(f"timm:{name} needs timm: {VISION} ({error})") from error
    if not timm.is_model(name.partition(".")[0]):
        raise ValueError(f"timm has no model {name!r}: timm.list_models() lists them")
    model = timm.create_model(name, pretrained=pretrained, **options)
    data_config = resolve_model_data_config(model)
    mean, std = data_config.get("mean", IMAGENET_MEAN), data_config.get("std", IMAGENET_STD)
    channels = options.get("in_chans", len(mean))
    if channels != len(mean):  # what is known is for colours
        mean, std = (sum(mean) / len(mean),) * channels, (sum(std) / len(std),) * channels
    return model, PixelScaling(mean, std)
