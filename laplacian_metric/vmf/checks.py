"""Checks of what a caller hands to the von Mises-Fisher functions: each names the offending thing and the remedy."""

from __future__ import annotations

import torch
from torch import Tensor

from hessians.checks import check_floating, check_same_device, widest_dtype

LARGEST_KAPPA = 1e100
HALF_DTYPES = (torch.float16, torch.bfloat16)


def check_dim(dim: int) -> None:
    """Refuse a dimension in which there is no sphere to concentrate on."""
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dim is a {type(dim).__name__}, the number of dimensions is needed as an int")
    if dim < 2:
        raise ValueError(f"dim is {dim}, at least 2 is needed: in one dimension the sphere is two points")


def check_entries(name: str, tensor: Tensor, low: float, high: float, remedy: str) -> None:
    """Refuse entries outside of [low, high], NaN among them, naming the first."""
    check_floating(name, tensor)
    values = tensor.detach()
    bad = (~((values >= low) & (values <= high) & values.isfinite())).nonzero()
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        at = f" at index {where[0] if len(where) == 1 else where}" if where else ""
        raise ValueError(f"{name} has the value {float(values[where]):g}{at}: {remedy}")


def check_kappa(name: str, kappa: Tensor) -> None:
    """Refuse what is no concentration."""
    check_entries(
        name, kappa, 0.0, LARGEST_KAPPA, f"concentrations are from 0 (uniform) to {LARGEST_KAPPA:g}"
    )


def check_unit(name: str, points: Tensor) -> None:
    """Refuse points that are not on the unit sphere of their last dimension, within the precision of their dtype."""
    check_floating(name, points)
    if points.ndim == 0 or points.shape[-1] < 2:
        raise ValueError(
            f"{name} has shape {tuple(points.shape)}, unit vectors of at least 2 dimensions are needed along the last"
        )
    tolerance = 2e-2 if points.dtype in HALF_DTYPES else 1e-3
    norms = torch.linalg.vector_norm(
        points.detach(), dim=-1, dtype=torch.promote_types(points.dtype, torch.float32)
    )
    bad = (~((norms - 1).abs() <= tolerance)).nonzero()
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise ValueError(
            f"{name} has {len(bad)} vectors that are not of length 1, the first, {list(where)}, has length "
            f"{float(norms[where]):g}: use torch.nn.functional.normalize({name}, dim=-1), and look for NaN before"
        )


def check_distribution(mean: Tensor, kappa: Tensor, suffix: str = "") -> None:
    """Refuse a mean (..., D) and a concentration (...) that do not describe distributions."""
    names = f"mean{suffix}", f"kappa{suffix}"
    check_unit(names[0], mean)
    check_kappa(names[1], kappa)
    check_same_device(**{names[0]: mean, names[1]: kappa})
    check_broadcast(**{f"{names[0]} (without its last dimension)": mean.shape[:-1], names[1]: kappa.shape})


def check_broadcast(**shapes: torch.Size) -> None:
    """Refuse shapes that do not broadcast against each other."""
    try:
        torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        listed = ", ".join(f"{name} has shape {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(
            f"{listed}: these do not broadcast, one concentration for each mean is needed"
        ) from None


def check_same_dim(**points: Tensor) -> None:
    """Refuse points on spheres of different dimensions."""
    if len({tensor.shape[-1] for tensor in points.values()}) > 1:
        listed = ", ".join(f"{name} has {tensor.shape[-1]}" for name, tensor in points.items())
        raise ValueError(f"all points must be on one sphere, but the dimensions differ: {listed}")


def result_dtype(*tensors: Tensor) -> torch.dtype:
    """The common dtype of the inputs; float32 for the half precisions, which cannot hold a concentration."""
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return torch.float32 if dtype in HALF_DTYPES else dtype


def precise(tensor: Tensor) -> Tensor:
    """In float64 where the device has it: a number for each image costs nothing, and differences keep their digits."""
    return tensor.to(widest_dtype(tensor.device))
