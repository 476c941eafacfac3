"""Which modules a rule is found for, and that modules it is not found for are exact all the same."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from hessians.backward import ConvolutionRule, DirectRule, LinearRule, find_rule, register_rule
from hessians.backward.rules import Call, Layer
from tests.hessians.jacobians import Readout, check, fallbacks, left_to_autograd, random_input, randomise
from tests.hessians.networks import GeM

N = 6


class PlainLinear(nn.Linear):
    """A subclass with the same forward pass."""


class WithMethods(PlainLinear):
    """A subclass of a subclass, with methods of its own."""

    def jacobian(self) -> Tensor:
        return self.weight


class PlainConv(nn.Conv2d):
    """A subclass with the same forward pass."""


class LoRALinear(nn.Linear):
    """A linear layer with a low-rank addition to its weight."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__(inputs, outputs)
        self.down = nn.Parameter(torch.randn(rank, inputs))
        self.up = nn.Parameter(torch.randn(outputs, rank))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + F.linear(F.linear(input, self.down), self.up)


class StandardisedConv(nn.Conv2d):
    """A convolution whose weight is standardised first, without a forward pass of its own."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        scaled = (weight - weight.mean((1, 2, 3), keepdim=True)) / weight.std((1, 2, 3), keepdim=True)
        return super()._conv_forward(input, scaled, bias)


class LayerScale(nn.Module):
    """A learned factor for each feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Unmappable(LayerScale):
    """A scale whose forward pass asks for a number, which ``vmap`` cannot give."""

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma if float(x.detach().sum()) < 1e9 else x


@pytest.mark.parametrize(
    ("module", "rule"),
    [
        (PlainLinear(2, 3), LinearRule),
        (WithMethods(2, 3), LinearRule),
        (PlainConv(2, 3, 1), ConvolutionRule),
        (parametrizations.weight_norm(nn.Linear(2, 3)), LinearRule),  # for its bias
    ],
    ids=lambda parameter: type(parameter).__name__ if isinstance(parameter, nn.Module) else "",
)
def test_subclasses_take_the_rule(module: nn.Module, rule: type) -> None:
    assert type(find_rule(module)) is rule


def patched(module: nn.Module) -> nn.Module:
    module.forward = lambda x: F.linear(x, module.weight, module.bias) ** 2  # type: ignore[method-assign]
    return module


@pytest.mark.parametrize(
    "module",
    [
        LoRALinear(2, 3),
        StandardisedConv(2, 3, 2),
        patched(nn.Linear(2, 3)),
        GeM(),
        nn.BatchNorm2d(3),
        nn.BatchNorm2d(3, track_running_stats=False).eval(),
        nn.LSTM(2, 3),
    ],
    ids=[
        "own forward",
        "own _conv_forward",
        "patched",
        "unknown",
        "train mode",
        "no statistics",
        "recurrent",
    ],
)
def test_other_functions_of_the_weight_have_no_rule(module: nn.Module) -> None:
    assert find_rule(module) is None


def old_weight_norm(module: nn.Module) -> nn.Module:
    with pytest.warns(FutureWarning):
        return torch.nn.utils.weight_norm(module)


OTHERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "LoRA": (lambda: LoRALinear(4, 3), (4,)),
    "LoRA, sequences": (lambda: LoRALinear(4, 3), (2, 4)),
    "standardised convolution": (lambda: StandardisedConv(2, 3, 2), (2, 4, 4)),
    "patched forward": (lambda: patched(nn.Linear(4, 3)), (4,)),
    "GeM": (lambda: GeM(), (3, 4, 4)),
    "layer scale": (lambda: LayerScale(4), (3, 4)),
    "image by image": (lambda: Unmappable(4), (3, 4)),
    "PReLU": (lambda: nn.PReLU(3), (3, 4)),
    "bilinear of itself": (lambda: nn.Sequential(nn.Linear(4, 4), LayerScale(4)), (4,)),
    "recurrent": (lambda: nn.LSTM(3, 2, batch_first=True), (4, 3)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), (4,)),
    "weight norm by hooks": (lambda: old_weight_norm(nn.Linear(4, 3)), (4,)),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(4, 3)), (4,)),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley"), (4,)),
}


@pytest.mark.parametrize("approximation", ["full", "fixed"])
@pytest.mark.parametrize("case", OTHERS)
def test_modules_without_a_rule_are_exact(case: str, approximation: str) -> None:
    make, shape = OTHERS[case]
    model = randomise(Readout(make()))
    check(model, random_input(N, *shape), approximation=approximation)


def test_the_log_says_what_is_left_to_autograd(caplog: pytest.LogCaptureFixture) -> None:
    model = randomise(Readout(LoRALinear(4, 3)))
    with caplog.at_level(logging.INFO, "hessians"):
        check(model, random_input(N, 4))
        check(model, random_input(N, 4))
    (message,) = fallbacks(caplog)
    assert "LoRALinear" in message
    assert "layer.down" in message


@pytest.mark.parametrize("power", [1, 2])
def test_a_rule_can_be_registered_and_a_wrong_one_is_found_out(
    power: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.gain**power * x

    @register_rule(Gain)
    class RuleOfTheFirstPower(DirectRule):
        parameter_names = ("gain",)

        def image_gradients(self, layer: Layer, name: str, call: Call, cotangents: Tensor) -> Tensor:
            return (cotangents * call.split_input[:, None]).flatten(2).sum(2)

    assert any(
        "layer.gain" in message
        for message in left_to_autograd(caplog, randomise(Readout(Gain())), random_input(N, 4))
    ) == (power == 2)
