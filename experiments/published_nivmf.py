"""The published non-isotropic von Mises-Fisher "density", and its mass on the sphere, which is not 1.

    python -m experiments.published_nivmf --out figures

Kirchhof et al. (2022) give rho(x) = C(kt) exp(kt cos(K x, K mu)) prod(K)/kt with kt = |K mu|. With equal K = k its mass
is k^(D-1). `laplacian_metric.vmf.nivmf` has the change of variables right; the table shows both, by uniform points.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.common import save, show
from experiments.arguments import folders
from laplacian_metric import vmf

TITLE = "Mass of the non-isotropic density on the sphere"
NOTE = (
    "log of the mean density over uniform points times the sphere's area, which is 0 for a density. kt: length of K "
    "mu; sigma: standard deviation of log K. In many dimensions uniform points hardly meet the density, and the "
    "estimate is too small."
)


def log_density(x: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
    """Return the logarithm of the published form, (N,), for x (N, D), mean (D,) and log_scale (D,) = log K.

    Example:
        >>> x = torch.eye(3)
        >>> log_density(x, x[0], torch.full((3,), 2.0)) - vmf.log_density(x, x[0], torch.tensor(2.0).exp())
        tensor([4.0000, 4.0000, 4.0000])
    """
    scaled = log_scale.exp() * mean
    kt = torch.linalg.vector_norm(scaled)
    cosine = F.normalize(x * log_scale.exp(), dim=1) @ (scaled / kt)
    value: Tensor = vmf.log_normalizer(kt, x.shape[1]) + kt * cosine + log_scale.sum() - kt.log()
    return value


def log_densities(x: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
    """Return the published form of every point for every distribution, (N, C), from the exact one.

    Args:
        x: (N, D), unit vectors.
        mean: (C, D), unit vectors.
        log_scale: log K, (C, D).

    Example:
        >>> x, log_scale = torch.eye(3), torch.full((1, 3), 2.0)
        >>> torch.allclose(log_densities(x, x[:1], log_scale)[:, 0], log_density(x, x[0], log_scale[0]))
        True
    """
    squares = (2 * log_scale).exp()
    length, kt = (x.square() @ squares.T).log() / 2, (mean.square() * squares).sum(1).log() / 2
    return vmf.nivmf.log_density(x, mean, log_scale) + x.shape[1] * length - kt


def log_masses(dim: int, kt: float, sigma: float, points: int = 200_000) -> tuple[float, float]:
    """Return the log mass of the published and of the exact form, by uniform points, at a drawn mean and K."""
    generator = torch.Generator().manual_seed(0)
    x = F.normalize(torch.randn(points, dim, generator=generator, dtype=torch.float64), dim=1)
    mean = F.normalize(torch.randn(dim, generator=generator, dtype=torch.float64), dim=0)
    log_scale = sigma * torch.randn(dim, generator=generator, dtype=torch.float64)
    log_scale += math.log(kt) - (log_scale.exp() * mean).norm().log()
    area = math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2) - math.log(points)
    published, exact = (
        float(log.logsumexp(0)) + area
        for log in (log_density(x, mean, log_scale), vmf.nivmf.log_density(x, mean, log_scale))
    )
    return published, exact


def main() -> None:
    """Make the table."""
    command = folders(__doc__, ("--out",))
    out = command.parse_args().out
    rows = []
    for dim in (3, 10):
        for kt in (5.0, 20.0):
            for sigma in (0.0, 0.3, 1.0):
                published, exact = log_masses(dim, kt, sigma)
                rows.append({"D": dim, "kt": kt, "sigma": sigma, "published": published, "exact": exact})
    show(TITLE, rows)
    save(out, "nivmf_mass", TITLE, rows, NOTE)


if __name__ == "__main__":
    main()
