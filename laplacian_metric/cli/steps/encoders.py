"""Encoders that are there: by name with the weights of a file, and how images are prepared for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laplacian_metric.data.images import Preparation
from laplacian_metric.encoder import Encoder, encoder_names


@dataclass(frozen=True)
class Loaded:
    """An encoder, and whether its head was trained or is only initialised."""

    encoder: Encoder
    trained_head: bool
    options: dict[str, Any]


def load_encoder(
    name: str | None,
    weights: Path | None,
    *,
    pretrained: bool = False,
    dim: int | None = None,
    options: dict[str, Any] | None = None,
    seed: int = 0,
) -> Loaded:
    """An encoder by name with the weights of a file, or published ones.

    Args:
        name: as `Encoder.from_name` takes it; None where the file says so itself.
        weights: a file of weights, of the whole encoder or of its backbone.
        pretrained: download published weights instead.
        dim: Z, where the file does not say so.
        options: of the architecture.
        seed: of a head that no file has.
    """
    chosen = dict(options or {})
    if weights is None and not pretrained:
        given = "no encoder is named" if name is None else f"{name} without weights is a random network"
        raise ValueError(
            f"{given}: pass --encoder NAME ({known_encoders()}) with --weights FILE or --pretrained, or --features FILE"
        )
    if weights is not None and pretrained:
        raise ValueError("weights are given and pretrained ones asked for: take one of them")
    if weights is None:
        if name is None:
            raise ValueError(f"pretrained weights of what: pass --encoder NAME ({known_encoders()})")
        encoder = Encoder.from_name(name, dim=dim, pretrained=True, seed=seed, **chosen)
        _name(encoder, name)
        return Loaded(encoder.eval(), dim is None and ":" in name, chosen)
    if name is None:
        return Loaded(Encoder.from_checkpoint(weights).eval(), True, chosen)
    whole = {"dim": dim, "seed": seed, **chosen}
    try:
        encoder, has_head = Encoder.from_checkpoint(weights, name, **whole), True
    except ValueError as error:
        try:
            encoder, has_head = Encoder.from_checkpoint(weights, name, part="backbone", **whole), False
        except ValueError:
            raise error from None
    _name(encoder, name)
    return Loaded(encoder.eval(), has_head, chosen)


def _name(encoder: Encoder, name: str) -> None:
    # With options the encoder itself does not know what it is called.
    encoder.recipe = {"name": name, "dim": encoder.dim}


def preparation_for(name: str, *, image_size: int | None = None, channels: int | None = None) -> Preparation:
    """How images are made ready for an encoder by its name, unless a size or a number of channels is given.

    Photographs are scaled to 224 and have three channels; they stay in [0, 1], since the networks' first layer
    subtracts the mean that they were trained with.

    Example:
        >>> preparation_for("fashion-mnist").image_size, preparation_for("resnet50-gem").image_size
        (28, 224)
    """
    own: dict[str, tuple[int | None, int | None]] = {
        "fashion-mnist": (28, 1),
        "cifar-10": (32, 3),
        "n-digit": (None, 1),
    }
    size, colours = own.get(name, (224, 3))
    return Preparation(image_size or size, channels or colours, "unit")


def known_encoders() -> str:
    """The names of encoders, for a message."""
    return f"{', '.join(encoder_names())}, timm:NAME and torchvision:NAME"
