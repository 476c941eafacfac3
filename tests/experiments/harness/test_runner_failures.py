"""The runner where something fails or has changed: what it records, refuses and leaves."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest

from experiments.harness import ConfigError, RunError
from tests.experiments.harness.miniature import BASE, DIVERGES, LAPLACE, changed, folder_with


def test_a_cell_that_diverges_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, bad=DIVERGES, laplace=LAPLACE, swag={"base": "mini/bad", "method": "pfe"})
    summary = folder.run(["mini/bad", "mini/swag", "mini/laplace"])
    assert not summary.ok
    assert summary.done == ["mini/laplace, seed 0"]
    result = folder.result("mini/bad")
    assert result["status"] == "failed"
    assert re.search(r"hessians/\w+\.py:\d+ in ", result["error"])
    assert str(tmp_path) not in json.dumps(result)
    assert result["config"]["training"]["learning_rate"] == 1e30
    assert "scores" not in result
    assert (
        "the network of mini/bad, seed 0, which this starts from, could not be trained"
        in (folder.result("mini/swag")["error"])
    )
    assert folder.states()[("mini/bad", 0)] == "failed"
    # Failures stay until they are tried again, and whoever repeats a command until it succeeds is not told that it did.
    again = folder.run(["mini/bad", "mini/laplace"])
    assert (again.skipped, again.failed_before) == (["mini/laplace, seed 0"], ["mini/bad, seed 0"])
    assert not again.ok
    assert (
        folder.said[-1]
        == "0 of 2 runs to do, 1 have a result, 1 failed before, which --retry-failed tries again"
    )
    assert list(folder.run(["mini/bad"], retry_failed=True).failed) == ["mini/bad, seed 0"]


def test_a_cell_whose_size_cannot_be_told_stops_no_other(tmp_path: Path) -> None:
    data = {**BASE["data"], "options": {"no_such": 1}}
    folder = folder_with(
        tmp_path,
        bad={**BASE, "name": "mini/bad", "data": data},
        heads={**LAPLACE, "name": "mini/heads", "base": "mini/bad"},
        laplace=LAPLACE,
    )
    summary = folder.run()
    assert sorted(summary.done) == ["mini/deterministic, seed 0", "mini/laplace, seed 0"]
    assert sorted(summary.failed) == ["mini/bad, seed 0", "mini/heads, seed 0"]
    assert "has no option 'no_such'" in summary.failed["mini/bad, seed 0"]


def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    folder.run()
    path = next(folder.results.rglob("seed0.json"))
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    with pytest.raises(RunError, match=re.escape(f"{path} is not whole") + ".*remove the file"):
        folder.run()


def test_missing_data_are_no_result(tmp_path: Path) -> None:
    data = {**BASE["data"], "train": "cub-200-2011", "out": []}
    folder = folder_with(tmp_path, birds={**BASE, "name": "mini/birds", "data": data})
    summary = folder.run(data_dir=tmp_path)
    assert list(summary.without_data) == ["mini/birds, seed 0"]
    assert summary.done == ["mini/deterministic, seed 0"]
    assert folder.states()[("mini/birds", 0)] == "to do"


@pytest.mark.parametrize("full", ["features", "result", "checkpoint"])
def test_without_space_it_stops_and_leaves_nothing_half_written(
    full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE)
    no_space = OSError(errno.ENOSPC, "No space left on device")
    original = os.fsync

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        wanted = {
            "features": "/features/test/",
            "result": "/results/mini/",
            "checkpoint": "last.",
        }
        if wanted[full] in path and not path.endswith("mini"):
            raise no_space
        original(descriptor)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("the paths of open files are not to be had here")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(RunError, match=r"no space is left on the device.*make room in .*repeat the command"):
        folder.run()
    monkeypatch.setattr(os, "fsync", original)
    assert list(folder.results.rglob("*.json")) == []
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert not [name for name in left if ".tmp" in name]
    assert "features.bin" not in left
    assert folder.run().ok


def test_a_changed_configuration_is_refused_by_its_keys(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE)
    folder.run()
    changed(folder, "mini/laplace", evaluation={"samples": 5}, title="said otherwise", notes="and noted")
    with pytest.raises(RunError) as caught:
        folder.run()
    assert "the result of mini/laplace, seed 0 has other settings: evaluation.samples was 4 and is now 5" in (
        str(caught.value)
    )
    assert "title" not in str(caught.value)
    assert "another name" in str(caught.value)
    assert "--fresh" in str(caught.value)
    assert folder.states()[("mini/laplace", 0)] == "changed"
    # Only what changed is done anew.
    assert folder.run(fresh=True).done == ["mini/laplace, seed 0"]
    assert folder.result("mini/laplace")["calibration"]["samples"] == 5


def test_a_base_that_changed_changes_what_builds_on_it(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, laplace={**LAPLACE, "training": {"learning_rate": 1e-3}})
    folder.run()
    changed(folder, "mini/deterministic", training={"learning_rate": 2e-3})
    with pytest.raises(RunError) as caught:
        folder.run(["mini/laplace"])
    said = str(caught.value)
    assert "base_config.training.learning_rate was 0.001 and is now 0.002" in said
    assert "the network of mini/deterministic, seed 0, has other settings: training.learning_rate" in said
    before = folder.result("mini/laplace")["retrieval"]
    assert folder.run(fresh=True).done == ["mini/deterministic, seed 0", "mini/laplace, seed 0"]
    assert folder.result("mini/laplace")["retrieval"] != before


def test_wrong_cells_are_refused_before_anything_is_run(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, wrong={**LAPLACE, "method": {"name": "laplace", "rnk": 3}})
    with pytest.raises(ConfigError, match="did you mean 'rank'"):
        folder.run()
    assert not folder.work.exists()
