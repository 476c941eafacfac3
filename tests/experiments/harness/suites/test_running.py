"""A suite on its way: resumed after a kill, chosen without test images, other settings refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.harness.suites import Benchmark
from experiments.harness.suites import suite as files
from experiments.harness.suites.measuring import chosen_by
from experiments.harness.suites.running import choice_of
from experiments.harness.suites.sets import UNSEEN, VALIDATION, TrackSets
from experiments.harness.work import RunError
from laplacian_metric.core.splits import TestDataError
from tests.experiments.harness.suites.tiny import content

TIMES = ("seconds", "ms")


class Killed(BaseException):
    """Ends a run wherever it is."""


def suite() -> Any:
    return files.parse(content(), "tiny")


def numbers(results: dict[str, Any]) -> str:
    """Return everything but times as text."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(one) for key, one in value.items() if key not in TIMES}
        return [without(one) for one in value] if isinstance(value, list) else value

    return json.dumps(without(results), sort_keys=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    run = Benchmark(suite(), tmp_path_factory.mktemp("whole"))
    assert run.run().failed == {}
    return run


def test_a_run_that_was_killed_goes_on_with_the_same_numbers(whole: Benchmark, tmp_path: Path) -> None:
    said: list[str] = []

    def kill_at(count: int) -> Any:
        def say(line: str) -> None:
            said.append(line)
            if len(said) == count:
                raise Killed

        return say

    for count in (2, 4):
        with pytest.raises(Killed):
            Benchmark(suite(), tmp_path, say=kill_at(count)).run()
    run = Benchmark(suite(), tmp_path, say=said.append)
    before = run.plan()
    assert 0 < len(before) < len(Benchmark(suite(), tmp_path / "new").plan())
    assert run.run().ok
    assert len(said) == len(set(said))  # nothing is done twice
    assert run.plan() == []
    assert numbers(run.results()) == numbers(whole.results())


def test_seeds_may_be_run_one_after_the_other(whole: Benchmark, tmp_path: Path) -> None:
    later = Benchmark(suite(), tmp_path, seeds=[1])
    assert later.run().ok
    assert later.plan() == []
    run = Benchmark(suite(), tmp_path)
    assert run.run().ok
    assert numbers(run.results()) == numbers(whole.results())


def test_other_settings_are_refused(whole: Benchmark) -> None:
    changed = content()
    changed["entries"]["laplace"]["settings"][0]["method"]["temperature"] = 0.5
    with pytest.raises(RunError, match="temperature"):
        Benchmark(files.parse(changed, "tiny"), whole.out).run()


def test_settings_are_chosen_by_no_test_image(whole: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = whole.sets["sample"]
    names = sets.choosing()
    assert names == [VALIDATION, "choice/others"]
    monkeypatch.setattr(TrackSets, "choosing", lambda self: [*names, f"{UNSEEN}clothes"])
    entry = whole.suite.entry("laplace")
    with pytest.raises(TestDataError):
        chosen_by(
            whole._fit(next(part for part, _ in Benchmark(whole.suite, whole.out / "x").plan())), entry, sets
        )


def test_rules_take_validation_numbers_alone() -> None:
    def tried(recall: float, detection: float, other: float) -> dict[str, dict[str, float]]:
        return {
            VALIDATION: {"recall@1": recall, "r_auroc": detection},
            "choice/x": {"recall@1": 0.1, "r_auroc": other},
        }

    tries = [tried(0.5, 0.6, 0.9), tried(0.5, 0.7, 0.5), tried(0.1, 0.9, 0.9)]
    assert choice_of(tries, "V1", 0.45, True).setting == 1
    assert choice_of(tries, "V2", 0.45, True).setting == 0
    assert choice_of(tries, "V1", 0.0, True).setting == 2
    assert choice_of(tries, "V1", 0.0, False).setting == 0
