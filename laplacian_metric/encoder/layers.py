"""What several networks share: poolings, input scaling, batch norm that is recomputed, and seeded initial weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

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


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class PixelScaling(nn.Module):
    """(N, 3, H, W), RGB in [0, 1] -> (x - mean) / std for each channel, the channels turned round if ``bgr``.

    ``mean`` and ``std`` are given in the order of the network's own channels. They move and change their dtype with the
    module, and are no part of its state dictionary.

    Example:
        >>> original = PixelScaling.of_original_resnet()
        >>> [round(x, 2) for x in original(torch.zeros(1, 3, 1, 1)).flatten().tolist()]
        [-103.94, -116.78, -123.68]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, bgr: bool = False) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1), persistent=False)
        self.bgr = bgr

    @classmethod
    def of_imagenet(cls) -> PixelScaling:
        """Mean and standard deviation of ImageNet, as torchvision's models want it."""
        return cls(IMAGENET_MEAN, IMAGENET_STD)

    @classmethod
    def of_original_resnet(cls) -> PixelScaling:
        """BGR from 0 to 255 minus ImageNet's mean, as the original ResNets want it."""
        mean = (103.939, 116.779, 123.68)
        return cls([m / 255 for m in mean], [1 / 255] * 3, bgr=True)

    def forward(self, images: Tensor) -> Tensor:
        channels = len(self.mean)
        if images.ndim != 4 or images.shape[1] != channels:
            remedy = ": for grey images, images.expand(-1, 3, -1, -1)" if channels == 3 else ""
            raise ValueError(
                f"images has shape {tuple(images.shape)}, (N, {channels}, height, width) is needed{remedy}"
            )
        return ((images.flip(1) if self.bgr else images) - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"bgr={self.bgr}"


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


class GeM(nn.Module):
    """Generalised mean over all positions: (N, C, *positions) -> (N, C), (mean max(x, eps)^p)^(1/p).

    p = 1 is the mean and p -> infinity the maximum. p is learned unless ``learned`` is False.

    Example:
        >>> x = torch.tensor([[[[1.0, 2.0], [2.0, 3.0]]]])
        >>> round(GeM(p=1.0)(x).item(), 4), round(GeM(p=50.0)(x).item(), 4)
        (2.0, 2.918)
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6, *, learned: bool = True) -> None:
        super().__init__()
        if not p > 0:
            raise ValueError(f"p is {p}, a positive exponent is needed: 1 is the mean")
        if not eps > 0:
            raise ValueError(f"eps is {eps}, a positive number is needed: 0 has no derivative")
        self.p = nn.Parameter(torch.tensor([float(p)]), requires_grad=learned)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 3:
            raise ValueError(
                f"GeM pools positions, (N, C, *positions), but x has shape {tuple(x.shape)}: leave the flattening and "
                "pooling before it out"
            )
        values = x.flatten(2).clamp(min=self.eps)
        # Divided by the largest first, so that no power of it overflows; the mean is homogeneous.
        largest = values.detach().amax(dim=2, keepdim=True)
        return (values / largest).pow(self.p).mean(dim=2).pow(1 / self.p) * largest[:, :, 0]

    def extra_repr(self) -> str:
        return f"eps={self.eps:g}"


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Inside, torch's global generator starts at ``seed``; afterwards it is as it was. Without a seed: no effect."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
