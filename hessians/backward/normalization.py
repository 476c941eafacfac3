"""Normalisation layers: a scale and a shift of values that do not depend on them."""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from hessians.backward.rules import Call, DirectRule, Layer, Layout, register_rule


class ScaleRule(DirectRule):
    """out = weight * normalised + bias, with the two of the shape of some of the output's axes."""

    @abstractmethod
    def normalised(self, module: nn.Module, x: Tensor) -> Tensor:
        """What weight and bias act on, like the module's input (B, ...)."""

    @abstractmethod
    def own_axes(self, module: nn.Module, cotangents: Tensor) -> tuple[int, ...]:
        """The axes of cotangents (N, C, k, ...) that weight and bias have, in their order."""

    def image_gradients(self, layer: Layer, name: str, call: Call, cotangents: Tensor) -> Tensor:
        kept = {0, 1, *self.own_axes(layer.module, cotangents)}
        summed = [axis for axis in range(cotangents.ndim) if axis not in kept]
        if name == "weight":
            values = call.layout.split(self.normalised(layer.module, call.input))
            cotangents = cotangents * values[:, None]
        return cotangents.sum(summed) if summed else cotangents


class ChannelScaleRule(ScaleRule):
    """Weight and bias have one entry for each channel, the axis after the rows."""

    def own_axes(self, module: nn.Module, cotangents: Tensor) -> tuple[int, ...]:
        return (3,)


@register_rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
class BatchNormRule(ChannelScaleRule):
    """With running statistics, which are constants; without them the images would be mixed."""

    def supports(self, module: nn.Module) -> bool:
        assert isinstance(module, _BatchNorm)
        return not module.training and module.running_mean is not None

    def normalised(self, module: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(module, _NormBase)
        return F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)


@register_rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
class InstanceNormRule(ChannelScaleRule):
    """With the statistics of each instance, or with running ones."""

    def fits(self, module: nn.Module, call: Call, layout: Layout) -> bool:
        assert isinstance(module, _InstanceNorm)
        return super().fits(module, call, layout) and call.input.ndim == module._get_no_batch_dim() + 1

    def normalised(self, module: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(module, _NormBase)
        if module.training or module.running_mean is None:
            return F.instance_norm(x, eps=module.eps)
        return F.instance_norm(
            x, module.running_mean, module.running_var, use_input_stats=False, eps=module.eps
        )


@register_rule(nn.GroupNorm)
class GroupNormRule(ChannelScaleRule):
    """With the statistics of each group of channels."""

    def normalised(self, module: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(module, nn.GroupNorm)
        return F.group_norm(x, module.num_groups, eps=module.eps)


class LastAxesScaleRule(ScaleRule):
    """Weight and bias have the shape of the last axes, over which the statistics are taken."""

    sequence_first = True

    def own_axes(self, module: nn.Module, cotangents: Tensor) -> tuple[int, ...]:
        assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
        return tuple(range(cotangents.ndim - len(module.normalized_shape), cotangents.ndim))


@register_rule(nn.LayerNorm)
class LayerNormRule(LastAxesScaleRule):
    """With mean and variance over the last axes."""

    def normalised(self, module: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(module, nn.LayerNorm)
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)


@register_rule(nn.RMSNorm)
class RMSNormRule(LastAxesScaleRule):
    """With the root mean square over the last axes; there is no bias."""

    parameter_names = ("weight",)

    def normalised(self, module: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(module, nn.RMSNorm)
        return torch.rms_norm(x, module.normalized_shape, eps=module.eps)
