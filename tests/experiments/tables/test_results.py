"""Result files are read as they are, and what is wrong with one is said with its name and a remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from experiments.harness.results import Result, ResultFileError, read_result, read_results
from experiments.harness.tables.seeds import Cell, pick, spread
from experiments.harness.tables.table_columns import find, names
from tests.experiments.tables.synthetic import failure, result, write


def test_a_result_is_read_whole(tmp_path: Path) -> None:
    content = result("fashion_mnist/pfe", 1)
    record = read_result(write(tmp_path, content))
    assert (record.cell, record.seed, record.done, record.commit) == ("fashion_mnist/pfe", 1, True, "abc1234")
    assert record.retrieval["test"]["map@5"] == content["retrieval"]["test"]["map@5"]
    assert record.retrieval["own_similarity"] == {}
    own = content["scores"]["own"]
    assert record.scores["own"].values["ausc"] == own["ausc"]
    assert math.isnan(record.scores["own"].values["rank_correlation"])
    assert record.scores["own"].ood["svhn"]["auroc"] == own["out"]["svhn"]["auroc"]
    assert record.calibration is not None
    assert math.isnan(record.calibration.bins[0].accuracy)
    assert record.calibration.bins[3].confidence == content["calibration"]["table"][3]["confidence"]
    assert (
        record.curves.roc["mnist"].true_positive_rate.tolist()
        == content["curves"]["roc"]["mnist"]["true_positive_rate"]
    )
    assert record.curves.sparsification["own"].tolist() == content["curves"]["sparsification"]["own"]
    assert record.training is not None
    assert record.training.best_epoch == 7
    assert record.training.history[2].loss == content["training"]["history"][2]["loss"]
    assert set(record.training.history[2].validation) == {"map@1", "map@5"}


def test_what_a_method_does_not_have_may_be_null(tmp_path: Path) -> None:
    content = result("a", 0) | {"training": None, "calibration": None}
    record = read_result(write(tmp_path, content))
    assert (record.training, record.calibration) == (None, None)
    assert math.isnan(find("ECE").value(record))


def test_a_failed_result_needs_little_and_keeps_its_error(tmp_path: Path) -> None:
    record = read_result(write(tmp_path, failure("a/b", 2, "boom")))
    assert (record.done, record.error, record.seed) == (False, "boom", 2)


def change(*place: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def changed(content: dict[str, Any]) -> None:
        *way, last = place
        for key in way:
            content = content[key]
        if to is KeyError:
            del content[last]
        else:
            content[last] = to

    return changed


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change("schema", to=2), "schema is 2"),
        (change("status", to="running"), "status is 'running'"),
        (change("cell", to=KeyError), "cell is missing"),
        (change("seed", to="0"), "seed is '0'"),
        (change("scores", to=[1]), r"scores is \[1\]"),
        (change("scores", "own", "ausc", to="high"), "scores.own.ausc is 'high'"),
        (change("retrieval", "test", to=KeyError), "retrieval.test is missing"),
        (change("curves", "roc", "mnist", "true_positive_rate", to=[0.0, 1.0]), "51 false .* for 2 true"),
        (change("curves", "sparsification", "own", to=[[1.0], [1.0, 2.0]]), "rows differ in length"),
        (change("calibration", "table", to=[{"low": 0.0}]), r"calibration.table\[0\].high is missing"),
        (change("training", "history", 0, "epoch", to=1.5), "epoch is 1.5"),
    ],
)
def test_a_wrong_entry_is_named(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], None], message: str
) -> None:
    content = result("a", 0)
    path = write(tmp_path, content)
    spoil(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ResultFileError, match=message) as caught:
        read_result(path)
    assert str(path) in str(caught.value)
    assert "run" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null"])
def test_a_file_that_is_not_whole_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a" / "seed0.json"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ResultFileError, match="run its cell again") as caught:
        read_results(tmp_path)
    assert str(path) in str(caught.value)


def test_a_folder_without_results_says_what_to_do(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ResultFileError, match="run the experiments first"):
            read_results(folder)


def test_a_file_in_the_wrong_place_is_named(tmp_path: Path) -> None:
    write(tmp_path, result("a", 0)).rename(tmp_path / "a" / "seed1.json")
    with pytest.raises(ResultFileError, match=r"a, seed 0, which belongs into a/seed0.json: move it"):
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
    assert first.expected == 3
    assert pick(results, "b", (0,)).said() == ""
    assert Cell("c", (), missing=(0, 1)).said() == "no result yet"
    both = Cell("d", (), failed=tuple(Result(cell="d", seed=seed, error="x") for seed in (0, 1)))
    assert both.said() == "seeds 0, 1 failed: x"


@settings(max_examples=20)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6))
def test_spread_and_interval_against_numpy_and_scipy(values: list[float]) -> None:
    summary = spread([*values, math.nan, math.inf])
    assert summary.number == len(values)
    assert summary.mean == pytest.approx(np.mean(values), abs=1e-12)
    assert summary.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-12)
    interval = summary.interval(0.9)
    assert interval is not None
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
    assert math.isnan(find("AUROC", out="nothing").value(record))
    assert math.isnan(find("AUROC", out="mnist").value(record, "no such score"))
    assert math.isnan(find("ECE").value(record, "feature norm"))
    assert find("R-AUROC").value(record, "feature norm") == content["scores"]["feature norm"]["r_auroc"]
