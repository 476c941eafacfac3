"""The experiment on sentences, with embeddings that are clusters."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import sentences


def test_texts_are_distinct_and_of_classes_that_have_enough(tmp_path: Path) -> None:
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("label", "text"))
        writer.writerows([(name, f"{name} {row % 12}") for name in ("a", "b") for row in range(20)])
        writer.writerow(("c", "alone"))
    texts, labels = sentences.read_texts(tmp_path / "t.csv", 100, seed=0)
    assert sorted(texts) == sorted({f"{name} {row}" for name in ("a", "b") for row in range(12)})
    assert sorted(np.unique(labels)) == [0, 1]


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
    assert "recall@1 of the head" in sentences.page({"Clusters": [values, values]})
