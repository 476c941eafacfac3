"""A batch's curvature, positive semi-definite, in the three structures and the parameter order of laplace-torch.

laplace-torch adds up what it is given batch by batch and never looks at signs: a negative precision becomes NaN samples
(diagonal), is clamped in silence (Kronecker) or fails in a Cholesky decomposition (full). So the output Hessian of
every batch is made positive semi-definite before it is pulled back.
"""

from __future__ import annotations

import dataclasses
import importlib
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs, ggn_diagonal, last_layer_ggn_diagonal, last_layer_kronecker
from hessians.approximations import Approximation
from hessians.checks import compute_dtype
from hessians.contrastive import Distance, Negatives
from hessians.output_hessian import OutputHessian
from hessians.pair_loss import PairBlocks, PairLoss
from hessians.pairs import Population

if TYPE_CHECKING:
    from laplace.curvature import CurvatureInterface
    from laplace.utils import Kron

MEMORY = 64 << 20


class LastLayer(NamedTuple):
    """A last linear layer and what goes into it: h (N, H), W (Z, H), b (Z,) or None."""

    features: Tensor
    weight: Tensor
    bias: Tensor | None


class SemidefiniteLoss(PairLoss):
    """A pair loss whose output Hessian is one approximation, with its negative eigenvalues set to 0.

    Args:
        loss: the pair loss. Its value is that of the population, whatever negatives it is trained with: the
            curvature belongs to that one.
        approximation: "clipped", "positive" or "fixed". The Hessian of "positive" is positive semi-definite by
            itself for the Euclidean distance; otherwise "positive" and "fixed" are projected.

    Example:
        >>> loss, pairs = SemidefiniteLoss(ContrastiveLoss(), "fixed"), Pairs.from_labels([0, 0, 1])
        >>> loss.output_hessian(torch.randn(3, 2), pairs).check_positive()
    """

    def __init__(self, loss: PairLoss, approximation: str | Approximation) -> None:
        self.approximation = parse_semidefinite(approximation)
        if isinstance(loss, ContrastiveLoss):
            loss = dataclasses.replace(loss, negatives=Negatives.ALL)
        self.loss = loss
        self.negative_weight = loss.negative_weight

    def __call__(self, u: Tensor, pairs: Pairs) -> Tensor:
        return self.loss(u, pairs)

    def pair_values(self, first: Tensor, second: Tensor, positive: bool) -> Tensor:
        return self.loss.pair_values(first, second, positive)

    def pair_blocks(self, first: Tensor, second: Tensor, positive: bool) -> PairBlocks:
        return self.loss.pair_blocks(first, second, positive)

    def output_hessian(
        self, u: Tensor, pairs: Pairs, approximation: str | Approximation = Approximation.CLIPPED
    ) -> OutputHessian:
        """The projected Hessian; which approximation it is was settled when the loss was made."""
        hessian = self.loss.output_hessian(u, pairs, self.approximation)
        return hessian if self._is_semidefinite() else hessian.positive_part()

    def _is_semidefinite(self) -> bool:
        """Whether the approximation is positive semi-definite as it is."""
        if self.approximation is Approximation.POSITIVE:
            return isinstance(self.loss, ContrastiveLoss) and self.loss.distance is Distance.EUCLIDEAN
        return self.approximation is Approximation.CLIPPED


class KnownHessian(SemidefiniteLoss):
    """The same at embeddings where the Hessian has been computed, which is dear."""

    def __init__(self, loss: SemidefiniteLoss, hessian: OutputHessian) -> None:
        super().__init__(loss.loss, loss.approximation)
        self.hessian = hessian

    def output_hessian(
        self, u: Tensor, pairs: Pairs, approximation: str | Approximation = Approximation.CLIPPED
    ) -> OutputHessian:
        return self.hessian


def parse_semidefinite(approximation: str | Approximation) -> Approximation:
    """The member with this name, unless there is no semi-definite form of it."""
    parsed = Approximation.parse(approximation)
    if parsed is Approximation.FULL:
        raise ValueError(
            'approximation "full" is indefinite, and laplace-torch adds curvature up batch by batch, without a place '
            'where it could be clamped once: take "clipped", which is "full" without its negative eigenvalues'
        )
    return parsed


def last_layer_diagonal(layer: LastLayer, pairs: Pairs, loss: SemidefiniteLoss) -> Tensor:
    """diag(J^T M J), (Z H + Z,): the weights row by row, then the biases."""
    w, b = last_layer_ggn_diagonal(*layer, pairs, loss)
    # What is below 0 here is rounding: M is positive semi-definite.
    return (w.flatten() if b is None else torch.cat([w.flatten(), b])).clamp(min=0)


def last_layer_full(layer: LastLayer, pairs: Pairs, loss: SemidefiniteLoss) -> Tensor:
    """J^T M J, (Z H + Z, Z H + Z): the weights row by row, then the biases."""
    inputs, u = _inputs_and_embeddings(layer)
    hessian = loss.output_hessian(u, pairs)
    dim, width = u.shape[1], inputs.shape[1]
    matrix = inputs.new_empty(dim, width, dim, width)
    chunk = max(1, MEMORY // max(1, 4 * u.numel() * u.element_size()))
    for at in range(dim):
        for start in range(0, width, chunk):
            some = inputs[:, start : start + chunk].T
            columns = u.new_zeros(len(some), *u.shape)
            columns[:, :, at] = some
            matrix[:, :, at, start : start + chunk] = torch.einsum(
                "cnk,nh->khc", hessian.matmul(columns), inputs
            )
    order = _parameter_order(dim, width, layer.bias is not None, u.device)
    matrix = matrix.view(dim * width, dim * width)[order][:, order]
    return (matrix + matrix.T) / 2


def last_layer_factors(
    layer: LastLayer, pairs: Pairs, loss: SemidefiniteLoss
) -> tuple[Tensor, Tensor, Tensor | None]:
    """A (Z, Z) and B (H, H) of the weights' block, tr A = Z, and the block of the biases (Z, Z).

    A kron B is the nearest Kronecker product to the block of the weights; the block of the biases is exact. The
    blocks between weights and biases are left out: laplace-torch has no room for them.
    """
    _, u = _inputs_and_embeddings(layer)
    hessian = loss.output_hessian(u, pairs)
    factors = last_layer_kronecker(layer.features, layer.weight, None, pairs, KnownHessian(loss, hessian))
    if layer.bias is None:
        return factors.output, factors.input, None
    ones = torch.eye(u.shape[1], dtype=u.dtype, device=u.device)[:, None, :].expand(-1, len(u), -1)
    block = hessian.matmul(ones).sum(1)
    return factors.output, factors.input, (block + block.T) / 2


def _inputs_and_embeddings(layer: LastLayer) -> tuple[Tensor, Tensor]:
    """x = [h, 1], (N, H + 1), or h without a bias; and u, (N, Z)."""
    dtype = compute_dtype(layer.features)
    inputs, weight = layer.features.detach().to(dtype), layer.weight.detach().to(dtype)
    if layer.bias is not None:
        inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
        weight = torch.cat([weight, layer.bias.detach().to(dtype)[:, None]], dim=1)
    return inputs, inputs @ weight.T


def _parameter_order(dim: int, width: int, has_bias: bool, device: torch.device) -> Tensor:
    """Where W row by row, then b, are found in [W | b] row by row."""
    at = torch.arange(dim * width, device=device).view(dim, width)
    return torch.cat([at[:, :-1].flatten(), at[:, -1]]) if has_bias else at.flatten()


def import_laplace() -> Any:
    """The package ``laplace``, or an ImportError that says how to get a working one."""
    try:
        package = importlib.import_module("laplace")
        importlib.import_module("laplace.curvature").CurvatureInterface  # noqa: B018 - is it the right package?
    except Exception as error:
        # A torchvision that was built for another torch raises a RuntimeError, not an ImportError.
        raise ImportError(
            f"laplace-torch cannot be imported ({type(error).__name__}: {error}). Install it with "
            'pip install "laplace-torch>=0.3"; if the error is about torchvision, which comes with it, install torch '
            "and torchvision together and from the same place, so that they belong together"
        ) from error
    return package


@cache
def pair_loss_curvature() -> type[CurvatureInterface]:
    """The class to pass as ``backend=``: the curvature of a pair loss as a CurvatureInterface of laplace-torch."""
    interface = import_laplace().curvature.CurvatureInterface
    return type("PairLossCurvature", (PairLossMethods, interface), {"__doc__": PairLossMethods.__doc__})


class PairLossMethods:
    """What laplace-torch asks of a backend: the loss and the curvature that a batch contributes.

    Both are those of the batch's pairs, divided by the population's counts and multiplied by ``n_effective``, so that
    the sums over the batches are a negative log-likelihood and its curvature.
    """

    model: Any
    last_layer: bool
    params_dict: dict[str, nn.Parameter]

    def __init__(
        self,
        model: nn.Module,
        likelihood: str,
        *args: Any,
        loss: SemidefiniteLoss,
        population: Population,
        n_effective: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, likelihood, *args, **kwargs)  # type: ignore[call-arg]
        self.loss = loss
        self.population = population
        self.n_effective = n_effective
        self._checked = False

    def diag(self, x: Tensor, y: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The loss and the diagonal (P,)."""
        if self.last_layer:
            value, layer, pairs = self._last_layer(x, y)
            return value, self.n_effective * last_layer_diagonal(layer, pairs, self.loss).to(
                layer.weight.dtype
            )
        pairs = self._pairs(y)
        with torch.no_grad():
            value = self._value(self.model(x), pairs)
        by_parameter = ggn_diagonal(
            self.model, x, pairs, self.loss, parameters=list(self.params_dict), check=not self._checked
        )
        self._checked = True
        # Below 0 is rounding: the output Hessian is positive semi-definite.
        diagonal = torch.cat([by_parameter[name].flatten() for name in self.params_dict]).clamp(min=0)
        return value, self.n_effective * diagonal

    def full(self, x: Tensor, y: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The loss and the matrix (P, P)."""
        self._require_last_layer("full")
        value, layer, pairs = self._last_layer(x, y)
        return value, self.n_effective * last_layer_full(layer, pairs, self.loss).to(layer.weight.dtype)

    def kron(self, x: Tensor, y: Tensor, N: int, **kwargs: Any) -> tuple[Tensor, Kron]:
        """The loss and the factors; N is the number of images in all batches.

        laplace-torch adds up both factors by themselves. So the first is given as its share of an average and the
        second as its share of a sum: exact if the first is the same in every batch (as it is without a norm), and of
        the right trace in any case.
        """
        from laplace.utils import Kron

        self._require_last_layer("kron")
        value, layer, pairs = self._last_layer(x, y)
        output, inputs, bias = last_layer_factors(layer, pairs, self.loss)
        factors = [[output * (len(x) / N), self.n_effective * inputs]]
        if bias is not None:
            factors.append([self.n_effective * bias])
        groups: Any = [[factor.to(layer.weight.dtype) for factor in group] for group in factors]
        return value, Kron(groups)

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """There are none: a pair loss has no term that belongs to one image."""
        raise NotImplementedError("a loss over pairs has no gradients of single images")

    def _last_layer(self, x: Tensor, y: Tensor) -> tuple[Tensor, LastLayer, Pairs]:
        """The batch's share of the loss, its features with the layer, and its pairs."""
        pairs = self._pairs(y)
        with torch.no_grad():
            u, features = self.model.forward_with_features(x)
            value = self._value(u, pairs)
        layer = self.model.last_layer
        bias = None if layer.bias is None else layer.bias.detach()
        return value, LastLayer(features.detach(), layer.weight.detach(), bias), pairs

    def _pairs(self, y: Tensor) -> Pairs:
        return Pairs.from_labels(y, population=self.population)

    def _value(self, u: Tensor, pairs: Pairs) -> Tensor:
        return self.n_effective * self.loss(u, pairs)

    def _require_last_layer(self, structure: str) -> None:
        if not self.last_layer:
            raise NotImplementedError(no_such_curvature(structure))


def no_such_curvature(structure: str) -> str:
    return (
        f'the "{structure}" curvature of a whole network is not computed: take subset_of_weights="last_layer", or the '
        '"diag" structure'
    )
