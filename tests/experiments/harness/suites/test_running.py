"""A suite on its way: resumed after a kill, chosen without test images, other settings refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.harness.suites import Benchmark, rows
from experiments.harness.suites import suite as files
from experiments.harness.suites.fitting import Part
from experiments.harness.suites.leaderboard import frame
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
    assert {part.seed for part, choosing in later.plan() if not choosing} == {1}
    assert any(
        choosing for _, choosing in later.plan()
    )  # settings are tried with the suite's first seed all the same
    assert later.run().ok
    assert later.plan() == []
    assert set(later.results()["tracks"]["sample"]["entries"]["laplace"]["seeds"]["V1"]) == {"1"}
    run = Benchmark(suite(), tmp_path)
    assert run.run().ok
    assert numbers(run.results()) == numbers(whole.results())
    with pytest.raises(ValueError, match="no seed 7; it has 0, 1"):
        Benchmark(suite(), tmp_path, seeds=[0, 7])


def test_the_results_have_every_entry_seed_and_group(whole: Benchmark) -> None:
    results = whole.results()
    entry = results["tracks"]["sample"]["entries"]["laplace"]
    assert set(entry["seeds"]["V1"]) == {"0", "1"}
    assert {"V1", "V2"} == set(entry["chosen"])
    listed = rows(results)
    groups = {row.group for row in listed}
    assert groups == {"image alone", "beside the method", "image and gallery"}
    own = next(row for row in listed if row.entry == "laplace" and row.score == "own")
    assert own.seeds == 2
    assert own.low <= own.high
    assert set(own.r_auroc) == {"clothes", "digits"}
    assert 0 <= own.crop <= 1
    assert own.parameters > 1e4
    assert "unseen/clothes" in results["digests"]["sample"]
    assert len(frame(listed)) == len(listed)


def test_an_entry_that_was_not_run_says_so(tmp_path: Path) -> None:
    run = Benchmark(suite(), tmp_path, entries=["deterministic"])
    assert run.run().ok
    missing = [row for row in rows(run.results()) if row.entry == "laplace"]
    assert [row.note for row in missing] == ["not run"]
    assert missing[0].seeds == 0


def test_other_settings_are_refused(whole: Benchmark) -> None:
    changed = content()
    changed["entries"]["laplace"]["settings"][0]["method"]["temperature"] = 0.5
    with pytest.raises(RunError, match="temperature"):
        Benchmark(files.parse(changed, "tiny"), whole.out).run()


@pytest.mark.parametrize(("classes", "is_fitted"), [([4, 6, 7], False), ([2, 4, 6], True)])
def test_a_temperature_is_fitted_to_validation_images_of_training_classes_alone(
    tmp_path: Path, classes: list[int], is_fitted: bool
) -> None:
    plan = content()
    plan["tracks"]["sample"]["validation"]["classes"] = classes
    plan["entries"]["softmax"] = {"title": "Softmax", "tracks": ["sample"], "method": {"name": "softmax"}}
    run = Benchmark(files.parse(plan, "tiny"), tmp_path)
    fitted = run.fitting.fit(Part("sample", "softmax", 0, 0))
    # Training and validation images both count their classes from 0: their names say which are the same.
    assert (fitted.embedder.settings() != {"temperature": 1.0}) == is_fitted


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
    none = choice_of(tries, "V1", 0.9, True)
    assert none.setting == 0
    assert "no setting reaches" in none.note
