"""Running a module without leaving a trace, and comparing what comes out of it with what its head gives."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call


def arguments(inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the backbone is called with: a single tuple, dictionary or list of tensors is unpacked."""
    if len(inputs) == 1 and not named:
        (entry,) = inputs
        if isinstance(entry, dict):
            return (), dict(entry)
        if isinstance(entry, tuple | list) and any(isinstance(x, Tensor) for x in entry):
            return tuple(entry), {}
    return inputs, named


def trial(module: nn.Module, inputs: Any) -> Any:
    """What a module returns for a tensor, a tuple of positional or a dictionary of named arguments.

    Nothing is left of the call: neither running statistics nor random numbers change.
    """
    args, kwargs = arguments((inputs,), {})
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    devices = {x.device.index for x in module.parameters() if x.device.type == "cuda"}
    with torch.no_grad(), torch.random.fork_rng(devices=sorted(devices)):
        return functional_call(module, buffers, args, kwargs)


def is_raw_or_unit(output: Any, raw: Tensor) -> bool:
    if not isinstance(output, Tensor) or output.shape != raw.shape or raw.ndim != 2:
        return False
    # As many digits as the coarser of the two has: a norm may be computed in fewer.
    eps = max(torch.finfo(x.dtype).eps if x.is_floating_point() else 1.0 for x in (output, raw))
    output, raw = output.double(), raw.double()
    for expected in (raw, F.normalize(raw, dim=1)):
        tolerance = 100 * eps * (1 + expected.abs().amax(dim=1, keepdim=True))
        if bool(((output - expected).abs() <= tolerance).all()):
            return True
    return False
