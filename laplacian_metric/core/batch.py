"""Batches of a loader on their way into a module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def inputs_of(loader: Iterable[Any]) -> Iterator[Any]:
    """The inputs of every batch, whether it has labels or not.

    Example:
        >>> [len(batch) for batch in inputs_of([(torch.zeros(2, 3), torch.zeros(2)), torch.zeros(4, 3)])]
        [2, 4]
    """
    for batch in loader:
        yield batch[0] if isinstance(batch, (tuple, list)) else batch


def device_of(module: nn.Module) -> torch.device:
    """Where the last of a module's parameters is, its head's in an encoder; the processor if it has none."""
    device = torch.device("cpu")
    for parameter in module.parameters():
        device = parameter.device
    return device


def to_device(inputs: Any, module: nn.Module) -> Any:
    """Inputs on the device of the module's last parameter, whatever they are made of."""
    return _moved(inputs, device_of(module))


def _moved(inputs: Any, device: torch.device) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {name: _moved(value, device) for name, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        moved = [_moved(value, device) for value in inputs]
        # A named tuple takes its entries one by one.
        return type(inputs)(*moved) if hasattr(inputs, "_fields") else type(inputs)(moved)
    return inputs
