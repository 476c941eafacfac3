"""Networks that compute in bfloat16 while their losses do not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from hessians.checks import Choice
from laplacian_metric.core.batch import device_of
from laplacian_metric.encoder.encoder import Encoder

LOGGER = logging.getLogger(__name__)


class Precision(Choice):
    """What the network computes in; weights and optimizer are float32 in any case."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    """Where the processor or the GPU has instructions for it; elsewhere float32, which is faster there."""


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for products in bfloat16.

    Without them torch computes them all the same, in more than twice the time of float32.

    Example:
        >>> has_bfloat16(torch.device("meta"))
        False
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    # Torch says it in functions that are not public: where one is missing, the slower and more exact form is taken.
    known = (
        getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    )
    return any(ask() for ask in known if ask is not None)


def computed_in(precision: Precision, module: nn.Module) -> Precision:
    """What the backbones compute in where ``precision`` is asked for."""
    imitated = precision is Precision.BFLOAT16 and not has_bfloat16(device_of(module))
    return Precision.FLOAT32 if imitated else precision


@contextmanager
def computing_in(precision: Precision, module: nn.Module) -> Iterator[None]:
    """Inside, the backbones of all encoders in a module compute in ``precision``; their features are float32.

    Heads and losses stay in float32: distances between embeddings that are close have no digits left in bfloat16. Where
    bfloat16 would only be imitated (see `has_bfloat16`) everything does.
    """
    before = _lower(precision, module)
    try:
        yield
    finally:
        for backbone, forward in before:
            vars(backbone).pop("forward", None)
            if forward is not None:
                vars(backbone)["forward"] = forward


def compute_in(precision: Precision | str, module: nn.Module) -> None:
    """As `computing_in`, from now on.

    Example:
        >>> encoder = Encoder(nn.Linear(4, 3), nn.Linear(3, 2))
        >>> compute_in("float32", encoder)
        >>> encoder.features(torch.ones(1, 4)).dtype
        torch.float32
    """
    _lower(Precision.parse(precision), module)


def _lower(precision: Precision, module: nn.Module) -> list[tuple[nn.Module, Any]]:
    """Have the backbones compute in ``precision``; return those that do so, with the forward that each had."""
    if precision is Precision.FLOAT32:
        return []
    # Two encoders may have one backbone in common.
    backbones = {id(part.backbone): part.backbone for part in module.modules() if isinstance(part, Encoder)}
    if not backbones:
        raise ValueError("precision is 'bfloat16', but the module has no Encoder whose backbone could use it")
    if computed_in(precision, module) is Precision.FLOAT32:
        LOGGER.info("no bfloat16 in hardware: float32 is faster")
        return []
    before = [(backbone, vars(backbone).get("forward")) for backbone in backbones.values()]
    for backbone in backbones.values():
        # A method of this object rather than a function: a copy of the module then has one of its own.
        vars(backbone)["forward"] = MethodType(_lowered(backbone, device_of(module)), backbone)
    return before


def _lowered(backbone: nn.Module, device: torch.device) -> Any:
    own = vars(backbone).get("forward")

    def lowered(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            features = type(self).forward(self, *args, **kwargs) if own is None else own(*args, **kwargs)
        lower = isinstance(features, Tensor) and features.dtype == torch.bfloat16
        return features.float() if lower else features

    return lowered
