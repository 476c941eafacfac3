"""Checks of what a caller hands in: each names the offending thing and says what would be right."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from enum import Enum
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

T = TypeVar("T", bound="Choice")
P = ParamSpec("P")
R = TypeVar("R")

COMPUTE_DTYPES = (torch.float32, torch.float64)
WITHOUT_FLOAT64 = ("mps",)  # types of devices
AUTOCAST = ("cpu", "cuda", "mps", "xpu")


class CurvatureOverflowError(ValueError):
    """Features are too long for their dtype: the curvature has entries that are not finite."""


class CurvatureWarning(UserWarning):
    """The result is correct, and probably not what its user hopes for."""


class Choice(str, Enum):
    """An enumeration that is made from its words, with an error that lists them."""

    @classmethod
    def parse(cls: type[T], value: str | T, name: str | None = None) -> T:
        """The member with this value; ``name`` is what the error calls it, the class's name by default.

        Example:
            >>> class Colour(Choice):
            ...     RED = "red"
            ...     BLUE = "blue"
            >>> Colour.parse("red")
            <Colour.RED: 'red'>
            >>> Colour.parse("green")
            Traceback (most recent call last):
            ...
            ValueError: colour is 'green', one of 'red', 'blue' is needed
        """
        try:
            return cls(value)
        except ValueError:
            words = ", ".join(repr(member.value) for member in cls)
            raise ValueError(
                f"{name or cls.__name__.lower()} is {value!r}, one of {words} is needed"
            ) from None


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function of tensors that keeps their digits inside of ``torch.autocast``, which rounds matrix products.

    Example:
        >>> product = without_autocast(torch.mm)
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     torch.mm(torch.eye(2), torch.eye(2)).dtype, product(torch.eye(2), torch.eye(2)).dtype
        (torch.bfloat16, torch.float32)
    """

    @functools.wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> R:
        with contextlib.ExitStack() as stack:
            for device in filter(torch.is_autocast_enabled, AUTOCAST):
                stack.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)

    return exact


def check_floating(name: str, tensor: Tensor) -> None:
    """Refuse anything that is not a floating point tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}, a torch.Tensor is needed")
    if not tensor.is_floating_point():
        raise TypeError(
            f"{name} has dtype {tensor.dtype}, a floating point dtype is needed: use {name}.float()"
        )


def check_matrix(name: str, tensor: Tensor) -> None:
    """Refuse anything that is not a floating point matrix."""
    check_floating(name, tensor)
    if tensor.ndim != 2:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, two dimensions are needed: one row for each image"
        )


def check_finite(name: str, tensor: Tensor, first_row: int = 0) -> None:
    """Refuse NaN and infinity, naming the first row that has one."""
    # The sum of finite numbers is finite unless it overflows, and costs one pass: look closer only if it is not.
    if not torch.isfinite(tensor.sum()):
        bad = ~torch.isfinite(tensor).flatten(1).all(1) if tensor.ndim > 1 else ~torch.isfinite(tensor)
        rows = bad.nonzero().flatten()
        if len(rows):
            raise ValueError(
                f"{name} has NaN or infinite entries in {len(rows)} of {len(tensor)} rows, the first is row "
                f"{int(rows[0]) + first_row}: remove those images or mend the network that made them"
            )


def check_varied(name: str, tensor: Tensor) -> None:
    """Refuse two rows and more that are all the same, up to rounding: nothing can be learned from them."""
    if len(tensor) < 2 or not tensor.numel():
        return
    low, high = tensor.detach().aminmax(dim=0)
    largest = torch.maximum(low.abs(), high.abs()).amax()
    if float((high - low).amax()) <= 8 * torch.finfo(tensor.dtype).eps * float(largest):
        what = "0" if not float(largest) else "the same"
        raise ValueError(
            f"all {len(tensor)} rows of {name} are {what}: nothing can be learned from them. Check what made them: "
            "its weights, how its inputs are scaled, and where the features were cut off"
        )


def check_no_overflow(features: Tensor, num_images: int, curvature: Tensor | None = None) -> None:
    """Refuse features whose squares, summed over the images, overflow, or a curvature that has overflowed."""
    if curvature is not None and bool(torch.isfinite(curvature).all()):
        return
    largest = float(features.detach().abs().amax()) if features.numel() else 0.0
    if curvature is not None or largest**2 * num_images > torch.finfo(features.dtype).max:
        raise CurvatureOverflowError(
            f"the curvature overflows {features.dtype}, as do the squares of the features, the largest "
            f"of which is {largest:.2g}: divide the features by their standard deviation, or compute in float64 "
            "(features.double() and a head in double precision)"
        )


def check_same_device(**tensors: Tensor | None) -> None:
    """Refuse tensors that live on different devices."""
    devices = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"all tensors must be on one device, but got {listed}")


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """float64 for float64, else float32: the half precisions have too few digits for a curvature."""
    return tensor.dtype if tensor.dtype in COMPUTE_DTYPES else torch.float32


def exact_device(device: torch.device | str) -> torch.device:
    """Return the device where posteriors are computed: the same, or the processor if that device has no float64.

    Apple's GPUs have none.

    Example:
        >>> exact_device("cuda:1"), exact_device("mps")
        (device(type='cuda', index=1), device(type='cpu'))
    """
    device = torch.device(device)
    return torch.device("cpu") if device.type in WITHOUT_FLOAT64 else device


def widest_dtype(device: torch.device | str) -> torch.dtype:
    """float64 where the device has it, else float32.

    Example:
        >>> widest_dtype("cuda"), widest_dtype("mps")
        (torch.float64, torch.float32)
    """
    return torch.float32 if torch.device(device).type in WITHOUT_FLOAT64 else torch.float64
