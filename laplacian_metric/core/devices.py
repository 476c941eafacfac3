"""On which devices is computed: a GPU where there is one, and float64 where the device has it."""

from __future__ import annotations

import torch

from hessians.checks import has_float64


def best_device() -> torch.device:
    """Return the GPU that torch can use, CUDA's (and ROCm's) before Apple's, else the processor."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def exact_device(device: torch.device | str) -> torch.device:
    """Return the device where posteriors are computed: the same, or the processor if that device has no float64.

    Example:
        >>> exact_device("cuda:1"), exact_device("mps")
        (device(type='cuda', index=1), device(type='cpu'))
    """
    return torch.device(device if has_float64(device) else "cpu")


def pins_memory() -> bool:
    """Whether batches are put into pinned memory, out of which they are copied to a GPU while it computes."""
    return torch.cuda.is_available()
