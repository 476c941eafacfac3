"""Gaussians of raw embeddings u before the norm: what a Gaussian over the weights of a last layer gives each image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessians.checks import check_matrix, check_same_device
from laplacian_metric.vmf import ProjectedNormal, projected_normal
from laplacian_metric.vmf.checks import check_entries

Rows = int | slice | Tensor


@dataclass(frozen=True, eq=False)
class Gaussians:
    """N Gaussians of Z dimensions, N(mean_n, covariance_n).

    Args:
        mean: (N, Z).
        variance: (N, Z), the variances along ``axes``, or (N, Z, Z), whole covariances.
        axes: (Z, Z), orthonormal columns that all images share; None for the axes of the space itself. Only with
            variances (N, Z).

    Example:
        >>> gaussians = Gaussians(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.1, 0.2]]))
        >>> gaussians.marginal_variance
        tensor([[0.1000, 0.2000]])
        >>> gaussians.sample(5).shape
        torch.Size([5, 1, 2])
    """

    mean: Tensor
    variance: Tensor
    axes: Tensor | None = None

    def __post_init__(self) -> None:
        check_matrix("mean", self.mean)
        num, dim = self.mean.shape
        allowed = [(num, dim)] if self.axes is not None else [(num, dim), (num, dim, dim)]
        if tuple(self.variance.shape) not in allowed:
            raise ValueError(
                f"variance has shape {tuple(self.variance.shape)}, for this mean it must be "
                + " or ".join(map(str, allowed))
            )
        if self.axes is not None and tuple(self.axes.shape) != (dim, dim):
            raise ValueError(f"axes has shape {tuple(self.axes.shape)}, ({dim}, {dim}) is needed")
        check_same_device(mean=self.mean, variance=self.variance, axes=self.axes)
        if self.variance.ndim == 2:
            largest = torch.finfo(self.variance.dtype).max
            check_entries("variance", self.variance, 0.0, largest, "variances are finite and not negative")

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def dim(self) -> int:
        """Z."""
        return self.mean.shape[1]

    @property
    def marginal_variance(self) -> Tensor:
        """The variance of every component of u, (N, Z)."""
        if self.variance.ndim == 3:
            return self.variance.diagonal(dim1=1, dim2=2)
        return self.variance if self.axes is None else self.variance @ self.axes.square().T

    @property
    def covariance(self) -> Tensor:
        """The covariance of every image, (N, Z, Z)."""
        if self.variance.ndim == 3:
            return self.variance
        if self.axes is None:
            return torch.diag_embed(self.variance)
        return symmetric((self.axes * self.variance[:, None, :]) @ self.axes.T)

    def direction(self, refine: int = 0) -> ProjectedNormal:
        """Mean direction and concentration of u/|u|, exactly and without samples."""
        if self.axes is None:
            return projected_normal(self.mean, self.variance, refine=refine)
        along = self.mean @ self.axes
        # Along an axis without variance a mean made of rounding errors would count as one that is certain.
        eps = 4 * torch.finfo(along.dtype).eps
        rounding = eps * math.sqrt(self.dim) * self.mean.abs().amax(1, keepdim=True)
        flat = self.variance <= eps * self.variance.amax(1, keepdim=True)
        along = torch.where(flat & (along.abs() <= rounding), 0, along)
        turned = projected_normal(along, self.variance, refine=refine)
        return turned._replace(mean=turned.mean @ self.axes.T)

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Tensor:
        """k independent draws of every image's u, (k, N, Z)."""
        if k < 1:
            raise ValueError(f"k is {k}, at least one sample is needed")
        noise = torch.randn(
            k, *self.mean.shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device
        )
        if self.variance.ndim == 2:
            deviation = noise * self.variance.sqrt()
            return self.mean + (deviation if self.axes is None else deviation @ self.axes.T)
        values, vectors = torch.linalg.eigh(self.variance)
        root = vectors * values.clamp(min=0).sqrt()[:, None, :]
        return self.mean + torch.einsum("nij,knj->kni", root, noise)

    def __getitem__(self, rows: Rows) -> Gaussians:
        rows = as_rows(rows, len(self))
        return Gaussians(self.mean[rows], self.variance[rows], self.axes)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Gaussians:
        """Everything moved to a device or converted to a dtype."""
        axes = None if self.axes is None else self.axes.to(device, dtype)
        return Gaussians(self.mean.to(device, dtype), self.variance.to(device, dtype), axes)

    @staticmethod
    def cat(parts: Sequence[Gaussians]) -> Gaussians:
        """All of them, in order; they share their axes."""
        if not parts:
            raise ValueError("there are no parts: at least one is needed")
        first = parts[0]
        if not all(_same(part.axes, first.axes) for part in parts):
            raise ValueError("these Gaussians have different axes: they are of different posteriors")
        forms = sorted({tuple(part.variance.shape[1:]) for part in parts})
        if len(forms) > 1:
            raise ValueError(
                f"these Gaussians have variances of different forms, {' and '.join(map(str, forms))} for an image: "
                "they are of different posteriors"
            )
        return Gaussians(
            torch.cat([part.mean for part in parts]),
            torch.cat([part.variance for part in parts]),
            first.axes,
        )


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def symmetric(matrices: Tensor) -> Tensor:
    """Without what rounding, whose order of summation may differ between both halves, leaves of a skew part."""
    return (matrices + matrices.mT) / 2


def as_rows(rows: Rows, count: int) -> slice | Tensor:
    """An index into ``count`` images that keeps their dimension."""
    if isinstance(rows, Tensor) and rows.ndim == 0:
        rows = int(rows)
    if not isinstance(rows, int):
        return rows
    if not -count <= rows < count:
        # Iteration ends at this error; a slice would be empty for ever.
        raise IndexError(f"image {rows} of {count} images is asked for")
    return slice(rows, None if rows == -1 else rows + 1)
