"""Parameters that enter by one broadcast operation: their gradients are read off autograd's graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.hessians.jacobians import Readout, left_to_autograd, random_input, randomise
from tests.hessians.networks import VisionTransformer

N = 6


class Using(nn.Module):
    """A parameter of some shape, and what is done with it."""

    def __init__(self, shape: tuple[int, ...], function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.ones(shape))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.parameter)


READ_OFF: dict[str, tuple[Using, tuple[int, ...]]] = {
    "class token": (Using((1, 1, 3), lambda x, p: torch.cat([p.expand(len(x), -1, -1), x], dim=1)), (4, 3)),
    "class token, repeated": (
        Using((1, 1, 3), lambda x, p: torch.cat([p.repeat(len(x), 1, 1), x], dim=1)),
        (4, 3),
    ),
    "positions": (Using((1, 4, 3), lambda x, p: x + p), (4, 3)),
    "positions without an axis for images": (Using((4, 3), lambda x, p: p + x), (4, 3)),
    "positions, in place": (Using((1, 4, 3), lambda x, p: x.clone().add_(p)), (4, 3)),
    "shift of all": (Using((1,), lambda x, p: torch.tanh(x) + p), (4, 3)),
    "scale of channels": (Using((4, 1, 1), lambda x, p: p * torch.sin(x)), (4, 2, 3)),
    "scale of features": (Using((3,), lambda x, p: torch.sin(x).mul(p)), (4, 3)),
    "scale of vectors": (Using((3,), lambda x, p: x * p), (3,)),
}
LEFT_TO_AUTOGRAD: dict[str, tuple[Using, tuple[int, ...]]] = {
    "used twice": (Using((1, 4, 3), lambda x, p: (x + p) * p), (4, 3)),
    "added with a factor": (Using((4, 3), lambda x, p: torch.add(x, p, alpha=2)), (4, 3)),
    "as many positions as images": (Using((N, 3), lambda x, p: x + p.sin()), (N, 3)),
    "a number for each position": (
        Using((3,), lambda x, p: x + (torch.ones(N, 3, dtype=p.dtype) * p)),
        (N, 3),
    ),
}


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("case", READ_OFF)
def test_read_off_the_graph(case: str, checked: bool, caplog: pytest.LogCaptureFixture) -> None:
    layer, shape = READ_OFF[case]
    assert not left_to_autograd(caplog, randomise(Readout(layer)), random_input(N, *shape), check=checked)


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("case", LEFT_TO_AUTOGRAD)
def test_left_to_autograd(case: str, checked: bool, caplog: pytest.LogCaptureFixture) -> None:
    layer, shape = LEFT_TO_AUTOGRAD[case]
    assert left_to_autograd(caplog, randomise(Readout(layer)), random_input(N, *shape), check=checked)


@pytest.mark.parametrize("length", [4, N], ids=["another length", "as many positions as images"])
def test_positions_of_sequences_that_come_first(length: int, caplog: pytest.LogCaptureFixture) -> None:
    layer = Using((length, 1, 3), lambda x, p: torch.tanh(x.transpose(0, 1) + p).transpose(0, 1))
    assert not left_to_autograd(caplog, randomise(Readout(layer)), random_input(N, length, 3), check=False)


def test_a_vision_transformer_has_a_rule_for_everything(caplog: pytest.LogCaptureFixture) -> None:
    assert not left_to_autograd(caplog, randomise(VisionTransformer()), random_input(N, 1, 6, 6))
