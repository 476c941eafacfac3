"""EfficientNet as a loop over the names in its published files: the mapping into timm's modules is compared with it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-3
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))  # blocks of a stage, stride of the first
STRIDES = [stride if number == 0 else 1 for count, stride in STAGES for number in range(count)]


def names(squeeze: bool = False) -> Iterator[str]:
    """The names in a file of the smallest of the family, in their order."""
    yield from ("_conv_stem.weight", *(f"_bn0.{entry}" for entry in NORM))
    for number in range(len(STRIDES)):
        layers = ["_depthwise_conv", "_bn1", *(["_se_reduce", "_se_expand"] if squeeze else [])]
        layers = [*(["_expand_conv", "_bn0"] if number else []), *layers, "_project_conv", "_bn2"]
        for layer in layers:
            entries = NORM if "bn" in layer else ("weight", "bias") if "_se" in layer else ("weight",)
            yield from (f"_blocks.{number}.{layer}.{entry}" for entry in entries)
    yield from ("_conv_head.weight", *(f"_bn1.{entry}" for entry in NORM), "_fc.weight", "_fc.bias")


def weights_of(model: nn.Module, squeeze: bool = False) -> dict[str, Tensor]:
    """The state of timm's model under the names of the files, by their order, with statistics that are not 0 and 1."""
    state = model.state_dict()
    generator = torch.Generator().manual_seed(0)
    for name, x in state.items():
        if x.is_floating_point() and x.ndim == 1:
            # Small variances, as random weights would otherwise let little of the image through.
            start, spread = {"running_var": (0.1, 0.1), "weight": (1.0, 0.2)}.get(
                name.rpartition(".")[2], (0, 0.1)
            )
            x.copy_(start + spread * torch.rand(x.shape, generator=generator))
    return dict(zip(names(squeeze), (x.clone() for x in state.values()), strict=True))


def features(weights: dict[str, Tensor], x: Tensor, squeeze: bool = False) -> Tensor:
    """What goes into the classifier: the average of the last feature map."""
    activate = F.silu if squeeze else F.relu6

    def convolve(x: Tensor, layer: str, stride: int = 1) -> Tensor:
        weight = weights[f"{layer}.weight"]
        kernel, channels = weight.shape[-1], x.shape[1]
        pads = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[:1:-1]]
        x = F.pad(x, [part for pad in pads for part in (pad // 2, pad - pad // 2)])
        groups = channels // weight.shape[1]
        return F.conv2d(x, weight, weights.get(f"{layer}.bias"), stride, groups=groups)

    def norm(x: Tensor, layer: str) -> Tensor:
        w, b, mean, var = (weights[f"{layer}.{entry}"] for entry in NORM[:4])
        return F.batch_norm(x, mean, var, w, b, eps=EPS)

    x = activate(norm(convolve(x, "_conv_stem", 2), "_bn0"))
    for number, stride in enumerate(STRIDES):
        block = f"_blocks.{number}."
        before = x
        if number:
            x = activate(norm(convolve(x, f"{block}_expand_conv"), f"{block}_bn0"))
        x = activate(norm(convolve(x, f"{block}_depthwise_conv", stride), f"{block}_bn1"))
        if squeeze:
            gate = activate(convolve(x.mean((2, 3), keepdim=True), f"{block}_se_reduce"))
            x = x * convolve(gate, f"{block}_se_expand").sigmoid()
        x = norm(convolve(x, f"{block}_project_conv"), f"{block}_bn2")
        if stride == 1 and x.shape == before.shape:
            x = x + before
    return activate(norm(convolve(x, "_conv_head"), "_bn1")).mean((2, 3))
