"""The curvature of pair losses behind the interface of laplace-torch: its Laplace approximations for metric learning.

laplace-torch is imported when it is needed and not before: it is heavy, and brings torchvision with it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hessians.approximations import Approximation
from hessians.checks import Choice
from hessians.pair_loss import PairLoss
from hessians.pairs import Population
from laplacian_metric.laplace.torch_backend.batches import Batches, batch_population
from laplacian_metric.laplace.torch_backend.curvature import (
    SemidefiniteLoss,
    import_laplace,
    no_such_curvature,
    pair_loss_curvature,
    parse_semidefinite,
)

if TYPE_CHECKING:
    from laplace.baselaplace import ParametricLaplace

from contextlib import ExitStack
from functools import partial

import torch
from torch.nn import functional as F

from hessians.checks import check_finite
from laplacian_metric.core.modes import evaluating

# Relative to the largest entry: what rounding, also that of a reduced matrix product, leaves of an equality.
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3}

Inputs = dict[str, list[Tensor]]


def find_last_layer(model: nn.Module, images: Tensor, name: str | None = None) -> str:
    """The name of the linear layer whose output is the model's; the model is left as it was.

    Args:
        model: ``model(images)`` are raw embeddings u (N, Z).
        images: (N, ...), a few of them.
        name: the layer, where it is known; then it is only checked.

    Example:
        >>> find_last_layer(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3))
        '2'
    """
    layers = {path: module for path, module in model.named_modules() if isinstance(module, nn.Linear)}
    if name is not None and name not in layers:
        known = ", ".join(map(repr, layers)) or "none"
        raise ValueError(f"the model has no linear layer {name!r}; its linear layers are {known}")
    inputs: Inputs = {path: [] for path in layers}
    with ExitStack() as hooks:
        for path, layer in layers.items():
            handle = layer.register_forward_hook(partial(_record, inputs[path]))
            hooks.callback(handle.remove)
        u = embeddings(model, images)
    for path in reversed(layers) if name is None else [name]:
        if inputs[path] and _gives(layers[path], inputs[path][-1], u):
            _check_layer(path, layers[path], len(inputs[path]))
            return path
    raise ValueError(_not_raw(u, name))


def embeddings(model: nn.Module, images: Tensor) -> Tensor:
    """What the model makes of images in evaluation mode, (N, Z)."""
    parameter = next(model.parameters(), None)
    with evaluating(model):
        u = model(images if parameter is None else images.to(parameter.device))
    if not isinstance(u, Tensor) or u.ndim != 2 or len(u) != len(images):
        description = f"shape {tuple(u.shape)}" if isinstance(u, Tensor) else f"type {type(u).__name__}"
        raise ValueError(
            f"for {len(images)} images the model returns something of {description}, embeddings ({len(images)}, Z) are "
            "needed: wrap it in a module that returns them"
        )
    check_finite("the model's output", u)
    return u


def is_normalised(u: Tensor) -> bool:
    """Whether several embeddings all have norm 1."""
    off = (torch.linalg.vector_norm(u.double(), dim=1) - 1).abs()
    return len(u) > 1 and bool((off < _TOLERANCE.get(u.dtype, 1e-2)).all())


def _record(inputs: list[Tensor], _: nn.Module, arguments: tuple[Any, ...], __: Any) -> None:
    inputs.extend(x.detach().clone() for x in arguments[:1])


def _gives(layer: nn.Linear, features: Tensor, u: Tensor) -> bool:
    """Whether the embeddings are W h + b."""
    if features.ndim != 2 or u.shape != (len(features), layer.out_features):
        return False
    with torch.no_grad():
        expected = F.linear(features, layer.weight, layer.bias)
    tolerance = _TOLERANCE.get(u.dtype, 5e-2) * float(expected.abs().max()) if len(u) else 0.0
    return bool(((expected - u).abs() <= tolerance).all())


def _check_layer(name: str, layer: nn.Linear, calls: int) -> None:
    own = [parameter for parameter, _ in layer.named_parameters()]
    if own not in (["weight"], ["weight", "bias"]):
        raise ValueError(
            f"the last layer {name!r} has the parameters {', '.join(own)}, a plain weight and bias are needed: remove "
            "its parametrization first (torch.nn.utils.parametrize.remove_parametrizations)"
        )
    if calls > 1:
        raise ValueError(
            f"the last layer {name!r} is called {calls} times in one pass: its curvature is that of a last layer only "
            "if nothing else uses it"
        )


def _not_raw(u: Tensor, name: str | None) -> str:
    remedy = "let the model return the raw output u = W h + b of its last linear layer"
    if is_normalised(u):
        return (
            "the model returns vectors of norm 1, and laplace-torch would take the Jacobian of its last linear layer "
            f"for that of the normalised output: {remedy}; the loss puts it on the sphere by itself"
        )
    which = "any of its linear layers" if name is None else f"its layer {name!r}"
    return f"what the model returns is not the output of {which}: {remedy}"


__all__ = ["batch_population", "import_laplace", "laplace_arguments", "metric_laplace", "pair_loss_curvature"]


class Structure(Choice):
    """What is kept of the curvature of the weights."""

    DIAG = "diag"
    KRON = "kron"
    FULL = "full"


class Subset(Choice):
    """Which weights are uncertain."""

    LAST_LAYER = "last_layer"
    ALL = "all"


_CLASSES = {
    (Subset.LAST_LAYER, Structure.DIAG): "DiagLLLaplace",
    (Subset.LAST_LAYER, Structure.KRON): "KronLLLaplace",
    (Subset.LAST_LAYER, Structure.FULL): "FullLLLaplace",
    (Subset.ALL, Structure.DIAG): "DiagLaplace",
}


def metric_laplace(
    model: nn.Module,
    loader: Iterable[Any],
    loss: PairLoss,
    approximation: str | Approximation = Approximation.CLIPPED,
    structure: str | Structure = Structure.DIAG,
    subset_of_weights: str | Subset = Subset.LAST_LAYER,
    *,
    n_effective: float | None = None,
    last_layer: str | None = None,
    progress_bar: bool = False,
    **options: Any,
) -> ParametricLaplace:
    """A fitted Laplace approximation of laplace-torch for a metric-learning model.

    The log-posterior is -n_effective * loss / temperature - |weights|^2 * prior_precision / 2, the loss over all pairs
    that lie inside the loader's batches. The loader is read twice: once for its labels, once for the curvature; a
    DataLoader has the same batches both times, also if it shuffles. The model is copied and left as it was.

    Args:
        model: ``model(images)`` are raw embeddings u (N, Z), what comes out of its last linear layer; or an
            ``Encoder``, whose norm is left out. A linear layer alone will do, with a loader of features.
        loader: gives batches (images, labels); each should have several images of several classes.
        loss: the pair loss the model was trained with.
        approximation: "clipped", "positive" or "fixed"; the last two are projected batch by batch where they are
            indefinite, which adds precision that one clamp at the end would not. "full" is refused.
        structure: "diag", "kron" or "full".
        subset_of_weights: "last_layer", or "all" (with "diag"), which is all parameters that require a gradient.
        n_effective: how many independent observations the average loss stands for; the number of images by default.
        last_layer: the name of the last linear layer, where it should not be looked for.
        progress_bar: show the batches passing by.
        options: for the class of laplace-torch: ``prior_precision``, ``temperature``, ``prior_mean`` ...

    Returns:
        ``laplace.DiagLLLaplace``, ``KronLLLaplace``, ``FullLLLaplace`` or ``DiagLaplace``.

    Example:
        >>> import torch
        >>> from hessians import ContrastiveLoss
        >>> model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
        >>> batches = [(torch.randn(6, 5), torch.tensor([0, 0, 1, 1, 2, 2])) for _ in range(3)]
        >>> la = metric_laplace(model, batches, ContrastiveLoss(), prior_precision=2.0)
        >>> mean, covariance = la(torch.randn(7, 5))
        >>> type(la).__name__, mean.shape, covariance.shape
        ('DiagLLLaplace', torch.Size([7, 2]), torch.Size([7, 2, 2]))
    """
    structure = Structure.parse(structure)
    subset = Subset.parse(subset_of_weights, "subset_of_weights")
    if (subset, structure) not in _CLASSES:
        raise ValueError(no_such_curvature(structure.value))
    parse_semidefinite(approximation)  # before a pass over the data
    laplace_class = getattr(import_laplace(), _CLASSES[subset, structure])
    batches = Batches(loader)
    positives, negatives, num_images = batches.counts
    arguments = laplace_arguments(
        loss, (positives, negatives), num_images if n_effective is None else n_effective, approximation
    )
    model = _without_norm(model)
    if subset is Subset.LAST_LAYER:
        name = find_last_layer(model, batches.first, last_layer)
        # With a name, laplace-torch keeps no training batch in what it saves.
        options = {"last_layer_name": name, **options}
        with _some_gradient(model, name):
            # Makes a copy of the model by itself.
            fitted = laplace_class(model, **arguments, **options)
            fitted.fit(batches, progress_bar=progress_bar)
    else:
        _check_whole(model, batches.first, loss)
        fitted = laplace_class(copy.deepcopy(model), **arguments, **options)
        fitted.fit(batches, progress_bar=progress_bar)
    return fitted  # type: ignore[no-any-return]


def laplace_arguments(
    loss: PairLoss,
    population: Population,
    n_effective: float,
    approximation: str | Approximation = Approximation.CLIPPED,
) -> dict[str, Any]:
    """The arguments that make a class of laplace-torch take the curvature of a pair loss.

    For those who construct its objects by themselves, to load a saved state for example. What they hand to ``fit``
    then has to give (images, labels) and to have a ``dataset`` as long as the images of one pass are many.

    Args:
        loss: the pair loss.
        population: see :func:`batch_population`; all batches divide by it.
        n_effective: how many independent observations the average loss stands for, the number of images for example.
        approximation: "clipped", "positive" or "fixed".

    Returns:
        ``likelihood``, ``backend`` and ``backend_kwargs``. Make them anew for every object: laplace-torch writes into
        the last.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> from laplace import KronLLLaplace
        >>> model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
        >>> arguments = laplace_arguments(ContrastiveLoss(), population=(3, 12), n_effective=6)
        >>> empty = KronLLLaplace(model, last_layer_name="2", **arguments)
    """
    if not n_effective > 0:
        raise ValueError(f"n_effective is {n_effective}, a positive number is needed")
    settings = {
        "loss": SemidefiniteLoss(loss, approximation),
        "population": (population[0], population[1]),
        "n_effective": float(n_effective),
    }
    # Of laplace-torch's likelihoods the only one that takes a loss as it is: "regression" would add the logarithm of a
    # Gaussian's normaliser, and "classification" push embeddings through a softmax.
    return {
        "likelihood": "reward_modeling",
        "backend": pair_loss_curvature(),
        "backend_kwargs": settings,
    }


def _without_norm(model: nn.Module) -> nn.Module:
    """An encoder as its backbone and head alone; any other model as it is."""
    backbone, head = getattr(model, "backbone", None), getattr(model, "head", None)
    if hasattr(model, "raw") and isinstance(backbone, nn.Module) and isinstance(head, nn.Linear):
        return nn.Sequential(backbone, head)
    return model


def _check_whole(model: nn.Module, images: Tensor, loss: PairLoss) -> None:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "no parameter of the model requires a gradient, so that none is uncertain: set requires_grad on those "
            'that should be, or take subset_of_weights="last_layer"'
        )
    if getattr(loss, "normalize", False) and is_normalised(embeddings(model, images)):
        raise ValueError(
            "the model returns vectors of norm 1, which the loss would normalise once more: let it return the raw "
            "output of its last linear layer"
        )


@contextmanager
def _some_gradient(model: nn.Module, last_layer: str) -> Iterator[None]:
    """laplace-torch refuses a model that is frozen altogether, even where only its last layer matters."""
    frozen = not any(parameter.requires_grad for parameter in model.parameters())
    parameters = list(model.get_submodule(last_layer).parameters()) if frozen else []
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)
