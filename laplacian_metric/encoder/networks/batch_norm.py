"""The statistics of batch norm layers under other weights than a module's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from laplacian_metric.core.batch import inputs_of, to_device
from laplacian_metric.core.modes import evaluating


def tracking_layers(module: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norm layers that keep statistics, by name."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None
    }


def batch_norm_statistics(
    module: nn.Module, weights: Mapping[str, Tensor], train: Iterable[Any]
) -> dict[str, Tensor]:
    """The running statistics of all batch norm layers by name, averaged over the training images under some weights.

    The module's own are left as they are.
    """
    layers = tracking_layers(module)
    names = [f"{name}.{key}" for name in layers for key in ("running_mean", "running_var")]
    statistics = {name: module.get_buffer(name).clone() for name in names}
    momenta = {name: layer.momentum for name, layer in layers.items()}
    seen = 0
    with evaluating(module):
        try:
            for inputs in inputs_of(train):
                inputs = to_device(inputs, module)
                count = _num_images(inputs)
                seen += count
                for layer in layers.values():
                    layer.training = True
                    layer.momentum = count / seen  # the first batch replaces what was there
                counters = {
                    f"{name}.num_batches_tracked": torch.zeros((), dtype=torch.long) for name in layers
                }
                functional_call(module, {**weights, **statistics, **counters}, (inputs,))
        finally:
            for name, layer in layers.items():
                layer.momentum, layer.training = momenta[name], False
    if not seen:
        raise ValueError(
            "there are no training images, which the statistics of the batch norm layers under drawn weights come "
            "from: give them, or keep the statistics that the module has"
        )
    return statistics


def _num_images(inputs: Any) -> int:
    if isinstance(inputs, dict):
        inputs = tuple(inputs.values())
    return len(next(x for x in inputs if isinstance(x, Tensor)) if isinstance(inputs, tuple) else inputs)
