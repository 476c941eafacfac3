"""What ``ggn_diagonal`` refuses, and that the message says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessians import Pairs
from hessians.network import ggn_diagonal
from tests.hessians.jacobians import LABELS, Readout, make_loss, random_input, randomise
from tests.hessians.networks import Residual, VisionTransformer, two_convolutions

N = len(LABELS)


def run(
    model: nn.Module, inputs: Any = None, labels: list[int] | None = None, **options: Any
) -> dict[str, Tensor]:
    batch = random_input(N, 4) if inputs is None else inputs
    return ggn_diagonal(
        model, batch, Pairs.from_labels(LABELS if labels is None else labels), make_loss(), **options
    )


def in_training(model: nn.Module) -> nn.Module:
    return randomise(model).train()


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (Residual(), (1, 6, 6), r"stem\.1 \(BatchNorm2d\) is in train mode .* model\.eval\(\)"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1), nn.Linear(3, 3)),
            (4,),
            r"1 \(Dropout\) is in train mode and random: call model\.eval\(\)",
        ),
        (
            Readout(nn.TransformerEncoderLayer(4, 2, 4, dropout=0.1, batch_first=True)),
            (3, 4),
            r"layer\.self_attn \(MultiheadAttention\) is in train mode and random",
        ),
        (nn.Sequential(nn.Linear(4, 3), nn.RReLU()), (4,), r"1 \(RReLU\) is in train mode and random"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)),
            (4,),
            r"1 \(BatchNorm1d\) has no running statistics",
        ),
    ],
    ids=["batch norm", "dropout", "attention", "random slope", "no statistics"],
)
def test_train_mode(model: nn.Module, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(in_training(model), random_input(N, *shape))


def test_train_mode_without_randomness_is_fine() -> None:
    model = in_training(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0), nn.LayerNorm(3)))
    assert run(model)["0.weight"].shape == (3, 4)


class Mixing(nn.Module):
    """Every embedding depends on the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out - out.mean(0)


class Random(nn.Module):
    """Another embedding in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + torch.rand_like(x))


@pytest.mark.parametrize("model", [Mixing(), Random()], ids=["mixes the images", "is random"])
def test_a_model_whose_embedding_of_an_image_is_not_its_own(model: nn.Module) -> None:
    with pytest.raises(
        ValueError, match=r"mixes the images of a batch, or is not deterministic; call model\.eval"
    ):
        run(randomise(model))


class Returning(nn.Module):
    """Returns what a function makes of a linear layer's output."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer(x))


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda u: {"u": u}, TypeError, "Returning returns a dict; one tensor of embeddings .* wrap it"),
        (lambda u: (u, u), TypeError, "Returning returns a tuple"),
        (
            lambda u: u[:, :, None],
            ValueError,
            r"the model returns shape \(6, 3, 1\), embeddings of shape \(N, Z\)",
        ),
        (lambda u: u.sum(0), ValueError, r"the model returns shape \(3,\)"),
        (lambda u: u[:2], ValueError, "the model returns 2 embeddings for 6 images"),
        (lambda u: u.half(), TypeError, "dtype torch.float16"),
        (lambda u: u / 0, ValueError, "u has NaN or infinite entries in 6 of 6 rows"),
        (lambda u: u * 0, ValueError, "6 of 6 embeddings have norm zero"),
        (lambda u: u.detach(), ValueError, "do not depend on any of the chosen parameters"),
        (lambda u: u + (u * 0).sqrt(), ValueError, r"curvature of layer\.weight is not finite"),
    ],
    ids=[
        "dict",
        "tuple",
        "3-D",
        "1-D",
        "too few",
        "half",
        "infinite",
        "zero",
        "no graph",
        "infinite gradient",
    ],
)
def test_outputs(function: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(randomise(Returning(function)))


def test_labels_of_another_length() -> None:
    with pytest.raises(ValueError, match="the pairs are over 2 images for 6 embeddings"):
        run(randomise(nn.Linear(4, 3)), labels=[0, 1])


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({"x": 3}, TypeError, "inputs is a dict without a tensor"),
        ("images", TypeError, "inputs is a str without a tensor"),
        ((torch.zeros(6, 4), torch.zeros(5, 4)), ValueError, r"0 has \(6, 4\), 1 has \(5, 4\)"),
        ({"x": torch.tensor(1.0)}, ValueError, r"x has \(\)"),
    ],
    ids=["no tensor", "no inputs", "two lengths", "a number"],
)
def test_inputs(inputs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(randomise(nn.Linear(4, 3)), inputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"parameters": ["heads"]},
            "parameters has 'heads', which is neither .* the model's parts are 0, 2, 6",
        ),
        ({"parameters": ["6.weights"]}, "parameters has '6.weights'"),
        ({"parameters": []}, "parameters is empty"),
        ({"method": "exactly"}, "method is 'exactly', one of 'exact', 'sketch' is needed"),
        ({"approximation": "none"}, "approximation is 'none'"),
        ({"method": "sketch", "probes": 0}, "probes is 0, at least 1 is needed"),
        ({"columns_per_pass": 0}, "columns_per_pass is 0"),
        ({"memory_budget": 0}, "memory_budget is 0"),
    ],
    ids=str,
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(randomise(two_convolutions()), random_input(N, 1, 8, 8), **options)


@pytest.mark.parametrize(
    ("model", "message"),
    [(nn.Tanh(), "Tanh has no parameters"), (nn.Sequential(nn.LazyLinear(3)), "0.weight has no shape yet")],
    ids=["no parameters", "lazy"],
)
def test_models_without_parameters(model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(model)


def test_one_name_may_be_given_as_it_is() -> None:
    model = randomise(VisionTransformer())
    assert list(run(model, random_input(N, 1, 6, 6), parameters="head")) == ["head.weight", "head.bias"]
