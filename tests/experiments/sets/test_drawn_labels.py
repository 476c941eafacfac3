"""Labels that are drawn for every batch: their shares, what stays, resumption, and refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from experiments.sets.drawn_labels import DrawnLabels
from hessians import ContrastiveLoss
from laplacian_metric.core.method import Setup
from laplacian_metric.data import Dataset
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods import make
from laplacian_metric.training import TrainingOptions, train

SHARES = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.5, 0.3], [0.0, 0.4, 0.6]], dtype=torch.float64)


def three_images(shares: Tensor = SHARES) -> DrawnLabels:
    x = torch.arange(6.0).view(3, 2)
    return DrawnLabels.of(Dataset(x, [0, 1, 2], extras={"people": shares}), "people")


@pytest.mark.statistical
def test_labels_have_their_shares_within_four_standard_errors() -> None:
    number = 4000
    rows = [torch.tensor([2, 0, 1])] * number
    batches = list(three_images().batches(rows, torch.Generator().manual_seed(0)))
    labels = torch.stack([batch.labels for batch in batches])  # type: ignore[misc]
    for column, image in enumerate((2, 0, 1)):
        measured = torch.bincount(labels[:, column], minlength=3) / number
        error = (measured - SHARES[image]).abs() - 4 * (SHARES[image] * (1 - SHARES[image]) / number).sqrt()
        assert float(error.max()) <= 0
    assert torch.equal(batches[0].inputs, three_images().inputs[[2, 0, 1]])


def test_the_same_generator_draws_the_same_and_batches_in_order_keep_their_labels() -> None:
    data, rows = three_images(), [torch.tensor([1, 2])] * 30

    def drawn(seed: int) -> list[Any]:
        generator = torch.Generator().manual_seed(seed)
        return [batch.labels.tolist() for batch in data.batches(rows, generator)]  # type: ignore[union-attr]

    assert drawn(0) == drawn(0) != drawn(1)
    (batch,) = data.batches()
    assert batch.labels.tolist() == [0, 1, 2]


def test_an_interrupted_training_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 4, generator=generator)
    shares = torch.softmax(torch.randn(24, 3, generator=generator), dim=1)
    data = DrawnLabels.of(Dataset(x, torch.arange(24) % 3, extras={"people": shares}), "people")
    validation = Dataset(x, torch.arange(24) % 3)

    def weights(folder: Path, epochs: list[int]) -> Tensor:
        torch.manual_seed(0)
        encoder = Encoder(nn.Identity(), nn.Linear(4, 3))
        learner = make("deterministic").learner([encoder], Setup(ContrastiveLoss(), 24))
        for number in epochs:
            options = TrainingOptions(epochs=number, batch_size=8, learning_rate=1e-2)
            train(learner, data, validation, options, folder, seed=3, progress=False)
        return encoder.head.weight.detach().clone()

    whole = weights(tmp_path / "whole", [4])
    assert torch.equal(whole, weights(tmp_path / "parts", [2, 4]))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"people": SHARES[:, :0]}, "row 0 of people"),
        ({"people": SHARES - 0.5}, "row 0 of people"),
        ({"people": SHARES * torch.tensor([[1.0], [2.0], [1.0]])}, "row 1 of people"),
        ({"people": SHARES[:, 0] * math.nan}, "probabilities"),
        ({"people": torch.tensor([[1, 0], [1, 0], [0, 1]])}, "probabilities"),
        ({"others": SHARES}, "no extras called 'people', its extras are 'others': pass distribution"),
    ],
)
def test_bad_distributions_are_named(change: dict[str, Tensor], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        DrawnLabels.of(Dataset(torch.zeros(3, 2), [0, 1, 2], extras=change), "people")
