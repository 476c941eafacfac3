"""Encoders by name with weights from a file or published ones, and how images are prepared for them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from laplacian_metric.core.images import Preparation
from laplacian_metric.encoder.architecture import ReadyMade
from laplacian_metric.encoder.encoder import Encoder
from laplacian_metric.encoder.weight_files import read_weights
from laplacian_metric.encoder.zoo import check_name, encoder_names, find, is_of_library

LOGGER = logging.getLogger(__name__)


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
