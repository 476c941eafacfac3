"""The experiment on `Trust`: its short cuts give what the class gives, and its measures are those of loops."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from experiments.trust.__main__ import cell
from experiments.trust.ablation import ablation, scored_with
from experiments.trust.compression import components, forms, quantised, table
from experiments.trust.measure import NOVELTY, TRUST, inputs, measures, mixture_error, scored
from experiments.trust.picture import draw
from experiments.trust.promise import promise
from experiments.trust.settings import NAMES, halves, seeds_of
from experiments.trust.tables import write_tables
from laplacian_metric import Trust, metrics
from tests.experiments.synthetic_settings import synthetic


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
    np.testing.assert_allclose(scores.probability, answer.probability, rtol=1e-6)
    np.testing.assert_allclose(scores.scores["test"][NOVELTY], answer.novelty, rtol=1e-6, atol=1e-9)
    assert scores.announced == trust.calibration_error
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
    detection, open_set = {}, []
    for part in scores.ood():
        out = scores.scores[part][TRUST]
        detection[part] = roc_auc_score(np.arange(len(test) + len(out)) >= len(test), np.append(test, out))
        weights = np.append(np.full(len(test), 1 / len(test)), np.full(len(out), 1 / len(out)))
        right = np.append(scores.right, np.zeros(len(out)))
        open_set.append(roc_auc_score(right, -np.append(test, out), sample_weight=weights))
    assert values["near"] == pytest.approx(detection["near/held-out classes"])
    assert values["far"] == pytest.approx(detection["far/noise"])
    assert values["O"] == pytest.approx(np.mean(open_set))
    assert values["error at 40 %"] == mixture_error(scores, TRUST)


def test_a_cell_and_its_tables(tmp_path: Path) -> None:
    setting = synthetic(False)
    arrays = inputs(setting)
    result = cell(arrays, "synthetic", 0)
    assert result["test"] == 150
    assert set(result["by number of queries"]) == {"100"}
    assert result["differences"]["R"]["vote"]["low"] <= result["differences"]["R"]["vote"]["value"]
    scores = scored(arrays, slice(0, 100))
    further = {"name": "synthetic", "wrong": 50, "promise": promise(scores, (TRUST, "vote"))}
    assert further["promise"][TRUST]["broken"] <= 0.2
    further["posterior"] = ablation(setting, arrays, slice(0, 100))
    (tmp_path / "results" / "further").mkdir(parents=True)
    (tmp_path / "results" / "synthetic-0.json").write_text(json.dumps(result))
    (tmp_path / "results" / "further" / "synthetic.json").write_text(json.dumps(further))
    write_tables(tmp_path / "results", tmp_path / "tables")
    for name in ("trust", "trust_rivals", "trust_queries", "trust_promise", "trust_posterior"):
        assert "|" in (tmp_path / "tables" / f"{name}.md").read_text()
    draw(scores, "Synthetic", tmp_path / "trust.png")
    assert (tmp_path / "trust.png").read_bytes().startswith(b"\x89PNG")


def test_without_further_inputs_the_ablation_is_the_measurement() -> None:
    arrays = inputs(synthetic(False))
    plain, ablated = scored(arrays, slice(0, 100)), scored_with(arrays, None, slice(0, 100))
    for part, scores in ablated.scores.items():
        for name in (TRUST, NOVELTY):
            np.testing.assert_allclose(scores[name], plain.scores[part][name], rtol=1e-9, atol=1e-12)


def test_halves_share_out_every_class() -> None:
    labels = np.repeat(["a", "b", "c"], [4, 6, 8])
    gallery, queries = halves(labels, 100)
    assert sorted([*gallery, *queries]) == list(range(18))
    for name in "abc":
        assert (labels[gallery] == name).sum() == (labels[queries] == name).sum()


def test_settings_with_trained_networks_have_three_seeds() -> None:
    assert len(NAMES) >= 10
    assert seeds_of("fashion-pooled") == (0, 1, 2)
    assert seeds_of("wordnet-minilm") == (0,)


def test_compressed_features_are_compared_as_they_are_stored() -> None:
    """All components are a rotation, and change nothing; codes replace the gallery's rows alone."""
    content = synthetic(False)
    plain = inputs(content)
    gallery = content.parts["gallery:h"]
    rotation, size = components(gallery, gallery.shape[1])
    assert size == 2 * gallery.shape[1]
    for name, values in inputs(content, rotation).items():
        if name.endswith((":M", ":N")):
            np.testing.assert_allclose(values, plain[name], atol=0.05)
    coded, _ = quantised(gallery)
    assert coded(gallery[:5]) is not None
    np.testing.assert_array_equal(coded(gallery[:5]), gallery[:5])
    assert not np.array_equal(coded(gallery), gallery)
    assert list(forms(gallery)) == ["float32", "float16", "product quantiser"]


def test_the_table_of_compression_has_the_worst_change() -> None:
    results = {
        name: {
            "float32": {"R": 0.9, "S": 0.8, "O": 0.9, "ECE": 0.03, "bytes": 40},
            "float16": {"R": 0.9 - loss, "S": 0.8, "O": 0.9, "ECE": 0.03 + loss, "bytes": 20},
        }
        for name, loss in {"a": 0.01, "b": 0.03}.items()
    }
    assert "| float16 | 50% | 2 | 0.880 (-0.020, worst -0.030) |" in table(results)
    assert "0.050 (+0.020, worst +0.030) |" in table(results)
