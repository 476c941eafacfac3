"""Encoders by name with weights from a file or published ones, and how images are prepared for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laplacian_metric.data.images import Preparation
from laplacian_metric.encoder.encoder import Encoder
from laplacian_metric.encoder.weight_files import read_weights
from laplacian_metric.encoder.zoo import encoder_names


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder, whether its head was trained or is only initialised, and the options of its architecture."""

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
    names = f"{', '.join(encoder_names())}, timm:NAME and torchvision:NAME"
    if weights is not None and pretrained:
        raise ValueError("--weights and --pretrained exclude each other: pass one of them")
    if weights is None and not pretrained:
        if name is not None and name not in encoder_names() and ":" not in name:
            raise ValueError(f"unknown encoder {name!r}; known names: {names}")
        missing = "no encoder is named" if name is None else f"the encoder {name} has no weights"
        raise ValueError(
            f"{missing}: pass --encoder NAME ({names}) with --weights FILE or --pretrained, or --features FILE"
        )
    if weights is None:
        if name is None:
            raise ValueError(f"--pretrained needs the name of an encoder: pass --encoder NAME ({names})")
        encoder = Encoder.from_name(name, dim=dim, pretrained=True, seed=seed, **options)
        trained_head = dim is None and ":" in name
    elif name is None:
        return LoadedEncoder(Encoder.from_checkpoint(weights).eval(), True, options)
    else:
        head = read_weights(weights)[0].get("head.weight")
        if dim is None and head is not None and head.ndim == 2:
            dim = len(head)
        architecture = {"dim": dim, "seed": seed, **options}
        try:
            encoder, trained_head = Encoder.from_checkpoint(weights, name, **architecture), True
        except ValueError as error:
            try:
                encoder = Encoder.from_checkpoint(weights, name, part="backbone", **architecture)
            except ValueError:
                raise error from None
            trained_head = False
    encoder.recipe = {"name": name, "dim": encoder.dim}  # an encoder with options has none of its own
    return LoadedEncoder(encoder.eval(), trained_head, options)


def preparation_for(name: str, *, image_size: int | None = None, channels: int | None = None) -> Preparation:
    """Return how images are prepared for an encoder; a size or a number of channels may be given instead.

    Photographs are scaled to 224 and have three channels. They stay in [0, 1], since the first layer of the networks
    subtracts the mean that they were trained with.

    Example:
        >>> preparation_for("fashion-mnist").image_size, preparation_for("resnet50-gem").image_size
        (28, 224)
    """
    known: dict[str, tuple[int | None, int]] = {
        "fashion-mnist": (28, 1),
        "cifar-10": (32, 3),
        "n-digit": (None, 1),
    }
    size, colours = known.get(name, (224, 3))
    return Preparation(image_size or size, channels or colours, "unit")
