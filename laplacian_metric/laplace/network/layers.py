"""Which parameters of an encoder are random: its last layers, all of them, or those that are named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from hessians.capture import Inputs, trace, unaltered
from hessians.plan import select_parameters
from laplacian_metric.encoder import Encoder

Layers = int | str | Sequence[str]
Groups = dict[str, list[str]]


class RawNetwork(nn.Module):
    """An encoder without its norm, with the encoder's names of parameters; it shares the encoder's modules.

    Example:
        >>> import torch
        >>> encoder = Encoder(nn.Identity(), nn.Linear(2, 2, bias=False))
        >>> images = torch.ones(1, 2)
        >>> torch.equal(RawNetwork(encoder)(images), encoder.raw(images))
        True
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.backbone = encoder.backbone
        self.head = encoder.head
        # Not as a submodule, which would give every parameter a second name.
        object.__setattr__(self, "_raw", encoder.raw)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """u (N, Z)."""
        raw: Any = self._raw
        u: Tensor = raw(*args, **kwargs)
        return u


def check_layers(layers: Layers, network: RawNetwork) -> int | str | list[str]:
    """The choice of layers as a number, "all" or a list of names that exist."""
    if isinstance(layers, str):
        if layers == "all":
            return layers
        layers = [layers]
    if isinstance(layers, bool) or not isinstance(layers, int | list | tuple):
        raise TypeError(
            f'layers is a {type(layers).__name__}: the number of last layers, "all", or a list of names of modules and '
            "parameters is needed"
        )
    if isinstance(layers, int):
        if layers < 1:
            raise ValueError(f"layers is {layers}, at least the last 1 is needed")
        return layers
    select_parameters(network, layers)
    return list(layers)


def find_layers(network: RawNetwork, inputs: Any) -> Groups:
    """Every layer on the way to the embeddings with its parameters, in the order in which they run.

    A layer is a module that has parameters of its own. One that runs several times counts where it runs last, one
    that contains others where it begins; parameters of a module that never runs itself (the output projection of
    torch's attention, a parametrization) belong to the module around it.

    Args:
        network: in evaluation mode.
        inputs: of which the first image is taken.

    Example:
        >>> import torch
        >>> encoder = Encoder(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2))
        >>> find_layers(RawNetwork(encoder), torch.zeros(1, 3))
        {'backbone.0': ['backbone.0.weight', 'backbone.0.bias'], 'head': ['head.weight', 'head.bias']}
    """
    started: dict[str, int] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            started.pop(name, None)
            started[name] = 0

        return hook

    handles = [
        module.register_forward_pre_hook(note(name)) for name, module in network.named_modules() if name
    ]
    names = select_parameters(network, None)
    try:
        with unaltered(network):
            consumers = trace(network, Inputs.of(inputs).first(), names, []).consumers
    finally:
        for handle in handles:
            handle.remove()
    groups: Groups = {name: [] for name in started}
    for name in names:
        if name in consumers:
            groups[_owner(name, groups)].append(name)
    return {layer: parameters for layer, parameters in groups.items() if parameters}


def _owner(parameter: str, ran: Groups) -> str:
    """The innermost module around a parameter that ran."""
    module = parameter.rpartition(".")[0].partition(".parametrizations")[0]
    while module not in ran:
        module = module.rpartition(".")[0]
    return module


def choose(network: RawNetwork, inputs: Any, layers: int | str | list[str], fixed: Sequence[str]) -> Groups:
    """The chosen layers and their parameters, in the order in which they run, without those that stay ``fixed``."""
    groups = find_layers(network, inputs)
    if isinstance(layers, int):
        if layers > len(groups):
            raise ValueError(
                f"layers is {layers}, and there are {len(groups)} layers with parameters on the way to the embeddings: "
                f"{', '.join(groups)}"
            )
        groups = dict(list(groups.items())[-layers:])
    elif isinstance(layers, list):
        groups = _named(network, groups, layers)
    groups = {
        layer: [name for name in parameters if name not in fixed] for layer, parameters in groups.items()
    }
    groups = {layer: parameters for layer, parameters in groups.items() if parameters}
    if not groups:
        raise ValueError(
            f"layers has {', '.join(fixed)} only, of which the data say nothing without a norm (a translation changes "
            "no distance): choose a layer's weights as well"
        )
    return groups


def _named(network: RawNetwork, groups: Groups, layers: list[str]) -> Groups:
    wanted = set()
    reached = {name for parameters in groups.values() for name in parameters}
    for one in layers:
        mine = set(select_parameters(network, [one])) & reached
        if not mine:
            raise ValueError(f"layers has {one!r}, on which the embeddings do not depend: leave it out")
        wanted |= mine
    chosen = {layer: [name for name in parameters if name in wanted] for layer, parameters in groups.items()}
    return {layer: parameters for layer, parameters in chosen.items() if parameters}
