r"""diag(J^T M J) for all parameters of any network: M the output Hessian of a pair loss, J the Jacobian of a
batch's embeddings.

M falls apart into columns (:class:`hessians.output_hessian.Columns`), each of which is carried back through the
network once for the whole batch, to the outputs of the modules that have parameters. There a rule for the kind of
layer takes over (``hessians.backward``), so that neither J nor anything of the size pairs x parameters is ever built.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hessians.approximations import Approximation
from hessians.capture import Inputs, Trace, trace, unaltered
from hessians.checks import Choice, without_autocast
from hessians.columns import Settings, fallback_diagonal, joint_diagonal, rule_diagonal
from hessians.model_checks import check_embeddings, check_independence, check_modules
from hessians.output_hessian import OutputHessian
from hessians.pair_loss import PairLoss
from hessians.pairs import Pairs
from hessians.plan import Plan, log_once, make_plan, without
from hessians.sketch import random_signs, sketched_diagonal
from hessians.spot_check import failing_parameters


class Method(Choice):
    """How the diagonal is found."""

    EXACT = "exact"
    """All columns are carried back: as many backward passes as the embeddings have dimensions, or a few more."""

    SKETCH = "sketch"
    """The mean over random signs: one or two backward passes each, unbiased, for embeddings of very many dimensions."""


@without_autocast
def ggn_diagonal(
    model: nn.Module,
    inputs: Any,
    pairs: Pairs,
    loss: PairLoss,
    approximation: str | Approximation = Approximation.FULL,
    method: str | Method = Method.EXACT,
    *,
    parameters: Sequence[str] | None = None,
    probes: int = 100,
    generator: torch.Generator | None = None,
    check: bool = True,
    rules: bool = True,
    columns_per_pass: int = 1,
    memory_budget: int = 256 << 20,
) -> dict[str, Tensor]:
    r"""The diagonal of the generalised Gauss-Newton matrix J^T M J of a pair loss, for the parameters of any network.

    J is the Jacobian of the raw embeddings u of the whole batch, M the loss's output Hessian. The diagonal is not
    clamped: it has negative entries where the approximation is indefinite. The model is left as it was, and its
    parameters may be frozen.

    Args:
        model: ``model(inputs)`` are raw embeddings u (N, Z), each independent of the other images of the batch.
        inputs: a tensor (N, ...), a tuple of positional or a dictionary of named arguments of the model.
        pairs: which of the N images are paired.
        loss: the pair loss, e.g. :class:`ContrastiveLoss`.
        approximation: what is kept of M, see :class:`Approximation`.
        method: "exact" or "sketch", see :class:`Method`.
        parameters: names of parameters, or of modules whose parameters are all taken; None takes the whole model's.
        probes: how many sign vectors a sketch takes the mean of.
        generator: where a sketch's random signs come from.
        check: compare the rules with autograd for one random column (a parameter that differs is left to autograd,
            with a warning), and the first image's embedding with the one it has alone. Costs about two backward
            passes: worth leaving out for the further batches of a data set.
        rules: False leaves every parameter to autograd. Slower; for comparisons.
        columns_per_pass: more than 1 carries several columns back together. On a GPU and for small networks it is
            faster; it takes their memory, and is slower for networks with pooling.
        memory_budget: bytes that cotangents, and per-image gradients, may take at a time.

    Returns:
        {parameter name: tensor of the parameter's shape}

    Example:
        >>> from hessians import ContrastiveLoss
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        >>> pairs = Pairs.from_labels([0, 0, 1, 1, 2, 2])
        >>> diagonal = ggn_diagonal(model, torch.randn(6, 4), pairs, ContrastiveLoss())
        >>> {name: tuple(values.shape) for name, values in diagonal.items()}
        {'0.weight': (8, 4), '0.bias': (8,), '2.weight': (2, 8), '2.bias': (2,)}
    """
    method = Method.parse(method)
    network_inputs = Inputs.of(inputs)
    for name, number in (
        ("probes", probes),
        ("columns_per_pass", columns_per_pass),
        ("memory_budget", memory_budget),
    ):
        if number < 1:
            raise ValueError(f"{name} is {number}, at least 1 is needed")
    check_modules(model)
    plan = make_plan(model, parameters, rules and method is Method.EXACT)
    with unaltered(model):
        traced = trace(model, network_inputs, plan.names, plan.layers)
        check_embeddings(traced.u, network_inputs)
        hessian = loss.output_hessian(traced.u, pairs, approximation)
        if not traced.consumers and network_inputs.num_images:
            raise ValueError(
                "the embeddings do not depend on any of the chosen parameters: is the forward pass under no_grad?"
            )
        if check:
            check_independence(model, network_inputs, traced.parameters, traced.u)
        if method is Method.SKETCH:
            signs = random_signs(probes, traced.u, generator)
            diagonal = sketched_diagonal(traced, _used(traced), hessian, signs)
        else:
            diagonal = _exact(
                model, network_inputs, traced, plan, hessian, check, Settings(memory_budget, columns_per_pass)
            )
    return _complete(traced, diagonal)


def _used(traced: Trace) -> list[str]:
    return [name for name in traced.parameters if name in traced.consumers]


def _exact(
    model: nn.Module,
    inputs: Inputs,
    traced: Trace,
    plan: Plan,
    hessian: OutputHessian,
    check: bool,
    settings: Settings,
) -> dict[str, Tensor]:
    layers = plan.for_trace(model, traced)
    # Where the shapes leave open which rows belong to which image, only a comparison can tell.
    doubtful = [layer for layer in layers if check or any(map(layer.rule.is_doubtful, layer.calls))]
    if doubtful:
        failing = failing_parameters(traced, doubtful)
        for name in sorted(failing):
            log_once(
                model,
                logging.WARNING,
                f"{name}: its layer's rule disagrees with autograd (the parameter is used elsewhere, or what went "
                "into the layer was changed): autograd of the whole network takes its place, correct though slower",
            )
        layers = without(layers, failing)
    ruled = {name for layer in layers for name in layer.names.values()}
    rest = [name for name in _used(traced) if name not in ruled]
    if rest:
        log_once(
            model, logging.INFO, f"no rule holds for {', '.join(rest)}: left to autograd of the whole network"
        )
    result: dict[str, Tensor] = {}
    for columns in hessian.columns():
        shares: list[dict[str, Tensor]] = []
        if columns.joint is not None:
            shares.append(joint_diagonal(traced, _used(traced), columns.cotangents, columns.joint))
        if columns.nodes is not None or columns.edges is not None:
            shares.append(rule_diagonal(traced, layers, columns, settings))
            shares.append(fallback_diagonal(model, inputs, traced, rest, columns, settings))
        for share in shares:
            for name, value in share.items():
                result[name] = result[name] + value if name in result else value
    return result


def _complete(traced: Trace, diagonal: dict[str, Tensor]) -> dict[str, Tensor]:
    """Zeros for parameters that the embeddings do not depend on; an error where the gradients were not finite."""
    result = {}
    for name, leaf in traced.parameters.items():
        values = diagonal.get(name)
        result[name] = torch.zeros_like(leaf, requires_grad=False) if values is None else values.detach()
        if not bool(torch.isfinite(result[name]).all()):
            raise ValueError(
                f"the curvature of {name} is not finite although the embeddings are: some gradient of the network is "
                "infinite there (a norm or a square root at 0, for example)"
            )
    return result
