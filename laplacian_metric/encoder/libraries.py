"""Models of timm and torchvision, cut into a backbone, which begins with their scaling of pixels, and a head.

Sentence encoders are backbones as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from laplacian_metric.encoder.from_module import cut_module
from laplacian_metric.encoder.layers import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    PixelScaling,
    replace_pooling,
)
from laplacian_metric.encoder.linear_layers import linears, list_linears
from laplacian_metric.encoder.zoo import Target

# Of EfficientNets that were converted from the original TensorFlow files: timm's names and those of the files.
_OUTSIDE = {
    "conv_stem": "_conv_stem",
    "bn1": "_bn0",
    "conv_head": "_conv_head",
    "bn2": "_bn1",
    "classifier": "_fc",
}
_BLOCK = {"conv_dw": "_depthwise_conv", "se.conv_reduce": "_se_reduce", "se.conv_expand": "_se_expand"}
# A block that expands its channels first, and one that does not.
_EXPANDING = {
    **_BLOCK,
    "conv_pw": "_expand_conv",
    "bn1": "_bn0",
    "bn2": "_bn1",
    "conv_pwl": "_project_conv",
    "bn3": "_bn2",
}
_PLAIN = {**_BLOCK, "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}

VISION = 'pip install "laplacian-metric[vision]"'


def from_library(
    library: str, name: str, dim: int | None, pretrained: bool, options: Mapping[str, Any]
) -> tuple[nn.Module, nn.Linear, tuple[Target, ...]]:
    """Return backbone, head and published names of a model.

    Args:
        library: "timm" or "torchvision".
        name: of the model.
        dim: Z; None keeps the head that the model has.
        pretrained: with published weights, which are downloaded.
        options: of the model, and ``pooling``.
    """
    options = dict(options)
    pooling = options.pop("pooling", None)
    if library == "timm":
        model, scaling = _timm_model(name, pretrained, options)
    else:
        model, scaling = torchvision_model(name, pretrained, options), _torchvision_scaling(name, pretrained)
    if not linears(model):
        raise ValueError(
            f"{library}:{name} has no linear layer that could be its head: make the model, and put a head on top with "
            "Encoder.with_head(model, example_inputs)"
        )
    label = f"{library}:{name}"
    new = () if pooling is None else replace_pooling(model, pooling, label)
    head_name = list(linears(model))[-1]
    if dim is not None:
        _replace_head(model, head_name, dim)
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


def torchvision_model(name: str, pretrained: bool, options: Mapping[str, Any]) -> nn.Module:
    """Return a model of torchvision."""
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


def efficientnet_names(own: Iterable[str]) -> dict[str, str]:
    """For each parameter and buffer of timm's ``tf_efficientnet_*``, its name in files of efficientnet_pytorch's form.

    These files count all blocks through, where timm counts them within stages. Forks such as
    efficientnet_lite_pytorch have kept the names. Empty where the names are those of another kind of network.

    Args:
        own: the names in the state dictionary of timm's model, in their order.

    Example:
        >>> names = ["bn1.weight", "blocks.0.0.bn1.weight", "blocks.1.0.bn1.weight", "blocks.1.0.conv_pwl.weight"]
        >>> efficientnet_names(names)["blocks.1.0.bn1.weight"]
        '_blocks.1._bn0.weight'
    """
    names = list(own)
    parsed = {name: re.fullmatch(r"(blocks\.\d+\.\d+)\.(.+)\.(\w+)", name) for name in names}
    blocks = list(dict.fromkeys(match[1] for match in parsed.values() if match))
    expanding = {match[1] for match in parsed.values() if match and match[2] == "conv_pwl"}
    renamed = {}
    for name in names:
        if (match := parsed[name]) is not None:
            block, layer, entry = match.groups()
            known = _EXPANDING if block in expanding else _PLAIN
            start = f"_blocks.{blocks.index(block)}."
        else:
            layer, _, entry = name.rpartition(".")
            known, start = _OUTSIDE, ""
        if layer not in known:
            return {}
        renamed[name] = f"{start}{known[layer]}.{entry}"
    return renamed


class SentenceBackbone(nn.Module):
    """A list of N sentences -> features (N, H), by a model of sentence-transformers or one that is used like it.

    Args:
        model: has ``encode(sentences, convert_to_tensor=True)``. If it is no `torch.nn.Module`, its weights are not in
            the encoder's fingerprint.
        differentiable: take ``model(model.tokenize(sentences))["sentence_embedding"]`` instead, so that the model
            itself can be trained; ``encode`` computes no gradients.
        options: passed on to ``encode``, for instance ``batch_size``.

    Example:
        >>> class Lengths:
        ...     def encode(self, sentences, convert_to_tensor):
        ...         return torch.tensor([[float(len(s)), float(s.count(" "))] for s in sentences])
        >>> SentenceBackbone(Lengths())(["one", "one two"]).tolist()
        [[3.0, 0.0], [7.0, 1.0]]
    """

    def __init__(self, model: Any, *, differentiable: bool = False, **options: Any) -> None:
        super().__init__()
        needed = ("tokenize",) if differentiable else ("encode",)
        for name in needed:
            if not callable(getattr(model, name, None)):
                raise TypeError(
                    f"model ({type(model).__name__}) has no method {name}: a SentenceTransformer or something that is "
                    "used like it is needed; SentenceBackbone.from_name makes one"
                )
        if differentiable and options:
            raise ValueError(
                f"{', '.join(options)} are options of encode, which differentiable=True does not use"
            )
        self.model = model
        self.differentiable = differentiable
        self.options = options
        self.training = getattr(model, "training", True)

    @classmethod
    def from_name(cls, name: str, *, differentiable: bool = False, **options: Any) -> SentenceBackbone:
        """By the name or folder that sentence-transformers knows a model by; names are downloaded."""
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ImportError(
                'sentence encoders need sentence-transformers: pip install "laplacian-metric[text]"'
            ) from error
        return cls(SentenceTransformer(name), differentiable=differentiable, **options)

    def forward(self, sentences: Sequence[str]) -> Tensor:
        if isinstance(sentences, str) or not all(isinstance(sentence, str) for sentence in sentences):
            kind = type(sentences).__name__
            raise TypeError(f"sentences is a {kind}, a list of strings is needed, [sentence] for one")
        sentences = list(sentences)
        if self.differentiable:
            embeddings = self._forward(sentences)
        else:
            embeddings = self.model.encode(sentences, convert_to_tensor=True, **self.options)
            if isinstance(embeddings, Tensor):
                # What comes out of an inference mode could not be used for the gradient of the head.
                embeddings = embeddings.clone()
        if not isinstance(embeddings, Tensor):
            raise TypeError(f"the model returns a {type(embeddings).__name__}, a tensor (N, H) is needed")
        if not sentences:
            return embeddings.reshape(0, self._width(embeddings))
        return embeddings

    def _forward(self, sentences: list[str]) -> Any:
        if not sentences:
            return torch.empty(0, self._width(None))
        tokens = self.model.tokenize(sentences)
        device = (
            next((p.device for p in self.model.parameters()), None)
            if isinstance(self.model, nn.Module)
            else None
        )
        moved = {name: x.to(device) if isinstance(x, Tensor) and device else x for name, x in tokens.items()}
        output = self.model(moved)
        return output["sentence_embedding"] if isinstance(output, Mapping) else output

    def _width(self, embeddings: Tensor | None) -> int:
        if embeddings is not None and embeddings.ndim == 2:
            return embeddings.shape[1]
        for name in ("get_sentence_embedding_dimension", "get_embedding_dimension"):
            if callable(getattr(self.model, name, None)):
                return int(getattr(self.model, name)())
        raise ValueError("sentences is empty, and the model does not say how many features it has")
