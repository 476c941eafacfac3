"""Per-image gradients of single layers against BackPACK's derivatives, which were written independently of ours."""

from __future__ import annotations

import pytest
import torch
from backpack.core.derivatives.basederivatives import BaseParameterDerivatives
from backpack.core.derivatives.batchnorm_nd import BatchNormNdDerivatives
from backpack.core.derivatives.conv1d import Conv1DDerivatives
from backpack.core.derivatives.conv2d import Conv2DDerivatives
from backpack.core.derivatives.conv3d import Conv3DDerivatives
from backpack.core.derivatives.conv_transpose1d import ConvTranspose1DDerivatives
from backpack.core.derivatives.conv_transpose2d import ConvTranspose2DDerivatives
from backpack.core.derivatives.conv_transpose3d import ConvTranspose3DDerivatives
from backpack.core.derivatives.linear import LinearDerivatives
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs, ggn_diagonal


class Flat(nn.Module):
    """A layer alone, its output flattened to be an embedding."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).flatten(1)


def trained_norm() -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(3)
    generator = torch.Generator().manual_seed(1)
    norm.running_mean = torch.randn(3, generator=generator)
    norm.running_var = torch.rand(3, generator=generator) + 0.5
    return norm


CASES = {
    "linear": (nn.Linear(4, 3), LinearDerivatives(), (4,)),
    "linear, a sequence": (nn.Linear(4, 2), LinearDerivatives(), (3, 4)),
    "conv1d": (nn.Conv1d(2, 3, 3, stride=2, padding=1), Conv1DDerivatives(), (2, 7)),
    "conv2d": (nn.Conv2d(2, 3, (2, 3), padding=1, dilation=2), Conv2DDerivatives(), (2, 5, 6)),
    "conv3d": (nn.Conv3d(1, 2, 2), Conv3DDerivatives(), (1, 3, 3, 3)),
    "transposed 1d": (nn.ConvTranspose1d(2, 2, 3, stride=2, padding=1), ConvTranspose1DDerivatives(), (2, 4)),
    "transposed 2d": (nn.ConvTranspose2d(2, 2, 2, stride=2), ConvTranspose2DDerivatives(), (2, 2, 3)),
    "transposed 3d": (nn.ConvTranspose3d(1, 2, 2), ConvTranspose3DDerivatives(), (1, 2, 2, 2)),
    "batch norm": (trained_norm(), BatchNormNdDerivatives(), (3, 2, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_diagonal_from_backpacks_gradients(name: str) -> None:
    """J of every image by BackPACK, then J^T M J: nothing of it goes through our rules."""
    layer, derivatives, shape = CASES[name]
    assert isinstance(derivatives, BaseParameterDerivatives)
    layer = layer.double().eval()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, *shape, dtype=torch.float64, generator=generator)
    model, loss, pairs = Flat(layer), ContrastiveLoss(margin=1.2), Pairs.from_labels([0, 0, 1, 1])
    output = layer(inputs).detach()
    layer.input0, layer.output = inputs, output
    dim = output[0].numel()
    columns = torch.eye(dim, dtype=torch.float64).view(dim, 1, *output.shape[1:]).expand(dim, *output.shape)
    matrix = loss.output_hessian(output.flatten(1), pairs, "full").dense()
    diagonal = ggn_diagonal(model, inputs, pairs, loss, "full")
    for parameter, values in layer.named_parameters():
        j = derivatives.param_mjp(parameter, layer, None, None, columns.contiguous(), sum_batch=False)
        j = j.flatten(2)  # (Z, N, parameters)
        expected = torch.einsum("knp,nkml,lmp->p", j, matrix, j).view_as(values)
        scale = torch.einsum("knp,nkml,lmp->p", j.abs(), matrix.abs(), j.abs()).view_as(values)
        assert bool(((diagonal[f"layer.{parameter}"] - expected).abs() <= 1e-10 * scale).all())
