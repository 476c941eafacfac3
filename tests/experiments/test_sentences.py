"""The experiment on sentences, with embeddings that are clusters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments import sentences


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_row_is_measured_on_one_draw() -> None:
    labels = np.arange(400) % 4
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.eye(8)[labels] + 0.5 * torch.randn(400, 8, generator=generator)
    texts = [f"text {row}" for row in range(400)]
    values = sentences.measured(texts, labels, embeddings, (200, 100, 100), seed=0)
    assert values.keys() == {*sentences.ROWS, "recall_plain", "recall_head"}
    assert all(0 <= value <= 1 for value in values.values())
    assert values["trust"] > 0.6
