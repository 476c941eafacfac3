"""Linear layers, with any number of axes between the images and the features."""

from __future__ import annotations

from torch import Tensor, nn

from hessians.backward.bilinear import BilinearRule
from hessians.backward.rules import Call, register_rule


def linear_inputs(x: Tensor) -> Tensor:
    """x (N, 1, L, H) from (N, k, ..., H)."""
    return x.reshape(len(x), 1, -1, x.shape[-1])


def linear_outputs(cotangents: Tensor) -> Tensor:
    """d (N, 1, C, O, L) from (N, C, k, ..., O)."""
    num_images, columns = cotangents.shape[:2]
    return cotangents.reshape(num_images, columns, -1, cotangents.shape[-1]).mT[:, None]


@register_rule(nn.Linear)
class LinearRule(BilinearRule):
    """out = x W^T + b: every position of an image is one of the L positions of the bilinear form."""

    sequence_first = True

    def features(self, module: nn.Module) -> int:
        assert isinstance(module, nn.Linear)
        return module.in_features

    def inputs(self, module: nn.Module, call: Call, start: int, stop: int) -> Tensor:
        return linear_inputs(call.split_input[..., start:stop])

    def outputs(self, module: nn.Module, cotangents: Tensor) -> Tensor:
        return linear_outputs(cotangents)
