"""Another pooling in a network that ends with one: a generalised mean, or the average over all positions."""

from __future__ import annotations

from torch import nn

from laplacian_metric.encoder.networks.pooling import GeM

POOLINGS = ("gem", "average")
# What the libraries call the last pooling; those inside of blocks are not children of the network itself.
_PLACES = ("global_pool", "avgpool")


def pooling_layer(name: str) -> nn.Module:
    """A pooling by its name, (N, C, height, width) -> (N, C).

    Example:
        >>> import torch
        >>> x = torch.tensor([[[[1.0, 2.0], [2.0, 3.0]]]])
        >>> pooling_layer("average")(x).tolist(), [round(value, 3) for value in pooling_layer("gem")(x)[0].tolist()]
        ([[2.0]], [2.224])
    """
    if name == "gem":
        return GeM()
    if name == "average":
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    raise ValueError(f"pooling is {name!r}, one of {', '.join(POOLINGS)} is needed")


def replace_pooling(model: nn.Module, pooling: str, label: str) -> tuple[str, ...]:
    """Put a pooling in the place of a network's last one; returns the names of its parameters, which are new.

    Args:
        model: of torchvision or timm, and changed in place.
        pooling: see `pooling_layer`.
        label: how errors call the model.
    """
    layer = pooling_layer(pooling)
    place = next((name for name in _PLACES if isinstance(model._modules.get(name), nn.Module)), None)
    if place is None or not _to_one_position(model.get_submodule(place)):
        raise ValueError(
            f"{label} has no pooling over all positions at its end that could be replaced: leave pooling out, or put "
            "one on its last feature map, Encoder.with_head(nn.Sequential(feature_map, GeM()), example_inputs)"
        )
    model._modules[place] = layer
    return tuple(f"{place}.{name}" for name, _ in layer.named_parameters())


def _to_one_position(layer: nn.Module) -> bool:
    """Whether a layer gives one number for each channel."""
    if isinstance(layer, nn.AdaptiveAvgPool2d):
        return layer.output_size in (1, (1, 1))
    # timm's may put several poolings beside each other, or be none at all.
    multiple, nothing = getattr(layer, "feat_mult", None), getattr(layer, "is_identity", None)
    return callable(multiple) and callable(nothing) and multiple() == 1 and not nothing()
