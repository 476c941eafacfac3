"""The runner: what it skips, shares, records, resumes and refuses."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from laplacian_metric import metrics
from laplacian_metric.core.artifact import read_manifest
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.laplace.features import FeaturesManifest
from laplacian_metric.metrics.evaluation import ood_name
from laplacian_metric.runs import ConfigError, RunError, cell_fitting, results, runner, work
from laplacian_metric.runs.image_sets import image_sets
from laplacian_metric.runs.work import Busy, Work
from tests.runs.miniature import BASE, LAPLACE, Folder, folder_with

RETRIEVAL = {"recall@1", "recall@5", "map@1", "map@5", "map@r", "r_precision"}
SCORE = {
    "r_auroc",
    "ausc",
    "ausc_oracle",
    "ausc_random",
    "ausc_gap",
    "nausc",
    "surest_error",
    "ece@1",
    "ece@5",
    "validation_r_auroc",
    "corrupted_auroc",
    "ood",
}
DIVERGES: dict[str, Any] = {"inherit": "mini/deterministic", "training": {"learning_rate": 1e30}}


def changed(folder: Folder, name: str, **sections: Any) -> None:
    """Write a cell again, with other settings."""
    import yaml

    path = folder.cells / f"{name}.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for key, value in sections.items():
        content[key] = {**content.get(key, {}), **value} if isinstance(value, dict) else value
    path.write_text(yaml.safe_dump(content), encoding="utf-8")


def comparable(record: dict[str, Any]) -> dict[str, Any]:
    """A result without what differs from session to session."""
    kept = {
        key: value
        for key, value in record.items()
        if key not in ("seconds", "commit", "command", "environment")
    }
    if kept["training"]:
        kept["training"] = {
            **kept["training"],
            "history": [
                {key: value for key, value in entry.items() if key != "seconds"}
                for entry in kept["training"]["history"]
            ],
        }
    return kept


# --- one after the other ---


def test_results_have_everything_that_reports_read(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE)
    summary = folder.run()
    assert summary.ok
    assert summary.done == ["mini/deterministic, seed 0", "mini/laplace, seed 0"]
    plain, laplace = folder.result("mini/deterministic"), folder.result("mini/laplace")
    for record in (plain, laplace):
        assert (record["seed"], record["status"], record["error"]) == (0, "done", None)
        assert set(record["retrieval"]["test"]) == set(record["retrieval"]["validation"]) == RETRIEVAL
        assert record["retrieval"]["own_similarity"] is None
        assert all(set(score) == SCORE for score in record["scores"].values())
        assert all(set(score["ood"]) == {"digits"} for score in record["scores"].values())
        assert set(record["seconds"]) == {"training", "fit", "evaluation"}
        assert record["counts"]["images"] == {"test": 60, "validation": 60, "corrupted": 48, "digits": 30}
        assert record["environment"]["torch"] == torch.__version__
        assert record["commit"]
        assert len(record["latent"]["points"]) == 60
        assert len(record["latent"]["ood"]["digits"]["kappa"]) == 30
    assert set(plain["scores"]) == {"feature norm", "embedding norm", "nearest distance"}
    assert plain["calibration"] is plain["curves"] is plain["extremes"] is None
    assert plain["latent"]["kappa"][0] is None  # infinite
    assert [entry["epoch"] for entry in plain["training"]["history"]] == [1, 2]
    assert {"loss", "map@1", "map@5", "map@10", "seconds"} <= set(plain["training"]["history"][0])
    assert set(laplace["scores"]) == {"own", "1/kappa", "variance"}
    assert laplace["training"] is None
    assert laplace["calibration"]["samples"] == 4
    assert len(laplace["calibration"]["table"]) == 10
    assert laplace["calibration"]["table"][3]["low"] == 0.3
    assert {key: len(curve) for key, curve in laplace["curves"]["sparsification"].items()} == {
        "own": 100,
        "oracle": 100,
        "random": 100,
    }
    assert len(laplace["latent"]["covariances"][0]) == 9
    assert len(laplace["extremes"]["digits"]["highest"]) == 16
    assert laplace["settings"]["prior_precision"] == 1.0
    assert laplace["config"]["base_config"]["training"]["epochs"] == 2
    assert str(tmp_path) not in json.dumps([plain, laplace])
    # The network is the same, and so is what it retrieves.
    assert laplace["retrieval"] == plain["retrieval"]


def test_what_has_a_result_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path)
    folder.run()
    monkeypatch.setattr(runner, "fit", None)  # nothing is computed
    summary = folder.run()
    assert (summary.done, summary.skipped) == ([], ["mini/deterministic, seed 0"])
    assert folder.states() == {("mini/deterministic", 0): "done"}


def test_a_base_is_trained_once_for_all_that_need_it(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path,
        laplace=LAPLACE,
        pfe={"base": "mini/deterministic", "method": "pfe"},
        ensemble={"base": "mini/deterministic", "method": "ensemble"},
    )
    trained = []
    original = cell_fitting.train

    def counted(learner: Any, *args: Any, **kwargs: Any) -> Any:
        trained.append((type(learner).__name__, kwargs["seed"]))
        return original(learner, *args, **kwargs)

    cell_fitting.train = counted
    try:
        # The base itself is not in the list.
        assert folder.run(["mini/laplace", "mini/pfe", "mini/ensemble"], seeds=[0]).ok
    finally:
        cell_fitting.train = original
    assert sorted(trained) == [("DeterministicLearner", 0), ("DeterministicLearner", 1), ("PFELearner", 0)]
    assert folder.states()[("mini/deterministic", 0)] == "to do"
    for seed in (0, 1):
        assert (folder.work / "mini/deterministic" / f"seed{seed}" / "best.safetensors").exists()
    # The weights that a post-hoc method starts from are not touched by it.
    assert folder.run(["mini/deterministic"]).ok
    assert folder.result("mini/deterministic")["retrieval"] == folder.result("mini/laplace")["retrieval"]


def test_an_ensemble_is_made_of_its_own_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path, ensemble={"base": "mini/deterministic", "method": "ensemble"})
    requested = []
    original = cell_fitting._base_encoder

    def noted(place: Any, base: Any, seed: int) -> Any:
        requested.append(seed)
        return original(place, base, seed)

    monkeypatch.setattr(cell_fitting, "_base_encoder", noted)
    assert folder.run(["mini/ensemble"], seeds=[1]).ok
    assert requested == [2, 3]


def test_features_give_what_images_give(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE)
    folder.run(["mini/laplace"], keep_features=True)
    place = cell_fitting.Place(
        folder.read(),
        Work(folder.work),
        None,
        lambda cell: image_sets(cell.data, None, cell.evaluation.batch_size),
        progress=False,
    )
    cells = folder.read()
    with place.work.locked("mini/laplace", 0):
        fitted = cell_fitting.fit(place, cells["mini/laplace"], 0)
    images = place.images(cells["mini/laplace"])
    encoder = cell_fitting._base_encoder(place, cells["mini/deterministic"], 0)
    for name in ("train", "test", "out/digits", "corrupted"):
        with torch.no_grad():
            expected = encoder.features(images[name].inputs)
        assert torch.allclose(fitted.sets[name].inputs, expected, atol=1e-6), name
        assert torch.equal(fitted.sets[name].labels, images[name].labels)
        assert fitted.sets[name].split is images[name].split
        embedded: StochasticEmbedding = fitted.embedder.embed(fitted.sets[name])
        with torch.no_grad():
            assert torch.allclose(embedded.point, encoder(images[name].inputs), atol=1e-5)
    # They were mapped, and not computed once more.
    before = (folder.work / "mini/deterministic/seed0/features/train/features.bin").stat().st_mtime_ns
    place_of_features = folder.work / "mini/deterministic/seed0/features"
    again = cell_fitting.feature_sets(images, cells["mini/laplace"].data, encoder, place_of_features)["train"]
    assert torch.equal(again.inputs, fitted.sets["train"].inputs)
    assert (folder.work / "mini/deterministic/seed0/features/train/features.bin").stat().st_mtime_ns == before


def test_features_go_when_nothing_needs_them_any_more(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE, pfe={"base": "mini/deterministic", "method": "pfe"})
    place = folder.work / "mini/deterministic/seed0/features"
    folder.run(["mini/laplace"], keep_features=True)
    assert place.is_dir()
    was_present: list[bool] = []
    folder.run(["mini/pfe", "mini/deterministic"], say=lambda line: was_present.append(place.is_dir()))
    assert was_present[0]
    assert not place.exists()
    assert any("GiB on disk at a time, and are kept" in line for line in folder.said)


def test_features_that_another_runner_needs_stay(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE)
    place = folder.work / "mini/deterministic/seed0/features"
    other = Work(folder.work)
    other.use("mini/deterministic", 0)
    folder.run(["mini/laplace"])
    assert place.is_dir()
    # This one is no longer among those who need them.
    assert len(list((folder.work / "mini/deterministic/seed0/users").iterdir())) == 1
    other.release("mini/deterministic", 0)
    # What a process that was killed has left says nothing.
    (folder.work / "mini/deterministic/seed0/users/killed").touch()
    assert not other.is_used("mini/deterministic", 0)
    changed(folder, "mini/laplace", evaluation={"samples": 5})
    folder.run(["mini/laplace"], fresh=True)
    assert not place.exists()


def test_the_network_is_evaluated_by_features_where_others_need_them(tmp_path: Path) -> None:
    alone, shared = folder_with(tmp_path / "a"), folder_with(tmp_path / "b", laplace=LAPLACE)
    alone.run()
    shared.run()
    one, other = (folder.result("mini/deterministic") for folder in (alone, shared))
    assert one["retrieval"] == other["retrieval"]
    for name, score in one["scores"].items():
        assert other["scores"][name]["ood"]["digits"]["auroc"] == pytest.approx(
            score["ood"]["digits"]["auroc"], abs=1e-3
        )


# --- failures ---


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
            "features": "/features/test/features.bin",
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


# --- changes ---


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


# --- several at once ---


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
    command = [sys.executable, "-m", "experiments.run", "--threads", "1", *options]
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


# --- what cells can ask for ---


def test_more_can_be_measured(tmp_path: Path) -> None:
    evaluation = {"crop_test": True, "trivial": True, "resamples": 20, "corrupted": False}
    data = {
        **BASE["data"],
        "out": [*BASE["data"]["out"], {"name": "sample-mnist", "label": "few", "limit": 9}],
    }
    folder = folder_with(tmp_path, laplace={**LAPLACE, "data": data, "evaluation": evaluation})
    folder.run(["mini/laplace"])
    result = folder.result("mini/laplace")
    assert set(result["scores"]) == {
        "own",
        "1/kappa",
        "variance",
        "feature norm",
        "embedding norm",
        "nearest distance",
    }
    assert 0 <= result["scores"]["own"]["crop_test"] <= 1
    assert result["scores"]["own"]["corrupted_auroc"] is None
    low, high = (result["intervals"]["recall@1"][key] for key in ("low", "high"))
    assert low <= result["retrieval"]["test"]["recall@1"] <= high
    assert {"r_auroc", "retrieval_ece"} <= set(result["intervals"])
    for label in ("digits", "few"):
        for name, value in result["scores"]["own"]["ood"][label].items():
            interval = result["intervals"][ood_name(name, label)]
            assert interval["low"] <= value <= interval["high"]


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path,
        ensemble={
            "base": "mini/deterministic",
            "method": "ensemble",
            "evaluation": {"trivial": True, "samples": 0},
        },
        human={**LAPLACE, "evaluation": {"label_entropy": True}},
    )
    summary = folder.run(["mini/ensemble", "mini/human"])
    assert "trivial scores are those of one network" in summary.failed["mini/ensemble, seed 0"]
    assert "what people said about the test images" in summary.failed["mini/human, seed 0"]


def test_a_methods_own_similarity_is_ranked_beside_the_points(tmp_path: Path) -> None:
    hib = {"inherit": "mini/deterministic", "method": {"name": "hib", "normalize": False}}
    folder = folder_with(tmp_path, hib=hib, vmf={"inherit": "mini/deterministic", "method": "vmf"})
    assert folder.run(["mini/hib", "mini/vmf"]).ok
    result = folder.result("mini/hib")["retrieval"]
    assert set(result["own_similarity"]) == RETRIEVAL | {"ece@1", "ece@5"}
    assert set(result) == {"test", "validation", "own_similarity"}


def test_both_distances_of_the_bayesian_triplet_loss_are_measured_and_the_covariance(tmp_path: Path) -> None:
    method = {"name": "btl", "mining": "batch", "hidden": 8}
    gaussian = {"inherit": "mini/deterministic", "method": method}
    sphere = {"inherit": "mini/deterministic", "method": {**method, "prior": "sphere"}}
    folder = folder_with(tmp_path, gaussian=gaussian, sphere=sphere)
    assert folder.run(["mini/gaussian", "mini/sphere"]).ok
    for name in ("gaussian", "sphere"):
        result = folder.result(f"mini/{name}")
        expected = result["retrieval"]["expected_similarity"]
        assert set(expected) == RETRIEVAL | {"ece@1", "ece@5"}
        assert all(0 <= value <= 1 for value in expected.values())
        # By the cosine, which the means on the sphere are retrieved by anyway.
        assert (result["retrieval"]["own_similarity"] is None) == (name == "sphere")
        assert 0 <= result["scores"]["difference covariance"]["ood"]["digits"]["auroc"] <= 1


def test_the_entropy_of_human_labels_goes_with_the_test_images() -> None:
    from laplacian_metric.runs.measurements import label_entropy

    counts = torch.tensor([[5.0, 5.0], [10.0, 0.0]])
    sets = {"test": Dataset(torch.zeros(2, 3), torch.tensor([0, 1]))}
    assert torch.equal(label_entropy(sets, counts), metrics.label_entropy(counts))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="for 1 of 2 test images"):
        label_entropy(sets, counts[:1])  # type: ignore[arg-type]


def test_result_files_are_readable_and_whole(tmp_path: Path) -> None:
    kept = results.Results(tmp_path)
    curves = {"sparsification": {"own": [1 / 3]}}
    written = kept.write("a/b", 3, {"status": "done", "error": None, "curves": curves, "config": {}})
    path = kept.path("a/b", 3)
    assert written.seed == 3
    with pytest.raises(ValueError, match="sparsification"):
        kept.write("a/b", 4, {"curves": {"sparsification": 1}})
    assert not kept.path("a/b", 4).exists()
    content = json.loads(path.read_text(encoding="utf-8"))
    assert list(content)[:4] == ["cell", "seed", "status", "error"]
    assert content["curves"]["sparsification"]["own"] == [0.33333]
    assert content["latent"] is None
    assert re.search(
        r'^  "sparsification": {"own": \[0.33333\]}$', path.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert kept.changes("a/c", 0, {}) == []
