"""The statistics of batch norm layers under other weights than a module's own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from laplacian_metric.core.batch import Batch, Loader, map_batches


def tracking_layers(module: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norm layers that keep statistics, by name."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None
    }


def batch_norm_statistics(
    module: nn.Module, weights: Mapping[str, Tensor], train: Loader
) -> dict[str, Tensor]:
    """The running statistics of all batch norm layers by name, averaged over the training images under some weights.

    The module's own are left as they are.
    """
    layers = tracking_layers(module)
    names = [f"{name}.{key}" for name in layers for key in ("running_mean", "running_var")]
    statistics = {name: module.get_buffer(name).clone() for name in names}
    momenta = {name: layer.momentum for name, layer in layers.items()}
    seen = 0

    def update(batch: Batch) -> None:
        nonlocal seen
        seen += len(batch)
        counters = {f"{name}.num_batches_tracked": torch.zeros((), dtype=torch.long) for name in layers}
        try:
            for layer in layers.values():
                layer.training, layer.momentum = (
                    True,
                    len(batch) / seen,
                )  # the first batch replaces what was there
            functional_call(module, {**weights, **statistics, **counters}, (batch.inputs,))
        finally:
            for name, layer in layers.items():
                layer.training, layer.momentum = False, momenta[name]

    map_batches(update, train, module, title="training images", progress=False)
    return statistics
