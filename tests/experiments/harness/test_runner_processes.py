"""Several runners at once, and one that is killed or interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.harness import RunError, runner, work
from experiments.harness.work import Busy, Work
from laplacian_metric.core.artifact import read_manifest
from laplacian_metric.laplace.features import FeaturesManifest
from tests.experiments.harness.miniature import BASE, LAPLACE, Folder, comparable, folder_with


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


def test_what_was_put_off_comes_before_later_seeds(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, online={"inherit": "mini/deterministic", "method": "online-laplace"})
    other = Work(folder.work).locked("mini/deterministic", 0)
    other.__enter__()

    def say(line: str) -> None:
        if line.startswith("mini/online, seed 0"):
            other.__exit__(None, None, None)

    summary = folder.run(seeds=[0, 1], say=say)
    assert [name for name in summary.done if name.endswith("seed 0")] == summary.done[:2]


def test_a_lock_lets_its_own_process_in_again(tmp_path: Path) -> None:
    mine, theirs = Work(tmp_path), Work(tmp_path)
    with mine.locked("a/b", 0), mine.locked("a/b", 0) as place:
        assert place == tmp_path / "a" / "b" / "seed0"
        with pytest.raises(Busy), theirs.locked("a/b", 0):
            pass
    with theirs.locked("a/b", 0):
        assert mine.is_locked("a/b", 0)
    assert not mine.is_locked("a/b", 0)
    assert not mine.is_locked("a/c", 0)
    (tmp_path / "a" / "b" / "seed0" / work.CONFIG).write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match=r"config.json is not whole"):
        mine.config("a/b", 0)


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
