"""Mean direction and concentration from unit samples, and the concentration that has a given resultant length."""

from __future__ import annotations

import torch
from torch import Tensor

from laplacian_metric.vmf.bessel import expand
from laplacian_metric.vmf.checks import (
    check_broadcast,
    check_dim,
    check_entries,
    check_unit,
    precise,
    result_dtype,
)

SMALLEST_VARIANCE = 1e-30  # keeps kappa finite in float32


def concentration(
    length: Tensor | None, dim: int, *, variance: Tensor | None = None, refine: int = 3
) -> Tensor:
    """The kappa at which A_D(kappa) is ``length``, the inverse of ``mean_resultant_length``.

    R is the length, V = 1 - R^2 the variance. Of a length near 1 only the variance knows the digits that matter, of
    one near 0 only the length: give what was computed without a subtraction, or both. Sra's estimate
    kappa = R (D - 1 + V)/V, off by up to 6.5 % in two dimensions and hardly in many, is refined by Newton steps
    on A_D(kappa) = R.

    Args:
        length: R, from 0 to 1, of any shape; None where only V is known.
        dim: D, the dimension of the space around the sphere.
        variance: V, from 0 to 1, of the same shape; below 1e-30 kappa grows no further.
        refine: Newton steps; two leave 3e-5 in two dimensions, three 1e-9.

    Returns:
        kappa, of their shape, differentiable.

    Example:
        >>> concentration(torch.tensor([0.0, 0.9]), 3)
        tensor([ 0.0000, 10.0000])
        >>> concentration(None, 3, variance=torch.tensor([1e-12]))
        tensor([2.0000e+12])
    """
    check_dim(dim)
    for name, value in (("length", length), ("variance", variance)):
        if value is not None:
            check_entries(name, value, 0.0, 1.0, "both are from 0 to 1 for unit vectors")
    if variance is not None and length is not None:
        check_broadcast(length=length.shape, variance=variance.shape)
        R, V, dtype = precise(length), precise(variance), result_dtype(length, variance)
    elif variance is not None:
        V, dtype = precise(variance), result_dtype(variance)
        R = safe_sqrt(1 - V)
    elif length is not None:
        R, dtype = precise(length), result_dtype(length)
        V = (1 - R) * (1 + R)
    else:
        raise ValueError("neither length nor variance is given: concentration needs one of them")
    return solve(R, V, dim, refine).to(dtype)


def solve(length: Tensor, variance: Tensor, dim: int, refine: int) -> Tensor:
    """``concentration`` of both R and V, without checks."""
    variance = variance.clamp(min=SMALLEST_VARIANCE)
    kappa = length * (dim - 1 + variance) / variance
    if refine < 1:
        return kappa
    R, V, k = length.detach(), variance.detach(), kappa.detach()
    for _ in range(refine):
        at = expand(k, dim)
        excess = torch.where(R < 0.5, at.length - R, V / (1 + R) - at.gap)
        k = (k - excess / at.slope).clamp(min=0)
    # The implicit function: dR = A' dk, where near R = 1 it is -dV/(2 R) that has the digits.
    change = torch.where(R < 0.5, length - R, (V - variance) / (2 * R.clamp(min=0.5)))
    return k + change / expand(k, dim).slope


def safe_sqrt(values: Tensor) -> Tensor:
    """The square root, with gradient 0 at 0 where the true one is infinite."""
    positive = values > 0
    return torch.where(positive, torch.where(positive, values, 1).sqrt(), 0)


def fit(samples: Tensor, *, debiased: bool = True, refine: int = 0) -> tuple[Tensor, Tensor]:
    """The von Mises-Fisher distribution of each image's unit samples.

    The variance V = 1 - R^2 is summed from squares, V = 1/(S - 1) sum_s |z_s - mean|^2, which debiases R^2 to
    (S R^2 - 1)/(S - 1); ``debiased=False`` divides by S and so takes R to be the length of the mean. Samples that
    point everywhere give kappa = 0, identical ones the largest kappa that the dtype can tell, where V is the square
    of its precision. Where S is much less than (D/kappa)^2 the samples carry no signal, and many kappa are 0.

    Args:
        samples: (S, N, D), unit vectors, S draws for each of N images, S at least 2.
        debiased: whether the noise of S draws is taken out of R.
        refine: Newton steps on top of Sra's estimate; 3 solve A_D(kappa) = R to 1e-9.

    Returns:
        mean: (N, D), unit vectors; the first axis where the samples cancel out, with kappa = 0.
        kappa: (N,).

    Example:
        >>> samples = torch.tensor([[[1.0, 0.0, 0.0]], [[0.8, 0.6, 0.0]], [[0.8, 0.0, 0.6]]])
        >>> mean, kappa = fit(samples)
        >>> mean, kappa
        (tensor([[0.9507, 0.2194, 0.2194]]), tensor([7.6859]))
    """
    if not isinstance(samples, Tensor) or samples.ndim != 3:
        shape = (
            f"shape {tuple(samples.shape)}"
            if isinstance(samples, Tensor)
            else f"type {type(samples).__name__}"
        )
        raise ValueError(f"samples has {shape}, a tensor (S, N, D) is needed: draws, images, dimensions")
    count = len(samples)
    if count < 2:
        raise ValueError(f"samples has {count} draws for each image, at least 2 are needed to see a spread")
    check_unit("samples", samples)
    dtype = result_dtype(samples)
    if not samples.numel():
        return samples[0].to(dtype), samples.new_zeros(0, dtype=dtype)
    variances, average = torch.var_mean(samples.to(dtype), dim=0, correction=1 if debiased else 0)
    return fit_moments(
        average, precise(variances.sum(1)), count, debiased=debiased, refine=refine, dtype=dtype
    )


def fit_moments(
    average: Tensor, variance: Tensor, count: int, *, debiased: bool, refine: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`fit` of what is known of S = ``count`` samples: their means (N, D) and variances V (N,), in ``dtype``."""
    variance = variance.clamp(max=1)
    squared = precise(average).square().sum(1)
    # (S R^2 - 1)/(S - 1) cancels where R is near 1, 1 - V where it is near 0.
    near_zero = (count * squared - 1) / (count - 1) if debiased else squared
    squared_length = torch.where(variance < 0.5, 1 - variance, near_zero).clamp(0, 1)
    variance = variance.clamp(min=torch.finfo(dtype).eps ** 2)
    kappa = solve(safe_sqrt(squared_length), variance, average.shape[1], refine)
    return unit_direction(average, squared > 0).to(dtype), kappa.to(dtype)


def unit_direction(vectors: Tensor, defined: Tensor) -> Tensor:
    """Vectors (N, D) at length 1; the first axis where ``defined`` (N,) is false."""
    axis = torch.zeros_like(vectors[..., :1, :])
    axis[..., 0] = 1
    vectors = torch.where(defined[..., None], vectors, axis)
    # The largest entry is divided out first: squares of small numbers would underflow.
    return torch.nn.functional.normalize(vectors / vectors.detach().abs().amax(-1, keepdim=True), dim=-1)


class StreamedFit:
    r"""What `fit` finds for stacked samples (S, N, D), from a running mean and a running sum of squared deviations.

    The variance V = 1/(S - 1) sum_s |z_s - mean|^2 comes from deviations, each from the mean so far (Welford), and
    never from 1 - R^2: it keeps its digits where samples hardly differ. Only (N, D) and (N,) numbers are kept, in
    float64 where the device has it.

    Example:
        >>> fit = StreamedFit()
        >>> for z in torch.tensor([[[1.0, 0.0, 0.0]], [[0.8, 0.6, 0.0]], [[0.8, 0.0, 0.6]]]):
        ...     fit.add(z)
        >>> fit.count, fit.fit()
        (3, (tensor([[0.9507, 0.2194, 0.2194]]), tensor([7.6859])))
    """

    def __init__(self) -> None:
        self.count = 0
        self._dtype: torch.dtype | None = None
        self._mean = torch.empty(0)  # (N, D)
        self._squares = torch.empty(0)  # (N,), sum_s |z_s - mean|^2

    def add(self, samples: Tensor) -> None:
        """Take in one draw (N, D) of unit vectors, or several (S, N, D)."""
        check_unit("samples", samples)
        if samples.ndim not in (2, 3) or (self.count and samples.shape[-2:] != self._mean.shape):
            raise ValueError(
                f"samples has shape {tuple(samples.shape)}, one draw (N, D) or several (S, N, D) of the same images "
                f"are needed; those before were {tuple(self._mean.shape)} each"
            )
        self._dtype = result_dtype(samples) if self._dtype is None else self._dtype
        for sample in precise(samples.detach()) if samples.ndim == 3 else [precise(samples.detach())]:
            self._add_one(sample)

    def _add_one(self, sample: Tensor) -> None:
        self.count += 1
        if self.count == 1:
            self._mean, self._squares = sample.clone(), sample.new_zeros(len(sample))
            return
        deviation = sample - self._mean
        self._mean += deviation / self.count
        # deviation . (sample - new mean), in a form that cannot be negative
        self._squares += deviation.square().sum(1) * ((self.count - 1) / self.count)

    def fit(self, *, debiased: bool = True, refine: int = 0) -> tuple[Tensor, Tensor]:
        """Mean directions (N, D) and concentrations (N,) of all draws so far, as `vmf.fit` defines them."""
        if self.count < 2 or self._dtype is None:
            raise ValueError(
                f"{self.count} draws of each image were added, at least 2 are needed to see a spread"
            )
        variance = self._squares / (self.count - 1 if debiased else self.count)
        return fit_moments(
            self._mean, variance, self.count, debiased=debiased, refine=refine, dtype=self._dtype
        )
