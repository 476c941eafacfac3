"""The direction of a Gaussian vector: mean direction and concentration of u/|u| for u ~ N(m, Sigma), without samples.

1/|u| is an integral of exp(-s^2 |u|^2) over s, whose expectations against a Gaussian are known; so the mean of u/|u|
is a one-dimensional integral, here written with non-negative integrands only. docs/von_mises_fisher.md derives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hessians.checks import check_finite, check_matrix, check_same_device
from laplacian_metric.vmf.angle import gauss_legendre
from laplacian_metric.vmf.checks import check_entries, precise, result_dtype
from laplacian_metric.vmf.fitting import safe_sqrt, solve, unit_direction

BLOCK = 1 << 17  # entries handled at a time: a few such arrays stay in the processor's cache
Step = float | Tensor  # s^2 at one node of the integral, or (48, 1, 1) at all of them


def steps(count: int) -> list[tuple[float, float]]:
    """s^2 at the nodes of the integral over s from 0 to infinity, s = (x/(1-x))^2, and the weights times ds/dx."""
    nodes = zip(*gauss_legendre(count), strict=True)
    return [((x / (1 - x)) ** 4, weight * 2 * x / (1 - x) ** 3) for x, weight in nodes]


STEPS = steps(48)


class ProjectedNormal(NamedTuple):
    """The direction of a Gaussian vector, for each of N images.

    ``mean`` (N, Z) is the unit mean direction, ``length`` (N,) R = |E u/|u||, ``variance`` (N,) V = 1 - R^2 with
    all its digits, ``kappa`` (N,) the concentration that has this R.
    """

    mean: Tensor
    length: Tensor
    variance: Tensor
    kappa: Tensor


class _Node(NamedTuple):
    """One node of the integral, with M = I + s^2 (2/c) Sigma: a = mh . M^{-1} mh, log(a det M), M^{-1} mh - a mh
    (in ``tangent``, up to a factor that the caller knows) and its squared length; (N, 1), the tangent (N, Z)."""

    a: Tensor
    log_ad: Tensor
    tangent: Tensor
    squared: Tensor


def projected_normal(
    mean: Tensor, variance: Tensor, factor: Tensor | None = None, *, refine: int = 0
) -> ProjectedNormal:
    """Mean direction and concentration of u/|u| for u ~ N(mean, covariance), exactly and without samples.

    Memory is O(N Z) (O(N Z r) with a factor) whatever the number of nodes, unless gradients are recorded. Accuracy is
    5e-7 of V, 3e-5 where one variance exceeds all others by four orders of magnitude, 1e-6 in float32. If images
    share the eigenvectors of their covariances, rotate the means once and pass the eigenvalues as variances.

    Args:
        mean: (N, Z), means of the vectors; any length. Zero gives kappa = 0 and the first axis as direction.
        variance: (N, Z), a diagonal covariance, or (N, Z, Z), a full one; zeros are allowed.
        factor: (N, Z, r), adds factor factor^T to the diagonal covariance.
        refine: Newton steps that refine Sra's estimate of kappa from R; 3 solve A(kappa) = R to 1e-9.

    Example:
        >>> mean = torch.tensor([[10.0, 0.0, 0.0], [0.1, 0.0, 0.0]])
        >>> projected_normal(mean, torch.ones(2, 3)).kappa
        tensor([100.4875,   0.1597])
    """
    _check(mean, variance, factor)
    dtype, dim = result_dtype(mean, variance), mean.shape[1]
    if not torch.compiler.is_compiling() and not len(mean):
        none = mean.new_zeros(0, dtype=dtype)
        return ProjectedNormal(mean.to(dtype), none, none, none)
    axes = None
    if factor is not None and 2 * factor.shape[2] >= dim:
        # So much of a factor saves nothing, and may leave the diagonal nothing to stand on.
        variance, factor = torch.diag_embed(variance) + factor @ factor.mT, None
    if variance.ndim == 3:
        mean, variance, axes = _principal_axes(mean, variance)
    # A few rows at a time; in a graph, which is for any number of them, all at once.
    blocks = [slice(None)]
    if not torch.compiler.is_compiling():
        size = max(1, BLOCK // (dim * (1 if factor is None else 1 + 2 * factor.shape[2])))
        blocks = [slice(start, start + size) for start in range(0, len(mean), size)]
    parts = []
    for rows in blocks:
        if factor is None:
            parts.append(_moments(mean[rows].to(dtype), variance[rows].to(dtype), None))
        else:
            # Cancellation between the factor and the diagonal takes digits that float32 does not have.
            parts.append(_moments(precise(mean[rows]), precise(variance[rows]), precise(factor[rows])))
    direction, length, spread = (torch.cat(part) for part in zip(*parts, strict=True))
    if axes is not None:
        direction = (axes @ direction.to(axes.dtype)[..., None])[..., 0]
        direction = unit_direction(direction, length > 0)
    kappa = solve(length, spread, dim, refine)
    return ProjectedNormal(*(result.to(dtype) for result in (direction, length, spread, kappa)))


def _check(mean: Tensor, variance: Tensor, factor: Tensor | None) -> None:
    check_matrix("mean", mean)
    num, dim = mean.shape
    if dim < 2:
        raise ValueError(
            f"mean has shape {tuple(mean.shape)}: at least 2 dimensions are needed for a direction"
        )
    allowed = [(num, dim)] if factor is not None else [(num, dim), (num, dim, dim)]
    if tuple(variance.shape) not in allowed:
        raise ValueError(
            f"variance has shape {tuple(variance.shape)}, for this mean it must be "
            + " or ".join(str(shape) for shape in allowed)
        )
    if factor is not None and (factor.ndim != 3 or factor.shape[:2] != mean.shape):
        raise ValueError(f"factor has shape {tuple(factor.shape)}, ({num}, {dim}, r) is needed for this mean")
    check_same_device(mean=mean, variance=variance, factor=factor)
    if torch.compiler.is_compiling():  # no value is known
        return
    check_finite("mean", mean)
    if variance.ndim == 2:
        check_entries(
            "variance",
            variance,
            0.0,
            torch.finfo(variance.dtype).max,
            "variances are finite and not negative",
        )
    else:
        check_finite("variance", variance)
    if factor is not None:
        check_finite("factor", factor)


def _principal_axes(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean in the eigenvectors of the covariance, the eigenvalues (N, Z), and the eigenvectors (N, Z, Z)."""
    eps = 4 * torch.finfo(covariance.dtype).eps
    mean, covariance = precise(mean), precise(covariance)
    size = covariance.detach().abs().amax((1, 2), keepdim=True)
    unit = torch.where(size > 0, size, 1)
    covariance = covariance / unit
    skew = (covariance - covariance.mT).detach().abs().amax((1, 2)) > eps * covariance.shape[1]
    values, axes = torch.linalg.eigh((covariance + covariance.mT) / 2)
    largest = values.detach()[:, -1].abs()
    negative = values.detach()[:, 0] < -eps * covariance.shape[1] * largest
    for wrong, what in ((skew, "not symmetric"), (negative, "not positive semi-definite")):
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise ValueError(
                f"variance is {what} for {int(wrong.sum())} of {len(wrong)} images, the first is image {row}: "
                "covariance matrices are needed"
            )
    turned = (axes.mT @ mean[..., None])[..., 0]
    # A mean made of rounding errors, along an axis without variance, would count as one that is certain.
    rounding = eps * math.sqrt(mean.shape[1]) * mean.detach().abs().amax(1, keepdim=True)
    flat = values.detach() <= eps * largest[:, None]
    turned = torch.where(flat & (turned.detach().abs() <= rounding), 0, turned)
    return turned, values.clamp(min=0) * unit[..., 0], axes


def _moments(mean: Tensor, variance: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean direction (N, Z), R and V (N,) of a block of rows, the last two in float64."""
    # In units of the largest entry, so that no square overflows.
    largest = torch.maximum(mean.detach().abs().amax(1), variance.detach().amax(1).sqrt())
    if factor is not None:
        largest = torch.maximum(
            largest, factor.detach().abs().flatten(1).amax(1) if factor.shape[2] else largest
        )
    unit = torch.where(largest > 0, largest, 1)[:, None]
    mean, variance = mean / unit, variance / unit / unit
    total = variance.sum(1)
    if factor is not None:
        factor = factor / unit[..., None]
        total = total + factor.square().sum((1, 2))
    norm = torch.linalg.vector_norm(mean, dim=1)
    axis = unit_direction(mean, norm > 0)
    c = norm.square() + total
    c = torch.where(c > 0, c, 1)
    scaled = 2 * variance / c[:, None]
    if factor is None:
        node, turn = _diagonal_node(axis, scaled), axis
        exhausted = _exhausted(mean, variance)
    else:
        node, turn = (
            _low_rank_node(axis, scaled, factor * (2 / c).sqrt()[:, None, None]),
            torch.ones_like(axis),
        )
        exhausted = _exhausted_low_rank(mean, variance, factor)
    # A graph with all nodes in it one after the other would be large, and slow to make and to load.
    at_once = factor is None and torch.compiler.is_compiling()
    eta, alpha, tangent = _integrate(node, (norm.square() / c)[:, None], torch.zeros_like(axis), at_once)
    before = 2 / math.sqrt(math.pi) * norm / c.sqrt()
    eta = precise(exhausted + before * eta[:, 0])
    alpha, tangent = before * alpha[:, 0], before[:, None] * tangent * turn
    direction = alpha[:, None] * axis + tangent
    across = precise(tangent).square().sum(1)
    squared_length = precise(alpha).square() + across
    spread = torch.where(squared_length > 0.5, eta * (2 - eta) - across, 1 - squared_length).clamp(0, 1)
    length = safe_sqrt(torch.where(squared_length > 0.5, 1 - spread, squared_length))
    return unit_direction(direction, length > 0), length, spread


def _integrate(
    node: Callable[[Step], _Node], energy: Tensor, start: Tensor, at_once: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The integrals of eta, of alpha (N, 1) and of the tangent (N, Z) over s.

    With ``at_once`` all nodes are evaluated together, in a dimension before the others.
    """
    eta, alpha, tangent = torch.zeros_like(energy), torch.zeros_like(energy), start
    nodes: Sequence[tuple[Step, Step]] = STEPS
    if at_once:
        together = energy.new_tensor(STEPS)[..., None, None]
        nodes = [(together[:, 0], together[:, 1])]
    for squared, weight in nodes:
        at = node(squared)
        root = at.a.sqrt()
        common = weight * (-squared * energy * at.a).exp()
        eta = eta + common * (at.squared / root - at.a * root * torch.expm1(-at.log_ad / 2))
        inverse_root = common * root * (-at.log_ad / 2).exp()  # common / sqrt(det M)
        alpha = alpha + inverse_root * at.a
        tangent = torch.addcmul(tangent, inverse_root, at.tangent)
    return (eta.sum(0), alpha.sum(0), tangent.sum(0)) if at_once else (eta, alpha, tangent)


def _diagonal_node(axis: Tensor, scaled: Tensor) -> Callable[[Step], _Node]:
    """Nodes for variances ``scaled`` = 2 v/c; their tangents are to be multiplied by the axis."""
    p = axis.square()
    largest, star = scaled.max(1, keepdim=True)
    excess = p * (largest - scaled)
    bounds = None  # of x below; in a graph no value is known
    if not torch.compiler.is_compiling():
        bounds = float(largest.detach().amin()), float(largest.detach().amax())

    def node(squared: Step) -> _Node:
        x = squared * scaled
        u = 1 + x
        b = 1 / u
        # b - a, from 1 - b while x is small and from b itself once it is large.
        small = squared * largest < 1
        if bounds is not None and squared * bounds[1] < 1:
            w = -x * b
        elif bounds is not None and squared * bounds[0] >= 1:
            w = b
        else:
            w = torch.where(small, -x * b, b)
        average = (p * w).sum(-1, keepdim=True)
        a = torch.where(small, 1 + average, average)
        tangent = w - average
        # The largest is left out, so that the rest keeps its digits.
        logs = _log1p(x, u, b).scatter_(-1, star.expand(*x.shape[:-1], 1), 0.0)
        log_ad = logs.sum(-1, keepdim=True) + torch.log1p(squared * (excess * b).sum(-1, keepdim=True))
        return _Node(a, log_ad, tangent, (p * tangent.square()).sum(-1, keepdim=True))

    return node


def _log1p(x: Tensor, u: Tensor, b: Tensor) -> Tensor:
    """log(1 + x) from u = 1 + x and b = 1/u, with what the rounding of u lost: many times faster than torch.log1p."""
    return u.log() + (x - (u - 1)) * b


def _exhausted(mean: Tensor, variance: Tensor) -> Tensor:
    """erfc(sqrt(m^T Sigma^{-1} m/2)), what is left of the integral at infinity."""
    certain = variance <= 0
    terms = mean.square() / torch.where(certain, 1, 2 * variance)
    terms = torch.where(certain, torch.where(mean == 0, 0, torch.inf), terms)
    return torch.erfc(safe_sqrt(terms.sum(1)))


def _low_rank_node(axis: Tensor, scaled: Tensor, factor: Tensor) -> Callable[[Step], _Node]:
    """Nodes for the covariance (2/c) (diag d + U U^T), by Woodbury's identity: O(Z r^2 + r^3) each."""
    identity = torch.eye(factor.shape[2], dtype=factor.dtype, device=factor.device)

    def node(squared: Step) -> _Node:
        x = squared * scaled
        u = 1 + x
        inverse = 1 / u
        b = factor * inverse[..., None]
        small = squared * factor.mT @ b
        root = torch.linalg.cholesky(identity + small)
        y = torch.cholesky_solve((b.mT @ axis[..., None]), root)
        change = -x * inverse * axis - squared * (b @ y)[..., 0]  # M^{-1} mh - mh
        solved = inverse * axis - squared * (b @ y)[..., 0]
        # As a sum of squares, mh M^{-1} mh cannot lose its sign to rounding.
        a = (u * solved.square()).sum(1)
        a = a + squared * (factor.mT @ solved[..., None])[..., 0].square().sum(1)
        less = -(axis * change).sum(1)  # 1 - a
        near = less < 0.5
        tangent = torch.where(near[:, None], change + less[:, None] * axis, solved - a[:, None] * axis)
        a = torch.where(near, 1 - less, a)
        log_a = torch.where(near, torch.log1p(-torch.where(near, less, 0)), a.log())
        log_ad = log_a + _log1p(x, u, inverse).sum(1) + _log_det(small, root)
        lengths = tangent.square().sum(1, keepdim=True)
        return _Node(a[:, None], log_ad.clamp(min=0)[:, None], tangent, lengths)

    return node


def _log_det(small: Tensor, root: Tensor) -> Tensor:
    """log det(I + small), from its Cholesky factor or, where that has no digits left, from its series."""
    size = small.detach().square().sum((1, 2)).sqrt()
    by_root = 2 * root.diagonal(dim1=1, dim2=2).log().sum(1)
    square = small @ small
    series = (
        small.diagonal(dim1=1, dim2=2).sum(1)
        - square.diagonal(dim1=1, dim2=2).sum(1) / 2
        + (square * small.mT).sum((1, 2)) / 3
        - (square * square.mT).sum((1, 2)) / 4
    )
    return torch.where(size < 1e-3, series, by_root)


def _exhausted_low_rank(mean: Tensor, variance: Tensor, factor: Tensor) -> Tensor:
    """erfc(sqrt(m^T Sigma^{-1} m/2)) by Woodbury's identity.

    Variances of 0 stand for very small ones: too small to matter, large enough to leave digits after the subtraction.
    """
    floor = 1e-2 * math.sqrt(torch.finfo(mean.dtype).eps) * (variance.sum(1) + factor.square().sum((1, 2)))
    d = torch.maximum(variance, floor.clamp(min=math.sqrt(torch.finfo(mean.dtype).tiny))[:, None])
    b = factor / d[..., None]
    identity = torch.eye(factor.shape[2], dtype=factor.dtype, device=factor.device)
    root = torch.linalg.cholesky(identity + factor.mT @ b)
    y = torch.cholesky_solve(b.mT @ mean[..., None], root)
    solved = mean / d - (b @ y)[..., 0]
    form = (d * solved.square()).sum(1) + (factor.mT @ solved[..., None])[..., 0].square().sum(1)
    return torch.erfc(safe_sqrt(form / 2))
