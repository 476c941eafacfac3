"""The experiment on `Trust`: its short cuts give what the class gives, and its measures are those of loops."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from experiments import sentences
from experiments.trust.__main__ import cell
from experiments.trust.measure import LEARNED, NOVELTY, RIVAL, TRUST, inputs, measures, scored
from experiments.trust.settings import NAMES, Setting, halves, seeds_of
from experiments.trust.tables import write_tables
from laplacian_metric import Trust, metrics
from laplacian_metric.trust.head import Head

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def synthetic(zero_shot: bool) -> Setting:
    """Return a setting with four classes in the gallery and OOD queries near and far."""
    generator = np.random.default_rng(0)
    centers = generator.standard_normal((8, 10))
    parts: dict[str, np.ndarray] = {}

    def add(name: str, classes: range, num: int, spread: float = 1.1) -> None:
        labels = generator.choice(list(classes), num)
        parts[f"{name}:h"] = (centers[labels] + spread * generator.standard_normal((num, 10))).astype(
            np.float32
        )
        parts[f"{name}:labels"] = labels

    add("gallery", range(4), 200)
    add("test", range(4), 150)
    add("near/held-out classes", range(6, 8), 60)
    add("far/noise", range(4), 60, 6.0)
    if zero_shot:
        add("calibration", range(4, 6), 150)
        add("training", range(4, 8), 150)
    add("validation", range(4, 6) if zero_shot else range(4), 120)
    head = Head(generator.standard_normal((4, 10)), generator.standard_normal(4))
    return Setting("synthetic", 0, head, parts)


@pytest.mark.parametrize("zero_shot", [False, True])
def test_scores_of_arrays_are_those_of_the_class(zero_shot: bool) -> None:
    setting = synthetic(zero_shot)
    scores = scored(inputs(setting), slice(0, 100))
    name = "calibration" if zero_shot else "gallery"
    queries = (setting.h("validation")[:100], setting.labels("validation")[:100])
    trust = Trust.fit((setting.h(name), setting.labels(name)), queries, encoder=setting.head)
    if zero_shot:
        trust = trust.with_gallery(setting.h("gallery"), setting.labels("gallery"))
    answer = trust(setting.h("test"))
    np.testing.assert_allclose(scores.probability[TRUST], answer.probability, rtol=1e-6)
    np.testing.assert_allclose(scores.scores["test"][NOVELTY], answer.novelty, rtol=1e-6, atol=1e-9)
    free = metrics.trivial_scores(
        (setting.h("gallery"), setting.labels("gallery")), setting.h("far/noise"), encoder=setting.head
    )
    for score, values in free.items():
        np.testing.assert_allclose(scores.scores["far/noise"][score], values.numpy(), rtol=1e-6, atol=1e-9)


def test_measures_are_those_of_other_libraries() -> None:
    scores = scored(inputs(synthetic(False)), slice(0, 100))
    values = measures(scores, TRUST)
    test = scores.scores["test"][TRUST]
    assert values["R"] == pytest.approx(roc_auc_score(~scores.right, test))
    open_set = []
    for part in scores.ood():
        out = scores.scores[part][TRUST]
        outside = np.arange(len(test) + len(out)) >= len(test)
        assert values[part.split("/")[0]] == pytest.approx(roc_auc_score(outside, np.append(test, out)))
        weights = np.append(np.full(len(test), 1 / len(test)), np.full(len(out), 1 / len(out)))
        right = np.append(scores.right, np.zeros(len(out)))
        open_set.append(roc_auc_score(right, -np.append(test, out), sample_weight=weights))
    assert values["O"] == pytest.approx(np.mean(open_set))


def test_a_cell_its_tables_and_its_picture(tmp_path: Path) -> None:
    arrays = inputs(synthetic(False))
    result = cell(arrays, "synthetic", 0)
    assert set(result["differences"]["R"]) >= {RIVAL, "vote", *LEARNED.values()}
    assert len(result["by number of queries"]["60"]) == 10
    results = tmp_path / "results"
    results.mkdir()
    (results / "synthetic-0.json").write_text(json.dumps(result), encoding="utf-8")
    write_tables(results, tmp_path / "tables")
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "tables").glob("*.md")}
    assert set(pages) == {"trust", "trust_rivals", "trust_queries", "trust_promise"}


def test_settings_have_seeds_and_halves() -> None:
    assert all(seeds_of(name) for name in NAMES)
    labels = np.repeat(np.arange(3), 7)
    gallery, queries = halves(labels, 100)
    assert sorted([*gallery, *queries]) == list(range(21))
    assert np.bincount(labels[gallery]).tolist() == [3, 3, 3]


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
