"""The fit to samples that come one after the other, for numbers of samples that would not fit into memory."""

from __future__ import annotations

import torch
from torch import Tensor

from laplacian_metric.vmf.checks import check_unit, precise, result_dtype
from laplacian_metric.vmf.fitting import fit_moments


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
