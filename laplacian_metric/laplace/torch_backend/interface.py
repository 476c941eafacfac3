"""The backend itself: a CurvatureInterface of laplace-torch whose class is made when it is first asked for."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hessians import Pairs, ggn_diagonal
from hessians.pairs import Population
from laplacian_metric.laplace.torch_backend.curvature import (
    LastLayer,
    SemidefiniteLoss,
    last_layer_diagonal,
    last_layer_factors,
    last_layer_full,
)

if TYPE_CHECKING:
    from laplace.curvature import CurvatureInterface
    from laplace.utils import Kron


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
