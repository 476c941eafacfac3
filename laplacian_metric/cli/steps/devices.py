"""Where networks compute."""

from __future__ import annotations

import torch


def device(name: str) -> torch.device:
    """A device by its name; one that is not there is refused before anything is computed.

    Example:
        >>> device("cpu")
        device(type='cpu')
    """
    try:
        found = torch.device(name)
        torch.empty(1, device=found).sum().item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"there is no device {name!r} that torch can use here: take cpu") from error
    return found
