"""Networks that compute in bfloat16 while their losses do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from laplacian_metric.encoder import Encoder
from laplacian_metric.inputs import device_of
from laplacian_metric.training.options import Precision


@contextmanager
def computing_in(precision: Precision, module: nn.Module) -> Iterator[None]:
    """Inside, the backbones of all encoders in a module compute in ``precision``; their features are float32.

    Heads and losses stay in float32: distances between embeddings that are close have no digits left in bfloat16.
    """
    if precision is Precision.FLOAT32:
        yield
        return
    backbones = [part.backbone for part in module.modules() if isinstance(part, Encoder)]
    if not backbones:
        raise ValueError("precision is 'bfloat16', but the module has no Encoder whose backbone could use it")
    changed = []
    try:
        for backbone in backbones:
            backbone.forward = _lowered(backbone.forward, device_of(module))
            changed.append(backbone)
        yield
    finally:
        for backbone in changed:
            del backbone.forward


def _lowered(forward: Any, device: torch.device) -> Any:
    def lowered(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            features = forward(*args, **kwargs)
        return features.float() if isinstance(features, Tensor) else features

    return lowered
