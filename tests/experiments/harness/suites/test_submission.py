"""Files of embeddings, labels and uncertainties: their numbers, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from experiments.harness.suites.submission import Submission, judge
from laplacian_metric import metrics

ROWS = 90


def arrays(prefix: str = "", seed: int = 0) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(6), 15)
    embeddings = np.eye(6)[labels] + 0.5 * generator.standard_normal((ROWS, 6))
    return {
        f"{prefix}embeddings": embeddings,
        f"{prefix}labels": labels,
        f"{prefix}uncertainty": generator.random(ROWS),
    }


def test_its_numbers_are_those_of_the_metrics(tmp_path: Path) -> None:
    content = arrays()
    np.savez(tmp_path / "mine.npz", **content)
    record, listed = judge(Submission.read(tmp_path / "mine.npz"), resamples=20)
    z = torch.nn.functional.normalize(torch.from_numpy(content["embeddings"]))
    labels, u = torch.from_numpy(content["labels"]), torch.from_numpy(content["uncertainty"])
    assert len(listed) == 1  # without validation images nothing of the gallery can be calibrated
    assert listed[0].recall["scores"] == pytest.approx(metrics.recall_at_k(z, labels))
    assert listed[0].r_auroc["scores"] == pytest.approx(metrics.r_auroc(z, labels, u))
    assert listed[0].low <= listed[0].r_auroc["scores"] <= listed[0].high
    assert len(record["labels"]) == 12


def test_validation_images_calibrate_scores_of_the_gallery(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **arrays(), **arrays("validation_", 1))
    _, listed = judge(Submission.read(tmp_path / "mine.npz"), resamples=0)
    by_score = {row.score: row for row in listed}
    assert {"own", "match risk", "Trust", "gallery distance"} <= set(by_score)
    assert by_score["own"].group == "image alone"
    assert by_score["match risk"].group == "image and gallery"
    assert by_score["Trust"].labels
    assert not by_score["match risk"].labels


def test_labels_may_be_text(tmp_path: Path) -> None:
    content = arrays()
    content["labels"] = np.array([f"class {label}" for label in content["labels"]])
    np.savez(tmp_path / "mine.npz", **content)
    assert Submission.read(tmp_path / "mine.npz").labels.max() == 5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"uncertainty": None}, "uncertainty"),
        ({"embeddings": np.zeros((ROWS, 2, 2))}, "embeddings"),
        ({"embeddings": np.zeros((ROWS, 2))}, "embeddings"),
        ({"uncertainty": np.zeros(3)}, "uncertainty"),
        ({"uncertainty": np.full(ROWS, np.nan)}, "uncertainty"),
        ({"labels": np.zeros(ROWS)}, "labels"),
        ({"labels": np.arange(ROWS)}, "labels"),
        ({"validation_labels": np.zeros(ROWS)}, "validation_embeddings"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    content = {name: value for name, value in {**arrays(), **change}.items() if value is not None}
    np.savez(tmp_path / "mine.npz", **content)
    with pytest.raises(ValueError, match=named):
        Submission.read(tmp_path / "mine.npz")


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    with pytest.raises(FileNotFoundError):
        Submission.read(path)
    path.write_text("nothing")
    with pytest.raises(ValueError, match="mine"):
        Submission.read(path)
    np.savez(path, embeddings=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="mine"):
        Submission.read(path)
