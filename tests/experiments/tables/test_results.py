"""Result files are read whole, a wrong entry is named, and columns find their numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from experiments.harness.results import Result, ResultFileError, read_result, read_results
from experiments.harness.tables.seeds import pick, spread
from experiments.harness.tables.table_columns import find, names
from experiments.n_digit import plane_maps
from tests.experiments.tables.synthetic import failure, result, write


def test_a_result_is_read_whole(tmp_path: Path) -> None:
    content = result("fashion_mnist/pfe", 1)
    record = read_result(write(tmp_path, content))
    assert (record.cell, record.seed, record.done, record.commit) == ("fashion_mnist/pfe", 1, True, "abc1234")
    assert record.retrieval["test"]["map@5"] == content["retrieval"]["test"]["map@5"]
    own = content["scores"]["own"]
    assert record.scores["own"].values["ausc"] == own["ausc"]
    assert record.scores["own"].ood["svhn"]["auroc"] == own["out"]["svhn"]["auroc"]
    assert math.isnan(record.calibration.bins[0].accuracy)
    assert (
        record.curves.roc["mnist"].true_positive_rate.tolist()
        == content["curves"]["roc"]["mnist"]["true_positive_rate"]
    )
    assert record.curves.sparsification["own"].tolist() == content["curves"]["sparsification"]["own"]
    assert record.training.history[2].loss == content["training"]["history"][2]["loss"]


WRONG: list[tuple[tuple[Any, ...], Any, str]] = [
    (("schema",), 2, "schema"),
    (("status",), "running", "status"),
    (("cell",), None, "cell"),
    (("seed",), "0", "seed"),
    (("scores",), [1], "scores"),
    (("scores", "own", "ausc"), "high", "scores.own.ausc"),
    (("retrieval",), {"own_similarity": None}, "retrieval.test"),
    (("curves", "roc", "mnist", "true_positive_rate"), [0.0, 1.0], "51 false .* for 2 true"),
    (("curves", "sparsification", "own"), [[1.0], [1.0, 2.0]], "sparsification"),
    (("calibration", "table"), [{"low": 0.0}], r"calibration.table\[0\].high"),
    (("training", "history", 0, "epoch"), 1.5, "epoch"),
    (("verification", "test", "knn"), "high", "verification.test.knn"),
    (("verification", "test", "bins"), {"own": {"knn": [[1.0]]}}, "verification.test.bins.own.knn"),
    (("verification", "test", "space"), {"means": [[[0.0, 0.0]]]}, "verification.test.space.variances"),
]


@pytest.mark.parametrize(("place", "value", "named"), WRONG)
def test_a_wrong_entry_is_named_with_its_file(
    tmp_path: Path, place: tuple[Any, ...], value: Any, named: str
) -> None:
    content = result("a", 0)
    *way, last = place
    part: Any = content
    for key in way:
        part = part[key]
    part[last] = value
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ResultFileError, match=named) as caught:
        read_result(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", json.dumps(result("a", 1)), None])
def test_a_file_that_is_not_whole_misplaced_or_missing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        path = tmp_path / "a" / "seed0.json"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ResultFileError):
        read_results(tmp_path)


def test_cells_keep_what_failed_and_what_is_missing(tmp_path: Path) -> None:
    for content in (
        result("b", 0),
        result("b", 2),
        failure("a", 0),
        failure("a", 1, "no /some/where/file.npz"),
    ):
        write(tmp_path, content)
    results = read_results(tmp_path)
    first, second = (pick(results, name, (0, 1, 2)) for name in ("a", "b"))
    assert [one.seed for one in second.done] == [0, 2]
    assert second.said() == "seed 1 is missing"
    assert first.said() == (
        "seed 0 failed: the loss is not finite; seed 1 failed: no file.npz; seed 2 is missing"
    )


@settings(max_examples=20)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6))
def test_spread_and_interval_against_numpy_and_scipy(values: list[float]) -> None:
    summary = spread([*values, math.nan, math.inf])
    assert summary.number == len(values)
    assert summary.mean == pytest.approx(np.mean(values), abs=1e-12)
    assert summary.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-12)
    interval = summary.interval(0.9)
    if summary.deviation > 1e-6:
        error = summary.deviation / math.sqrt(len(values))
        assert interval == pytest.approx(
            stats.t.interval(0.9, len(values) - 1, summary.mean, error), abs=1e-9
        )


def test_every_metric_is_found_in_a_whole_result(tmp_path: Path) -> None:
    content = result("a", 0)
    errors = {f"ece@{k}": 0.1 for k in (1, 5, 10)}
    for part in ("own_similarity", "expected_similarity"):
        content["retrieval"][part] = {**content["retrieval"]["test"], **errors}
    content["scores"]["own"]["rank_correlation"] = 0.3
    record = read_result(write(tmp_path, content))
    for name in names():
        assert math.isfinite(find(name, out="mnist").value(record)), name
    content["scores"]["own"]["ece_at_5"], content["retrieval"]["test"]["map@5"] = 0.45, 0.9
    excess = find("ECE@5, excess").value(read_result(write(tmp_path, content)))
    assert excess == pytest.approx(0.05)
    assert find("R-AUROC").value(record, "feature norm") == content["scores"]["feature norm"]["r_auroc"]


def a_result(folder: Path, **change: Any) -> Result:
    content = result("n_digit/x", 0)
    content["verification"]["test"].update(change)
    return read_result(write(folder, content))


def test_columns_find_what_was_measured(tmp_path: Path) -> None:
    content = result("n_digit/x", 0)
    record = read_result(write(tmp_path, content))
    test = content["verification"]["test"]
    corrupt = content["verification"]["unseen corrupt"]
    assert find("AP of pairs, clean").value(record) == test["average_precision"]
    assert find("5-NN in the clean, unseen corrupt").value(record) == corrupt["knn_in_gallery"]
    own = find("tau of 5-NN, unseen corrupt")
    assert own.value(record) == corrupt["correlations"]["own"]["knn"]
    assert own.value(record, "nearest distance") == corrupt["correlations"]["nearest distance"]["knn"]


def test_results_without_it_have_no_number(tmp_path: Path) -> None:
    content = result("n_digit/x", 0)
    del content["verification"]
    record = read_result(write(tmp_path, content))
    assert math.isnan(find("AP of pairs, clean").value(record))


def test_planes_are_drawn(tmp_path: Path) -> None:
    verification = a_result(tmp_path).verification
    sets = {name: verification[name].space for name in ("test", "corrupt")}
    assert plane_maps({"A": sets, "B": {"test": sets["test"]}}, 2, "T").startswith(b"\x89PNG")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="plane"):
        plane_maps({})
