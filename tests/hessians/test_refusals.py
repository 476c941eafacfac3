"""What curvature refuses, and that the error names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss, InfoNCELoss, Pairs, last_layer_ggn_diagonal, last_layer_kronecker
from hessians.active_pairs import ActiveSearch
from hessians.layer_ggn import LayerBatch, LayerGGN
from hessians.network import ggn_diagonal
from hessians.output_hessian import DenseSizeError, IndefiniteHessianError
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


class Returning(nn.Module):
    """Returns what a function makes of a linear layer's output."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer(x))


def returned(function: Any) -> object:
    return run(randomise(Returning(function)))


def training(*layers: nn.Module, shape: tuple[int, ...] = (4,)) -> object:
    return run(randomise(nn.Sequential(*layers)).train(), random_input(N, *shape))


def of_inputs(inputs: Any) -> object:
    return run(randomise(nn.Linear(4, 3)), inputs)


def of_convolutions(**options: Any) -> object:
    return run(randomise(two_convolutions()), random_input(N, 1, 8, 8), **options)


def lists(*columns: Any) -> list[Tensor]:
    return [torch.tensor(column) for column in columns]


def last_layer(**arguments: Any) -> object:
    usual = {"features": FEATURES, "weight": WEIGHT, "bias": BIAS, "pairs": PAIRS, "loss": ContrastiveLoss()}
    return last_layer_ggn_diagonal(**{**usual, **arguments})


def kronecker(pairs: Pairs, features: Tensor | None = None) -> object:
    loss = ContrastiveLoss(5.0, "euclidean", negative_weight=0.9)
    return last_layer_kronecker(
        FEATURES if features is None else features, WEIGHT, None, pairs, loss, "fixed"
    )


def dense_layer() -> object:
    pairs = Pairs.from_labels(torch.arange(600) % 7)
    hessian = ContrastiveLoss().output_hessian
    batch = LayerBatch(MANY, lambda: hessian(MANY, pairs, "clipped"))
    return LayerGGN([batch], 8, bias=False).matmul(torch.randn(1, 8, 8))


FEATURES, WEIGHT, BIAS = torch.randn(4, 3), torch.randn(2, 3), torch.randn(2)
PAIRS, MANY = Pairs.from_labels([0, 0, 1, 1]), torch.randn(600, 8)
EYE, VIEWS = torch.eye(4), Pairs.from_labels([0, 1, 0, 1])
ENCODER_LAYER = nn.TransformerEncoderLayer(4, 2, 4, dropout=0.1, batch_first=True)
Bad = ValueError, TypeError


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        # the mode of a network
        (lambda: training(Residual(), shape=(1, 6, 6)), ValueError, r"stem\.1 \(BatchNorm2d\)"),
        (lambda: training(nn.Linear(4, 3), nn.Dropout(0.1), nn.Linear(3, 3)), ValueError, r"1 \(Dropout\)"),
        (lambda: training(Readout(ENCODER_LAYER), shape=(3, 4)), ValueError, r"self_attn \(MultiheadAttention\)"),
        (lambda: training(nn.Linear(4, 3), nn.RReLU()), ValueError, r"1 \(RReLU\)"),
        (
            lambda: training(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)),
            ValueError,
            r"1 \(BatchNorm1d\)",
        ),
        # its outputs
        (lambda: returned(lambda u: u - u.mean(0)), ValueError, "mixes"),
        (lambda: returned(lambda u: u + torch.rand_like(u)), ValueError, "deterministic"),
        (lambda: returned(lambda u: {"u": u}), TypeError, "dict"),
        (lambda: returned(lambda u: (u, u)), TypeError, "tuple"),
        (lambda: returned(lambda u: u[:, :, None]), ValueError, r"\(6, 3, 1\)"),
        (lambda: returned(lambda u: u.sum(0)), ValueError, r"\(3,\)"),
        (lambda: returned(lambda u: u[:2]), ValueError, "2 embeddings"),
        (lambda: returned(lambda u: u.half()), TypeError, "float16"),
        (lambda: returned(lambda u: u / 0), ValueError, "u has NaN"),
        (lambda: returned(lambda u: u * 0), ValueError, "norm zero"),
        (lambda: returned(lambda u: u.detach()), ValueError, "parameters"),
        (lambda: returned(lambda u: u + (u * 0).sqrt()), ValueError, r"layer\.weight"),
        # its inputs, parameters and options
        (lambda: run(randomise(nn.Linear(4, 3)), labels=[0, 1]), ValueError, "pairs"),
        (lambda: of_inputs({"x": 3}), TypeError, "inputs is a dict"),
        (lambda: of_inputs("images"), TypeError, "inputs is a str"),
        (lambda: of_inputs((torch.zeros(6, 4), torch.zeros(5, 4))), ValueError, r"1 has \(5, 4\)"),
        (lambda: of_inputs({"x": torch.tensor(1.0)}), ValueError, "x has"),
        (lambda: of_convolutions(parameters=["heads"]), ValueError, "'heads'.* 0, 2, 6"),
        (lambda: of_convolutions(parameters=["6.weights"]), ValueError, "6.weights"),
        (lambda: of_convolutions(parameters=[]), ValueError, "parameters"),
        (lambda: of_convolutions(method="exactly"), ValueError, "method"),
        (lambda: of_convolutions(approximation="none"), ValueError, "approximation"),
        (lambda: of_convolutions(method="sketch", probes=0), ValueError, "probes"),
        (lambda: of_convolutions(columns_per_pass=0), ValueError, "columns_per_pass"),
        (lambda: of_convolutions(memory_budget=0), ValueError, "memory_budget"),
        (lambda: run(nn.Tanh()), ValueError, "Tanh"),
        (lambda: run(nn.Sequential(nn.LazyLinear(3))), ValueError, "0.weight"),
        # pairs
        (lambda: Pairs.from_labels(torch.zeros(3)), Bad, "labels"),
        (lambda: Pairs.from_labels(torch.zeros(3, 1).long()), Bad, "labels"),
        (lambda: Pairs.from_labels([0, 0], population=(0, 1)), Bad, "population"),
        (lambda: Pairs.from_labels([0, 0], population=(float("nan"), 1)), Bad, "population"),
        (lambda: Pairs.from_indices(lists([0], [0]), 2), Bad, "2 index tensors"),
        (lambda: Pairs.from_indices(lists([0], [1], [3]), 3), Bad, "negative"),
        (lambda: Pairs.from_indices(lists([0], [-1], [2]), 3), Bad, "positive"),
        (lambda: Pairs.from_indices(lists([1], [1], [2]), 3), Bad, "image 1 at position 0"),
        (lambda: Pairs.from_indices(lists([0], [1.0], [2]), 3), Bad, "positive"),
        (lambda: Pairs.from_indices(lists([0], [1, 2], [2]), 3), Bad, "anchor"),
        (lambda: Pairs.from_indices([torch.zeros(1, 1).long()] * 3, 3), Bad, "anchor"),
        (lambda: Pairs.from_indices((*lists([0]), torch.tensor([1], device="meta"), *lists([2])), 3), Bad, "meta"),
        (lambda: Pairs.from_positions(torch.zeros(3, 2).long(), 1, 2), Bad, "positions"),
        (lambda: Pairs.from_positions(torch.zeros(3), 1, 2), Bad, "positions"),
        (lambda: Pairs.from_positions(torch.zeros(3, 2), 3, 2), Bad, "positive_radius"),
        (lambda: Pairs.from_positions(torch.tensor([[0.0], [torch.nan]]), 1, 2), Bad, "row 1"),
        (lambda: ActiveSearch(torch.zeros(3, 2), torch.zeros(4), 0.5), ValueError, "labels"),
        # losses
        *(
            (lambda options=options: ContrastiveLoss(**options), ValueError, next(iter(options)))
            for options in (
                {"margin": 0.0},
                {"margin": float("nan")},
                {"negative_weight": 1.5},
                {"distance": "cosine"},
                {"negatives": "hard"},
                {"normalize": False},
                {"power": 3},
            )
        ),
        (lambda: InfoNCELoss(0.0), ValueError, "temperature"),
        (lambda: InfoNCELoss().output_hessian(EYE, VIEWS, "positive"), ValueError, "fixed"),
        (lambda: InfoNCELoss().pair_values(EYE, EYE, True), TypeError, "whole batch"),
        (lambda: InfoNCELoss()(EYE[:1], Pairs.from_labels([0])), ValueError, "2 images"),
        (lambda: InfoNCELoss()(torch.ones(5000, 2), Pairs.from_labels(torch.arange(5000))), ValueError, "4096"),
        (lambda: InfoNCELoss().output_hessian(0 * EYE, VIEWS), ValueError, "finite"),
        *(
            (lambda call=call, u=u: call(u, Pairs.from_labels([0, 1])), Bad, named)
            for call in (ContrastiveLoss(), ContrastiveLoss().gradient, ContrastiveLoss().output_hessian)
            for u, named in (
                (torch.ones(3, 2), "3 embeddings"),
                (torch.ones(2, 2).long(), "u has dtype"),
                (torch.ones(2), "u has shape"),
                (torch.tensor([[1.0, 0.0], [torch.nan, 1.0]]), "row 1"),
                (torch.tensor([[1.0, 0.0], [torch.inf, -torch.inf]]), "row 1"),
                (torch.tensor([[1.0, 0.0], [0.0, 0.0]]), "row 1"),
                (torch.ones(2, 2, device="meta"), "u on meta"),
            )
        ),
        # the last layer
        (lambda: last_layer(features=FEATURES[:3]), Bad, "features"),
        (lambda: last_layer(features=FEATURES.long()), Bad, "features"),
        (lambda: last_layer(features=FEATURES[0]), Bad, "features"),
        (lambda: last_layer(features=FEATURES[:, :2]), Bad, "weight"),
        (lambda: last_layer(features=FEATURES.double()), Bad, "weight"),
        (lambda: last_layer(features=torch.full((4, 3), torch.nan)), Bad, "features"),
        (lambda: last_layer(features=torch.zeros(4, 3), bias=None), Bad, "norm zero"),
        (lambda: last_layer(weight=WEIGHT.to("meta")), Bad, "weight on meta"),
        (lambda: last_layer(bias=BIAS[:1]), Bad, "bias"),
        (lambda: last_layer(approximation="diag"), Bad, "approximation"),
        (lambda: last_layer(embeddings=torch.ones(4, 3)), Bad, "embeddings"),
        (lambda: last_layer(embeddings=torch.full((4, 2), torch.nan)), Bad, "u has NaN"),
        (lambda: last_layer(memory_budget=0), Bad, "memory_budget"),
        (lambda: last_layer(weight=torch.randn(2048, 3), bias=None, approximation="clipped"), Bad, "2 images"),
        (lambda: kronecker(Pairs.from_labels([0, 0, 1, 2])), IndefiniteHessianError, "clipped"),
        (lambda: kronecker(Pairs.from_labels([0, 1])), ValueError, "features"),
        (
            lambda: kronecker(Pairs.from_labels(torch.arange(5000) % 2), torch.randn(5000, 3)),
            ValueError,
            "5000 images",
        ),
        (lambda: LayerGGN([], 2, bias=True), ValueError, "batch"),
        (dense_layer, DenseSizeError, "512 images"),
    ],
)  # fmt: skip
def test_bad_inputs(call: Callable[[], object], error: Any, named: str) -> None:
    with pytest.raises(error, match=named):
        call()


def test_train_mode_without_randomness_is_fine() -> None:
    model = randomise(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0), nn.LayerNorm(3))).train()
    assert run(model)["0.weight"].shape == (3, 4)


def test_one_name_may_be_given_as_it_is() -> None:
    model = randomise(VisionTransformer())
    assert list(run(model, random_input(N, 1, 6, 6), parameters="head")) == ["head.weight", "head.bias"]
