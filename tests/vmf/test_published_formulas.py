"""What the papers on vMF embeddings print, beside what is right: each in numbers.

Kirchhof et al., "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning" (2022) and "Probabilistic
Contrastive Learning Recovers the Correct Aleatoric Uncertainty of Ambiguous Inputs" (2023).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import vmf

float64 = torch.float64


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=float64)


def printed_kl(k1: float, k2: float, cosine: float, dim: int) -> float:
    """Equation 39 of the first, which lacks the factor A(k1)."""
    g1, g2 = vmf.relative_log_normalizer(torch.tensor([k1, k2], dtype=float64), dim)
    return float(g1 - g2) + k1 - k2 * cosine


def test_the_printed_divergence_lacks_the_mean_length() -> None:
    """At D = 512, k = 140 and a cosine of 1/2 it is 70.0 instead of 17.9; at D = 3 quadrature says which is right."""
    mean = torch.eye(512, dtype=float64)[0]
    other = 0.5 * mean + math.sqrt(0.75) * torch.eye(512, dtype=float64)[1]
    assert float(vmf.kl(mean, number(140.0), other, number(140.0))) == pytest.approx(17.9, abs=0.05)
    assert printed_kl(140.0, 140.0, 0.5, 512) == pytest.approx(70.0)
    height, weight = (torch.tensor(values) for values in np.polynomial.legendre.leggauss(80))
    log_p = vmf.log_normalizer(number(6.0), 3) + 6 * height
    # Of the other direction only the part along the first one counts: the rest averages out around the axis.
    log_q = vmf.log_normalizer(number(9.0), 3) + 9 * 0.3 * height
    expected = float((2 * math.pi * weight * log_p.exp() * (log_p - log_q)).sum())
    tilted = torch.tensor([0.3, math.sqrt(1 - 0.09), 0.0], dtype=float64)
    value = float(vmf.kl(torch.eye(3, dtype=float64)[0], number(6.0), tilted, number(9.0)))
    assert value == pytest.approx(expected, abs=1e-9)
    assert printed_kl(6.0, 9.0, 0.3, 3) > expected + 0.4


def test_the_kernel_without_the_positives_concentration_asks_for_less() -> None:
    """A(k')^2 = A(k)^2 A(kpos): of 22.6 at D = 10 and kpos = 20 remain 14.5."""
    lengths = vmf.mean_resultant_length(torch.tensor([22.6, 20.0], dtype=float64), 10)
    learned = vmf.concentration(lengths[0] * lengths[1].sqrt(), 10)
    assert float(learned) == pytest.approx(14.5, abs=0.1)


def published_loss(z: Tensor, other: Tensor, kpos: float) -> Tensor:
    """Equation 7 of the second: the expectation of the ratio, for draws (K, N, D) of images and positives."""
    log = kpos * torch.einsum("kiz,ljz->ijkl", z, other)
    against = log.logsumexp(1) - math.log(log.shape[1])  # the positive is among the candidates
    fraction = log.diagonal().permute(2, 0, 1) - against
    return -(fraction.logsumexp((1, 2)) - 2 * math.log(len(z))).mean()


@pytest.mark.statistical
def test_the_expectation_of_the_ratio_asks_for_more() -> None:
    """At the true concentrations the printed loss still falls with them; the exact posterior's loss is at rest."""
    generator = torch.Generator().manual_seed(0)
    dim, kpos, num, draws, batches = 10, 20.0, 64, 16, 30
    slopes: dict[str, list[Tensor]] = {"printed": [], "exact": []}
    for _ in range(batches):
        mean = F.normalize(torch.randn(num, dim, generator=generator), dim=1)
        k1, k2 = (16 * 2 ** torch.rand(num, generator=generator) for _ in range(2))
        z = vmf.sample(mean, k1, 1, generator=generator)[0]
        positive = vmf.sample(z, torch.full((num,), kpos), 1, generator=generator)[0]
        other = vmf.sample(positive, k2, 1, generator=generator)[0]
        cosine = (mean @ other.T).double().clamp(-1, 1)
        s = torch.ones((), requires_grad=True)
        a, b = (vmf.sample(m, s * k, draws, generator=generator) for m, k in ((mean, k1), (other, k2)))
        log = vmf.log_positivity(cosine, s * k1[:, None], s * k2, kpos, dim)
        losses = {"printed": published_loss(a, b, kpos), "exact": F.cross_entropy(log, torch.arange(num))}
        for name, loss in losses.items():
            slopes[name] += torch.autograd.grad(loss, s)
    printed, exact = (torch.stack(slopes[name]).double() for name in ("printed", "exact"))
    errors = [float(values.std()) / math.sqrt(batches) for values in (printed, exact)]
    assert float(printed.mean()) < -4 * errors[0]
    assert abs(float(exact.mean())) < 4 * errors[1]
