"""Convolutions and transposed convolutions in one, two and three dimensions: bilinear in patches of their input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from hessians.backward.bilinear import BilinearRule
from hessians.backward.rules import Call, Layer, Layout, register_rule

# From this many positions on, the processor's own kernels for convolutions are worth their overhead.
_LARGE_IMAGE = 200
_FAST_DTYPES = (torch.float32,)


def patches(x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """The patches (B, F, *kernel, *positions) that a kernel without padding meets in x (B, F, *space); a view of x."""
    dims = len(kernel)
    for axis in range(dims):
        extent = dilation[axis] * (kernel[axis] - 1) + 1
        x = x.unfold(2 + axis, extent, stride[axis])[..., :: dilation[axis]]
    order = [0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims)]
    return x.permute(order)


def same_padding(module: _ConvNd) -> list[tuple[int, int]]:
    """The zeros (or whatever the padding mode puts there) before and after each axis."""
    if isinstance(module.padding, str):
        total = [
            dilation * (size - 1) if module.padding == "same" else 0
            for size, dilation in zip(module.kernel_size, module.dilation, strict=True)
        ]
        return [(amount // 2, amount - amount // 2) for amount in total]
    return [(int(amount), int(amount)) for amount in module.padding]


def pad(x: Tensor, amounts: Sequence[tuple[int, int]], mode: str = "zeros") -> Tensor:
    """x with its last axes padded, first of ``amounts`` for the first of them."""
    flat = [amount for pair in reversed(amounts) for amount in pair]
    return F.pad(x, flat, mode="constant" if mode == "zeros" else mode) if any(flat) else x


class PatchRule(BilinearRule):
    """What convolutions and transposed convolutions share: channels in groups, space as positions."""

    decisive_methods = ("forward", "_conv_forward")

    def features(self, module: nn.Module) -> int:
        assert isinstance(module, _ConvNd)
        return module.in_channels // module.groups

    def fits(self, module: nn.Module, call: Call, layout: Layout) -> bool:
        assert isinstance(module, _ConvNd)
        return super().fits(module, call, layout) and call.input.ndim == 2 + len(module.kernel_size)

    def outputs(self, module: nn.Module, cotangents: Tensor) -> Tensor:
        assert isinstance(module, _ConvNd)
        num_images, columns, rows = cotangents.shape[:3]
        shape = (num_images, columns, rows, module.groups, module.out_channels // module.groups, -1)
        return cotangents.reshape(shape).permute(0, 3, 1, 4, 2, 5).flatten(4)

    def group_channels(self, module: _ConvNd, call: Call, start: int, stop: int) -> Tensor:
        """The input channels start..stop-1 of each group, (B, G * (stop - start), *space)."""
        x = call.input
        grouped = x.reshape(len(x), module.groups, -1, *x.shape[2:])[:, :, start:stop]
        return grouped.flatten(1, 2)

    def positions_first(self, module: _ConvNd, call: Call, unfolded: Tensor) -> Tensor:
        """x (N, G, L, K) from patches (B, G * F, *kernel, *positions) of k rows for each image."""
        num_images, dims = call.layout.num_images, len(module.kernel_size)
        space = unfolded.shape[2 + dims :].numel()
        kernel = unfolded.shape[2 : 2 + dims].numel()
        rows = len(unfolded) // num_images
        features = unfolded.shape[1] // module.groups * kernel
        # Positions stay the fastest axis in memory: matrix products take the transposed view as it is.
        x = unfolded.reshape(num_images, rows, module.groups, features, space)
        if rows == 1:
            return x.squeeze(1).mT
        return x.permute(0, 2, 1, 4, 3).reshape(num_images, module.groups, rows * space, features)


@register_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class ConvolutionRule(PatchRule):
    """The patches that the kernel meets, K = input channels of a group times the kernel's size."""

    def inputs(self, module: nn.Module, call: Call, start: int, stop: int) -> Tensor:
        assert isinstance(module, _ConvNd)
        x = pad(self.group_channels(module, call, start, stop), same_padding(module), module.padding_mode)
        return self.positions_first(
            module, call, patches(x, module.kernel_size, module.stride, module.dilation)
        )

    def direct_gradients(self, layer: Layer) -> Callable[[Tensor], Tensor] | None:
        """All images as groups of one convolution, where the processor has a kernel for the gradient of its weight.

        Measured against patches: up to twice as fast for large images in single precision and without a stride, slower
        otherwise.
        """
        module, call = layer.module, layer.calls[0]
        assert isinstance(module, _ConvNd)
        x = call.input
        fast = isinstance(module, nn.Conv2d) and x.dtype in _FAST_DTYPES and x.device.type == "cpu"
        plain = module.groups == 1 and set(module.stride) == {1} and len(layer.calls) == 1
        if not (fast and plain and len(x) == call.layout.num_images):
            return None
        padded = pad(x, same_padding(module), module.padding_mode)
        space = [
            size - dilation * (kernel - 1)
            for size, dilation, kernel in zip(
                padded.shape[2:], module.dilation, module.kernel_size, strict=True
            )
        ]
        if math.prod(space) < _LARGE_IMAGE:
            return None

        def gradients(d: Tensor) -> Tensor:
            images, _, _, outputs, _ = d.shape
            shape = (images * outputs, module.in_channels, *module.kernel_size)
            together = padded.reshape(1, -1, *padded.shape[2:])
            cotangents = d.reshape(1, -1, *space)
            gradient: Tensor = conv2d_weight(
                together, shape, cotangents, dilation=module.dilation, groups=images
            )
            return gradient.view(images, 1, 1, outputs, -1)

        return gradients


@register_rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
class TransposedConvolutionRule(PatchRule):
    """A convolution of the input spread out by the stride, with the kernel turned round."""

    def inputs(self, module: nn.Module, call: Call, start: int, stop: int) -> Tensor:
        assert isinstance(module, _ConvTransposeNd)
        x = self.group_channels(module, call, start, stop)
        spread = x.new_zeros(
            *x.shape[:2],
            *((size - 1) * stride + 1 for size, stride in zip(x.shape[2:], module.stride, strict=True)),
        )
        places = (slice(None), slice(None), *(slice(None, None, stride) for stride in module.stride))
        spread[places] = x
        x = pad(spread, self._amounts(module, call))
        ones = (1,) * len(module.kernel_size)
        return self.positions_first(module, call, patches(x, module.kernel_size, ones, module.dilation))

    def _amounts(self, module: _ConvTransposeNd, call: Call) -> list[tuple[int, int]]:
        """The padding that makes the output as large as the module's; what ``output_size`` asked for counts too."""
        amounts = []
        dims = len(module.kernel_size)
        extra = module.output_padding
        if len(call.args) > 1 or call.kwargs.get("output_size") is not None:
            wanted = call.args[1] if len(call.args) > 1 else call.kwargs["output_size"]
            extra = tuple(
                int(wanted[len(wanted) - dims + axis]) - self._size(module, call, axis)
                for axis in range(dims)
            )
        for axis in range(dims):
            before = module.dilation[axis] * (module.kernel_size[axis] - 1) - int(module.padding[axis])
            amounts.append((before, before + int(extra[axis])))
        return amounts

    @staticmethod
    def _size(module: _ConvTransposeNd, call: Call, axis: int) -> int:
        """The output's size along an axis without output padding."""
        extent = module.dilation[axis] * (module.kernel_size[axis] - 1) + 1
        spread = (call.input.shape[2 + axis] - 1) * module.stride[axis]
        return int(spread + extent - 2 * int(module.padding[axis]))

    def as_weight(self, module: nn.Module, values: Tensor) -> Tensor:
        assert isinstance(module, _ConvNd)
        groups, outputs = values.shape[:2]
        turned = values.reshape(groups, outputs, self.features(module), *module.kernel_size)
        turned = turned.flip(tuple(range(3, turned.ndim)))
        return turned.transpose(1, 2).reshape(module.weight.shape)
