"""Which parameters are wanted, and which way each of them takes: a rule, or autograd through its module."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.parameter import UninitializedParameter

from hessians.backward import Layer, LocalRule, find_rule
from hessians.backward.broadcast import broadcast_layers
from hessians.capture import Trace

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """The wanted parameters, in the model's order, and the layers with a rule for some of them."""

    names: list[str]
    layers: list[Layer]
    rules: bool

    def for_trace(self, model: nn.Module, trace: Trace) -> list[Layer]:
        """The layers that the embeddings depend on, and parameters that a single broadcast operation takes in."""
        if not self.rules:
            return []
        layers = [layer for layer in self.layers if layer.calls]
        ruled = {
            name for layer in layers if not isinstance(layer.rule, LocalRule) for name in layer.names.values()
        }
        consumers = {name: nodes for name, nodes in trace.consumers.items() if name not in ruled}
        broadcast = broadcast_layers(model, consumers, len(trace.u))
        layers = without(layers, {name for layer in broadcast for name in layer.names})
        for layer in layers:
            if isinstance(layer.rule, LocalRule):
                log_once(
                    model,
                    logging.INFO,
                    f"no rule holds for {', '.join(layer.names.values())}: autograd through its "
                    f"{type(layer.module).__name__} takes its place",
                )
        return layers + broadcast


def without(layers: Sequence[Layer], names: set[str]) -> list[Layer]:
    """The layers without some parameters."""
    for layer in layers:
        layer.names = {own: name for own, name in layer.names.items() if name not in names}
    return [layer for layer in layers if layer.names]


def make_plan(model: nn.Module, parameters: Sequence[str] | None, rules: bool) -> Plan:
    """Find the rule of every module that has wanted parameters of its own."""
    names = select_parameters(model, parameters)
    if not rules:
        return Plan(names, [], rules)
    free = set(names) - _shared(model)
    layers = []
    for prefix, module in model.named_modules():
        own_rule = find_rule(module)
        for rule in (own_rule, LocalRule()):
            if rule is None or (rule is not own_rule and module is model):
                # The model's own parameters take autograd of the whole network in any case.
                continue
            full = {name: f"{prefix}.{name}" if prefix else name for name in rule.claims(module)}
            claimed = {name: whole for name, whole in full.items() if whole in free}
            if not claimed:
                continue
            layers.append(Layer(module, rule, claimed))
            free -= set(claimed.values())
    return Plan(names, layers, rules)


def select_parameters(model: nn.Module, wanted: Sequence[str] | None) -> list[str]:
    """Names of the parameters, in the model's order, that are wanted or belong to a module that is."""
    every = dict(model.named_parameters())
    for name, parameter in every.items():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(f"{name} has no shape yet: run the model once before asking for its curvature")
    names = [name for name, parameter in every.items() if parameter.is_floating_point()]
    if not names:
        raise ValueError(f"{type(model).__name__} has no parameters")
    if wanted is None:
        return names
    if not wanted:
        raise ValueError("parameters is empty: name parameters or modules, or pass None for the whole model")
    chosen: set[str] = set()
    for one in [wanted] if isinstance(wanted, str) else wanted:
        matching = {name for name in names if name == one or name.startswith(one + ".")}
        if not matching:
            known = sorted({name.split(".")[0] for name in names})
            raise ValueError(
                f"parameters has {one!r}, which is neither a parameter nor a module with parameters: the model's "
                f"parts are {', '.join(known)}"
            )
        chosen |= matching
    return [name for name in names if name in chosen]


def _shared(model: nn.Module) -> set[str]:
    """Names of the parameters that several modules own."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for _, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    return {name for name, parameter in model.named_parameters() if owners[id(parameter)] > 1}


# What was said about a model is not said again for each of its batches.
_SAID: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


def log_once(model: nn.Module, level: int, message: str) -> None:
    said = _SAID.setdefault(model, set())
    if message not in said:
        said.add(message)
        logger.log(level, message)
