r"""Kronecker factors of the last layer's GGN: the nearest A kron B in Frobenius norm.

With M_nm the Z x Z blocks of the output Hessian and x = [h, 1], the GGN of [W | b] in row-major order is

    G = sum_{n,m} M_nm kron x_n x_m^T.

Without a norm M_nm = S_nm I and G = I kron X^T S X exactly. Otherwise the nearest A kron B is the leading
singular pair of the rearranged G (Van Loan and Pitsianis); alternating A <- sum K_nm M_nm with K = X B X^T, and B <-
X^T V X with V_nm = <A, M_nm>, is its power iteration, and needs N x N and Z x Z matrices only. From a positive
semi-definite G and start, every iterate is positive semi-definite.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hessians.approximations import Approximation
from hessians.checks import without_autocast
from hessians.features import FeatureReader
from hessians.graph import DENSE_IMAGES
from hessians.last_layer import DEFAULT_MEMORY, check_layer
from hessians.output_blocks import output_blocks
from hessians.output_hessian import OutputHessian, StructuredHessian
from hessians.pair_loss import PairLoss
from hessians.pairs import Pairs


class KroneckerFactors(NamedTuple):
    """A kron B over [W | b] in row-major order: ``output`` is A (Z, Z), ``input`` is B (H + 1, H + 1), tr A = Z.

    Without a bias B is (H, H). ``exact`` says whether A kron B is the GGN itself.
    """

    output: Tensor
    input: Tensor
    exact: bool


@without_autocast
def last_layer_kronecker(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pairs: Pairs,
    loss: PairLoss,
    approximation: str | Approximation = Approximation.CLIPPED,
    *,
    project: bool = False,
    tolerance: float = 1e-10,
    max_iterations: int = 500,
) -> KroneckerFactors:
    """The positive semi-definite Kronecker product nearest to a last layer's GGN over a batch.

    Args:
        features, weight, bias, pairs, loss: as for :func:`hessians.last_layer_ggn_diagonal`; at most 4,096 images.
        approximation: "positive" (Euclidean distance) and "clipped" are always positive semi-definite; "fixed" is
            where no image has a negative node weight.
        project: take the positive part of an output Hessian that is indefinite, instead of refusing it.
        tolerance: stop when the norm of A kron B grows by less than this share in an iteration.
        max_iterations: and after so many iterations at the latest.

    Raises:
        IndefiniteHessianError: the output Hessian has negative eigenvalues and ``project`` is off.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> features, weight = torch.eye(4), torch.eye(2, 4) + 0.1
        >>> pairs, loss = Pairs.from_labels([0, 0, 1, 1]), ContrastiveLoss(distance="euclidean", normalize=False)
        >>> factors = last_layer_kronecker(features, weight, None, pairs, loss, "positive")
        >>> factors.output.shape, factors.input.shape, factors.exact
        (torch.Size([2, 2]), torch.Size([4, 4]), True)
    """
    approximation = Approximation.parse(approximation)
    check_layer(features, weight, bias, pairs)
    if len(features) > DENSE_IMAGES:
        raise ValueError(
            f"Kronecker factors need N x N matrices, and {len(features)} images are more than {DENSE_IMAGES}: "
            "use batches, with the population counts of the data set in their pairs"
        )
    reader = FeatureReader(features, DEFAULT_MEMORY)
    u = reader.embed(weight, bias)
    hessian = loss.output_hessian(u, pairs, approximation)
    if project:
        hessian = hessian.positive_part()
    elif approximation is not Approximation.CLIPPED:
        hessian.check_positive()
    inputs = reader.read(0, len(features))
    if bias is not None:
        inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
    if isinstance(hessian, StructuredHessian) and hessian.unit is None:
        factor = inputs.T @ hessian.laplacian() @ inputs
        return KroneckerFactors(torch.eye(hessian.dim, dtype=u.dtype, device=u.device), factor, exact=True)
    return _nearest(hessian, inputs, tolerance, max_iterations)


def _nearest(
    hessian: OutputHessian, inputs: Tensor, tolerance: float, max_iterations: int
) -> KroneckerFactors:
    """Power iteration in float64, where the last digits decide when to stop."""
    wide = inputs.double()
    gram = wide @ wide.T
    blocks = output_blocks(hessian, coupled=True)
    coupling = torch.eye(len(inputs), dtype=torch.float64, device=inputs.device)
    norm = torch.zeros((), dtype=torch.float64, device=inputs.device)
    rounding = torch.finfo(inputs.dtype).eps * blocks.absolute_contributions(gram)
    for _ in range(max_iterations):
        inner = gram @ coupling @ gram  # K = X B X^T with B = X^T V X
        square = (coupling * inner).sum()  # |B|^2
        output = blocks.sum_over_images(inner) / square
        previous, norm = norm, output.norm() * square.sqrt()
        if not norm > rounding:
            return _zero(hessian, inputs)
        coupling = blocks.inner_products(output) / output.square().sum()
        if norm - previous <= tolerance * norm:
            break
    scale = output.trace() / hessian.dim
    factor = wide.T @ (coupling * scale) @ wide
    factor = (factor + factor.T) / 2
    return KroneckerFactors((output / scale).to(inputs.dtype), factor.to(inputs.dtype), exact=False)


def _zero(hessian: OutputHessian, inputs: Tensor) -> KroneckerFactors:
    """A curvature that is 0 everywhere."""
    identity = torch.eye(hessian.dim, dtype=inputs.dtype, device=inputs.device)
    return KroneckerFactors(identity, inputs.new_zeros(inputs.shape[1], inputs.shape[1]), exact=True)
