"""The runner where something fails, has changed, is locked by another process, or is killed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.harness import RunError, runner
from experiments.harness.work import Work
from laplacian_metric.core.artifact import read_manifest
from laplacian_metric.laplace.features import FeaturesManifest
from tests.experiments.harness.miniature import (
    BASE,
    DIVERGES,
    LAPLACE,
    Folder,
    changed,
    comparable,
    folder_with,
)


def test_a_cell_that_diverges_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, bad=DIVERGES, laplace=LAPLACE, swag={"base": "mini/bad", "method": "pfe"})
    summary = folder.run(["mini/bad", "mini/swag", "mini/laplace"])
    assert not summary.ok
    assert summary.done == ["mini/laplace, seed 0"]
    result = folder.result("mini/bad")
    assert result["status"] == "failed"
    assert str(tmp_path) not in json.dumps(result)
    assert "scores" not in result
    assert folder.states()[("mini/bad", 0)] == "failed"
    # Failures stay until they are tried again, and whoever repeats a command until it succeeds is not told that it did.
    again = folder.run(["mini/bad", "mini/laplace"])
    assert (again.skipped, again.failed_before) == (["mini/laplace, seed 0"], ["mini/bad, seed 0"])
    assert not again.ok
    assert list(folder.run(["mini/bad"], retry_failed=True).failed) == ["mini/bad, seed 0"]


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
    assert folder.states()[("mini/laplace", 0)] == "changed"
    # Only what changed is done anew.
    assert folder.run(fresh=True).done == ["mini/laplace, seed 0"]
    assert folder.result("mini/laplace")["calibration"]["samples"] == 5


def test_a_base_that_changed_changes_what_builds_on_it(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, laplace={**LAPLACE, "training": {"learning_rate": 1e-3}})
    folder.run()
    changed(folder, "mini/deterministic", training={"learning_rate": 2e-3})
    with pytest.raises(RunError, match="learning_rate"):
        folder.run(["mini/laplace"])
    before = folder.result("mini/laplace")["retrieval"]
    assert folder.run(fresh=True).done == ["mini/deterministic, seed 0", "mini/laplace, seed 0"]
    assert folder.result("mini/laplace")["retrieval"] != before


def test_what_is_locked_is_put_off_and_waited_for_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE, online={"inherit": "mini/deterministic", "method": "hib"})
    other = Work(folder.work).locked("mini/deterministic", 0)
    other.__enter__()
    assert folder.states()[("mini/deterministic", 0)] == "running"
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        assert "waiting for another process, which is at mini/deterministic, seed 0" in folder.said
        other.__exit__(None, None, None)

    monkeypatch.setattr(runner.time, "sleep", sleep)
    summary = folder.run()
    assert waits == [runner.WAIT]
    assert summary.done == ["mini/online, seed 0", "mini/deterministic, seed 0", "mini/laplace, seed 0"]


def started(folder: Folder, *options: str) -> subprocess.Popen[str]:
    places = {"--cells-dir": folder.cells, "--work": folder.work, "--results": folder.results}
    command = [sys.executable, "-m", "experiments.harness", "run", "--threads", "1", *options]
    command += [str(part) for pair in places.items() for part in pair]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_two_runners_do_nothing_twice(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path, laplace=LAPLACE, ensemble={"base": "mini/deterministic", "method": "ensemble"}
    )
    processes = [started(folder, "--seeds", "0", "1") for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    done = [line for text in said for line in text.splitlines() if "recall@1" in line]
    assert len(done) == 6, said
    assert len({line.partition(":")[0] for line in done}) == 6


def test_a_killed_run_goes_on_to_the_same_result(tmp_path: Path) -> None:
    longer = {**BASE, "training": {**BASE["training"], "epochs": 8, "batch_size": 10}}
    whole, parts = Folder(tmp_path / "whole"), Folder(tmp_path / "parts")
    for folder in (whole, parts):
        folder.write("mini/deterministic", longer)
        folder.write("mini/laplace", LAPLACE)
    process = started(parts)
    log = parts.work / "mini/deterministic/seed0/log.json"
    end = time.monotonic() + 60
    while not log.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    history = json.loads(log.read_text(encoding="utf-8"))["epochs"]
    assert 1 <= len(history) < 8
    assert list(parts.results.rglob("*.json")) == []
    assert parts.run().ok
    assert whole.run().ok
    for name in ("mini/deterministic", "mini/laplace"):
        assert comparable(parts.result(name)) == comparable(whole.result(name))


def test_an_interruption_leaves_features_but_no_result_and_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE)

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folder.run(["mini/laplace"])
    assert set(folder.states().values()) == {"to do"}
    features = read_manifest(folder.work / "mini/deterministic/seed0/features/train", FeaturesManifest)
    assert features.of["data"]["train"] == "sample-fashion-mnist"
