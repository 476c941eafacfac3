r"""A non-isotropic von Mises-Fisher density on the sphere, exactly normalised, with an exact sampler.

With K = diag(exp(log_scale)), the point y = K x/|K x| has a vMF distribution of direction K mu/|K mu| and concentration
kt = |K mu|. The change of variables dy = det K |K x|^(-D) dx gives the density of x,

    log rho(x) = log C_D(kt) + kt cos(K x, K mu) + sum_m log K_m - D log |K x|,

whose integral over the sphere is 1 in every dimension. K = kappa I is vMF(mu, kappa). The published form (Kirchhof et
al., 2022) lacks the last term and divides by kt; `experiments.published_nivmf` measures its mass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric.vmf.bessel import log_uniform_density, relative_log_normalizer
from laplacian_metric.vmf.checks import check_entries, check_same_dim, check_unit, precise, result_dtype
from laplacian_metric.vmf.sampling import sample as sample_vmf

LARGEST_LOG = 180.0
LARGEST_SPREAD = 40.0


def log_density(x: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
    """Return log rho of every point for every distribution, with respect to the sphere's area.

    Two matrix products; differentiable in all three. Concentrations are computed in float64, what is as large as x in
    its own precision, which in float32 leaves an error of about 1e-6 (kt + D).

    Args:
        x: (N, D), unit vectors.
        mean: (D,) or (C, D), unit vectors. They are modes where K is isotropic or they lie along an axis.
        log_scale: log K, of the shape of mean.

    Returns:
        (N,), or (N, C) for C distributions.

    Example:
        >>> x, mean = torch.eye(3), torch.tensor([1.0, 0.0, 0.0])
        >>> log_density(x, mean, torch.log(torch.tensor([10.0, 20.0, 5.0])))
        tensor([  0.4647, -11.6147,  -7.4559])
    """
    single = mean.ndim == 1
    mean, log_scale = _checked(mean, log_scale)
    check_unit("x", x)
    if x.ndim != 2:
        raise ValueError(f"x has shape {tuple(x.shape)}, (N, D) is needed")
    check_same_dim(x=x, mean=mean)
    dtype, dim = result_dtype(x, mean, log_scale), mean.shape[1]
    x, mean = x.to(dtype), mean.to(dtype)
    W, centre = _centred(log_scale, dtype)
    squares = W.square()
    mean_length = (squares * mean.square()).sum(1).sqrt()  # |W mu|
    length = (x.square() @ squares.T).sqrt()  # |W x|
    cosine = (x @ (squares * mean).T) / (length * mean_length)
    kt = centre.exp() * precise(mean_length)
    value = relative_log_normalizer(kt, dim) + log_uniform_density(dim) + kt * cosine - dim * length.log()
    return (value[:, 0] if single else value).to(dtype)


def sample(mean: Tensor, log_scale: Tensor, k: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Return ``k`` independent exact samples of each distribution: y/K, normalised, of y ~ vMF(K mu/kt, kt).

    Reparametrised: gradients flow to mean and log_scale.

    Args:
        mean: (D,) or (C, D), unit vectors.
        log_scale: log K, of the shape of mean.
        k: how many samples.
        generator: the source of random numbers, on the device of the mean.

    Returns:
        (k, D) or (k, C, D), unit vectors.

    Example:
        >>> mean, log_scale = torch.tensor([0.0, 0.0, 1.0]), torch.log(torch.tensor([2.0, 20.0, 20.0]))
        >>> x = sample(mean, log_scale, 1000, generator=torch.Generator().manual_seed(0))
        >>> x.shape, bool(x[:, 0].std() > 5 * x[:, 1].std())
        (torch.Size([1000, 3]), True)
    """
    single = mean.ndim == 1
    mean, log_scale = _checked(mean, log_scale)
    dtype = result_dtype(mean, log_scale)
    W, centre = _centred(log_scale, dtype)
    scaled = W * mean.to(dtype)
    kt = centre.exp() * precise(torch.linalg.vector_norm(scaled, dim=1))
    y = sample_vmf(F.normalize(scaled, dim=1), kt.to(dtype), k, generator=generator)
    x = F.normalize(y / W, dim=-1)
    return x[:, 0] if single else x


def _centred(log_scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """K = s W with the geometric mean s apart, so that neither overflows: return W (C, D) and log s (C,)."""
    centre = precise(log_scale).mean(1)
    return (log_scale - centre[:, None]).to(dtype).exp(), centre


def _checked(mean: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    check_unit("mean", mean)
    if mean.ndim > 2 or log_scale.shape != mean.shape:
        raise ValueError(
            f"mean has shape {tuple(mean.shape)} and log_scale {tuple(log_scale.shape)}: (D,) or (C, D) is needed, "
            "the same for both"
        )
    remedy = f"log K is from -{LARGEST_LOG:g} to {LARGEST_LOG:g}"
    check_entries("log_scale", log_scale, -LARGEST_LOG, LARGEST_LOG, remedy)
    mean, log_scale = torch.atleast_2d(mean), torch.atleast_2d(log_scale)
    spread = float((log_scale.detach().amax(1) - log_scale.detach().amin(1)).max()) if len(mean) else 0.0
    if spread > LARGEST_SPREAD:
        raise ValueError(
            f"log_scale differs by {spread:g} within a row, at most {LARGEST_SPREAD:g} is possible"
        )
    return mean, log_scale
