"""The published non-isotropic form is no density."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from experiments.published_nivmf import log_density, log_masses
from laplacian_metric import vmf


@pytest.mark.parametrize(("dim", "kappa"), [(3, 5.0), (10, 5.0), (128, 60.0)])
def test_its_mass_is_a_power_of_the_concentration(dim: int, kappa: float) -> None:
    """With K = k I it is k^(D - 1) times the von Mises-Fisher density, whose mass is 1."""
    x = F.normalize(
        torch.randn(9, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1
    )
    log_scale = torch.full((dim,), math.log(kappa), dtype=torch.float64)
    excess = log_density(x, x[0], log_scale) - vmf.log_density(
        x, x[0], torch.tensor(kappa, dtype=torch.float64)
    )
    torch.testing.assert_close(excess, torch.full_like(excess, (dim - 1) * math.log(kappa)))


@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_only_the_exact_form_has_mass_one(sigma: float) -> None:
    published, exact = log_masses(3, 20.0, sigma, points=100_000)
    assert exact == pytest.approx(0, abs=0.05)
    assert published > 1
