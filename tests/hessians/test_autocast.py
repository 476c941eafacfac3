"""Curvature keeps its digits inside of ``torch.autocast``, to the bit, whatever structure of it is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hessians import (
    ContrastiveLoss,
    InfoNCELoss,
    Pairs,
    ggn_diagonal,
    last_layer_ggn_diagonal,
    last_layer_kronecker,
)
from hessians.layer_ggn import LayerBatch, LayerGGN
from hessians.loss_summary import summarise

GENERATOR = torch.Generator().manual_seed(0)
H, W, B = (torch.randn(*shape, generator=GENERATOR) for shape in ((60, 12), (5, 12), (5,)))
U = H @ W.T + B
PAIRS = Pairs.from_labels(torch.arange(60) % 6)
LOSS = ContrastiveLoss(distance="euclidean")
MODEL = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4), nn.LayerNorm(4))


def layer() -> LayerGGN:
    return LayerGGN([LayerBatch(H, lambda: LOSS.output_hessian(U, PAIRS, "full"))], 5, True)


@pytest.mark.parametrize(
    "curvature",
    [
        *(
            lambda loss=loss, kept=kept: last_layer_ggn_diagonal(H, W, B, PAIRS, loss, kept)[0]
            for loss in (ContrastiveLoss(), LOSS, ContrastiveLoss(power=1), InfoNCELoss(0.3))
            for kept in ("full", "fixed", "clipped")
        ),
        lambda: last_layer_ggn_diagonal(H, W, B, PAIRS, LOSS, "positive")[0],
        lambda: last_layer_kronecker(H, W, B, PAIRS, LOSS, "positive").input,
        lambda: layer().dense(),
        lambda: layer().kronecker().input,
        lambda: summarise(ContrastiveLoss(), U, PAIRS).positive_gradient,
        lambda: ggn_diagonal(MODEL, H, PAIRS, ContrastiveLoss())["0.weight"],
    ],
)
def test_autocast_changes_nothing(curvature: Callable[[], Tensor]) -> None:
    expected = curvature()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(curvature(), expected)
        assert (H @ W.T).dtype == torch.bfloat16  # autocast is as it was
