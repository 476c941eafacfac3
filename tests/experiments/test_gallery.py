"""What the searched images do to retrieval: the share of hits by a loop, and a run to its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from experiments import gallery
from experiments.gallery import AS_MANY, TEST, TRAINING, precisions
from tests.experiments.harness.miniature import folder_with


def test_the_first_neighbour_in_each_gallery_by_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, database = (
        F.normalize(torch.randn(number, 3, generator=generator, dtype=torch.float64), dim=1)
        for number in (12, 33)
    )
    labels, database_labels = torch.arange(12) % 4, torch.arange(33) % 4
    found = precisions(queries, labels, database, database_labels)
    among = {TRAINING: range(33), AS_MANY: [0, 3, 6, 9, 12, 15, 17, 20, 23, 26, 29, 32]}
    for name, places in among.items():
        hits = [
            database_labels[max(places, key=lambda place: float(database[place] @ query))] == label
            for query, label in zip(queries, labels, strict=True)
        ]
        assert found[name]["mAP@1"] == pytest.approx(sum(map(float, hits)) / 12), name
    others = [
        max(
            (place for place in range(12) if place != query),
            key=lambda place: float(queries[place] @ queries[query]),
        )
        for query in range(12)
    ]
    right = [float(labels[query] == labels[other]) for query, other in enumerate(others)]
    assert found[TEST]["mAP@1"] == pytest.approx(sum(right) / 12)


def test_a_run_makes_results_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path)
    monkeypatch.setattr(gallery, "CELLS", folder.cells)
    monkeypatch.setattr(gallery, "NETWORKS", {"mini/deterministic": ("lam_table_2_fashion_mnist", (0,))})
    out = tmp_path / "out"
    assert list(gallery.run(tmp_path, folder.work, out)) == ["mini_deterministic_seed0"]
    assert list(gallery.run(tmp_path, folder.work, out)) == []  # what is there is not made again
    written = gallery.table(out)
    rows = json.loads(written[0].read_text())["rows"]
    assert [row["searched"] for row in rows] == [TEST, AS_MANY, TRAINING, "published"]
