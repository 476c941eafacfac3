"""The contrastive loss with a hard margin: by a loop, and as a method of cells."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from experiments.hard_margin import HardMargin, hard_margin_loss
from hessians import ContrastiveLoss, Pairs
from laplacian_metric import methods
from laplacian_metric.core.method import Setup
from laplacian_metric.encoder import Encoder


def by_a_loop(points: Tensor, labels: list[int], margin: float) -> float:
    """Equation 1 of every pair, averaged over each type of pair."""
    positive, negative = [], []
    for i in range(len(labels)):
        for j in range(i):
            distance = float((points[i] - points[j]).norm())
            if labels[i] == labels[j]:
                positive.append(distance**2)
            else:
                negative.append(max(0.0, margin - distance) ** 2)
    return sum(sum(terms) / (2 * len(terms)) for terms in (positive, negative) if terms)


@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    dim=st.integers(1, 4),
    margin=st.floats(0.1, 3.0),
    seed=st.integers(0, 99),
)
def test_the_loss_by_a_loop(labels: list[int], dim: int, margin: float, seed: int) -> None:
    points = torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    loss = hard_margin_loss(points, Pairs.from_labels(labels), margin)
    assert float(loss) == pytest.approx(by_a_loop(points, labels, margin), abs=1e-12)


def test_the_gradient_is_finite_where_points_coincide() -> None:
    points = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    hard_margin_loss(points, Pairs.from_labels([0, 0, 1, 1]), 1.0).backward()
    assert bool(points.grad.isfinite().all())


def test_as_a_method_it_trains_the_encoder_and_leaves_a_and_b() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(24, 3, generator=generator), torch.arange(24) % 4
    encoder = Encoder(nn.Sequential(nn.Linear(3, 16), nn.ReLU()), nn.Linear(16, 2), normalize=False)
    learner = methods.make("hard-margin", margin=1.0).learner([encoder], Setup(ContrastiveLoss(), 24))
    optimizer = torch.optim.Adam(learner.parameters(), lr=0.01)
    learner.begin(optimizer, torch.Generator().manual_seed(0))
    first = float(learner.loss(inputs, labels).detach())
    for _ in range(100):
        optimizer.zero_grad()
        learner.loss(inputs, labels).backward()
        optimizer.step()
    assert float(learner.loss(inputs, labels).detach()) < 0.8 * first


@pytest.mark.parametrize(("option", "said"), [({"margin": 0.0}, "margin"), ({"balance": "pairs"}, "balance")])
def test_options_that_mean_nothing_are_refused(option: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        HardMargin(**option)  # type: ignore[arg-type]
