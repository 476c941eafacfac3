"""`lam evaluate`, `lam report` and `lam compare`: the numbers are the library's, and what goes wrong is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from laplacian_metric import metrics
from laplacian_metric.data.opening import Opening, open_source
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.report import comparing, model_evaluation
from tests.cli.conftest import Place
from tests.cli.running import clusters, lam, refused, worked

QUICK = ("--resamples", 20, "--samples", 5)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_numbers_are_those_of_the_metrics(tmp_path: Path, place: Place) -> None:
    done = worked(
        *("evaluate", place.flat_model, place.test_features, "--strangers", place.stranger_features, *QUICK),
        *("--out", tmp_path / "e.json", "--json"),
    )
    evaluation = done.json()
    written = json.loads((tmp_path / "e.json").read_text())
    assert len(written["queries"]["uncertainty"]) == 240
    assert evaluation == {**written, "queries": None}  # what was measured of each query is for the file
    lam_ = ModelFolder.load(place.flat_model).lam
    features, labels = (torch.from_numpy(one) for one in clusters(240, seed=1))
    e = lam_.embed_features(features)
    strangers = lam_.embed_features(torch.from_numpy(np.load(place.stranger_features)))
    expected = metrics.evaluate(
        e.point,
        labels,
        e.uncertainty,
        samples=lam_.sample_embeddings(features, 5, generator=torch.Generator().manual_seed(0)),
        ood_uncertainty={"strangers": strangers.uncertainty},
        resamples=20,
        generator=torch.Generator().manual_seed(0),
    )
    for name, value in evaluation["values"].items():
        assert value == pytest.approx(expected[name]), name
    interval = evaluation["intervals"]["recall@1"]
    assert interval["low"] == pytest.approx(expected.intervals["recall@1"].low)
    # Refusing nobody leaves the error of retrieval, and refusing some makes it smaller here.
    refusals = evaluation["refusals"]
    assert refusals[0]["share"] == 0
    assert refusals[0]["error"] == pytest.approx(1 - evaluation["values"]["recall@1"])
    assert refusals[-1]["share"] == pytest.approx(0.5)
    assert refusals[-1]["error"] < refusals[0]["error"]
    assert refusals[-1]["ood"]["strangers"] > 0.9
    # The file is the evaluation, and scores without a method stand beside the posterior.
    again = model_evaluation.ModelEvaluation.model_validate(evaluation)
    assert again.to_dict() == evaluation
    assert "feature norm, no method" in again.scores
    assert str(place.root) not in done.out


def test_a_gallery_is_searched_in_place_of_the_other_images(tmp_path: Path, place: Place) -> None:
    """Classes go by their names: the gallery has them in another order, and one that no query has."""
    worked(
        *("fit", "--features", place.features, "--dim", 4, "--steps", 100, "--calibrate"),
        *("--validation", place.test_features, "--out", tmp_path / "model"),
    )
    (queries, classes), (items, item_classes) = clusters(240, seed=4), clusters(400, classes=5, seed=3)
    names, item_names = np.array([*"abcd"]), np.array([*"dcbax"])[[3, 2, 1, 0, 4]]
    np.savez(tmp_path / "items.npz", features=items, labels=item_names[item_classes])
    np.savez(tmp_path / "queries.npz", features=queries, labels=names[classes])
    command = (
        "evaluate",
        tmp_path / "model",
        tmp_path / "queries.npz",
        "--ood",
        place.stranger_features,
        *QUICK,
    )
    done = worked(*command, "--gallery", tmp_path / "items.npz", "--out", tmp_path / "e.json", "--json")
    model = ModelFolder.load(tmp_path / "model")
    assert model.trust is not None
    trust = model.trust.with_gallery(items, item_names[item_classes])
    answer, outside = trust(queries), trust(np.load(place.stranger_features))
    e, others = (model.lam.embed_features(torch.from_numpy(h)) for h in (queries, items))
    both = torch.from_numpy(np.concatenate([queries, items]))
    draws = list(model.lam.sample_embeddings(both, 5, generator=torch.Generator().manual_seed(0)))
    expected = metrics.evaluate(
        e.point,
        torch.from_numpy(classes),
        probability=torch.from_numpy(answer.probability),
        database=others.point,
        database_labels=torch.tensor([[*"abcdx"].index(name) for name in item_names[item_classes]]),
        samples=torch.stack([z[:240] for z in draws]),
        database_samples=torch.stack([z[240:] for z in draws]),
        ood_uncertainty={"strangers": 1 - torch.from_numpy(outside.probability)},
        resamples=0,
    )
    result = done.json()
    for name, value in expected.values.items():
        assert result["values"][name] == pytest.approx(value), name
    assert result["values"]["retrieval_ece"] == pytest.approx(expected["retrieval_ece"])
    assert result["data"]["items"] == 400
    assert (
        "of their class among the 400 of items" in worked(*command, "--gallery", tmp_path / "items.npz").out
    )
    # Among each other the numbers are others, and query by query the two are not compared.
    alone = worked(*command, "--json").json()
    assert alone["values"]["brier"] != pytest.approx(result["values"]["brier"], abs=1e-6)
    written = json.loads((tmp_path / "e.json").read_text())
    record = model_evaluation.evaluate(
        model, open_source(str(tmp_path / "queries.npz"), Opening(None), "test")
    )
    assert record.queries is not None
    assert record.queries.images != written["queries"]["images"]


def test_a_gallery_without_classes_is_refused(place: Place) -> None:
    refused("evaluate", place.flat_model, place.test_features, "--gallery", place.stranger_features)


def test_a_table_for_people(place: Place) -> None:
    done = worked("evaluate", place.model, f"{place.photos}:test", "--strangers", place.digits, *QUICK)
    for said in (
        "recall@1",
        "R-AUROC".lower().replace("-", "_"),
        "AUROC digits",
        "wrong answers",
        "of digits refused",
    ):
        assert said in done.out
    assert done.err == ""


def test_images_that_were_seen_are_counted(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    evaluation = worked("evaluate", place.model, place.photos, *QUICK, "--json").json()
    assert evaluation["data"]["seen"] == {"train": 96, "validation": 12}
    assert "was fitted to 96 of the 120 images" in caplog.text
    evaluation = worked("evaluate", place.model, f"{place.photos}:test", *QUICK, "--json").json()
    assert evaluation["data"]["seen"] == {"train": 0, "validation": 0}


def test_wrong_evaluations(tmp_path: Path, place: Place) -> None:
    features, labels = clusters(20, seed=3)
    twice = 2 * ("--strangers", place.stranger_features)
    np.savez(tmp_path / "one.npz", features=features, labels=0 * labels)
    np.savez(tmp_path / "each.npz", features=features, labels=np.arange(20))
    begin: tuple[object, ...] = ("evaluate", place.flat_model)
    wrong: dict[str, tuple[object, ...]] = {
        "needs at least 2 classes": (tmp_path / "one.npz",),
        "has another of its class": (tmp_path / "each.npz",),
        "classes of strangers are not known": (place.stranger_features,),
        "is given twice": (place.test_features, *twice),
        "is no folder or file": (place.test_features, "--strangers", "nowhere"),
    }
    for said, more in wrong.items():
        assert said in refused(*begin, *more, *QUICK), said
    (tmp_path / "there.json").write_text("{}")
    said = refused(*begin, place.test_features, "--out", tmp_path / "there.json")
    assert "--force replaces it" in said
    assert "make it first" in refused(*begin, place.test_features, "--out", tmp_path / "a" / "b.json")
    assert names(tmp_path) == ["each.npz", "one.npz", "there.json"]


def test_images_that_match_by_distance_have_no_classes(place: Place) -> None:
    source = open_source(f"{place.photos}:test", Opening(ModelFolder.load(place.model).preparation))
    near = replace(source, positive_distance=25.0)
    with pytest.raises(ValueError, match="match by distance and not by class"):
        model_evaluation.evaluate(ModelFolder.load(place.model), near)


def test_a_report_is_one_page(tmp_path: Path, place: Place) -> None:
    worked(
        *("report", place.model, f"{place.photos}:test", "--strangers", place.digits, *QUICK),
        *("--title", "Clothes & digits", "--out", tmp_path / "r"),
    )
    assert names(tmp_path / "r") == ["report.html"]
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "Clothes &amp; digits" in page
    assert "data:image/png;base64" in page
    assert "class 1" in page
    assert str(place.root) not in page
    done = worked(
        *(
            "report",
            place.flat_model,
            place.test_features,
            *QUICK,
            "--no-images",
            "--out",
            tmp_path / "f",
            "--json",
        )
    )
    assert done.json()["images"] == 240
    assert "is not empty" in refused("report", place.flat_model, place.test_features, "--out", tmp_path / "r")
    said = refused("report", place.flat_model, place.stranger_features, "--out", tmp_path / "x")
    assert "not known" in said
    features, labels = clusters(20, seed=3)
    np.savez(tmp_path / "one.npz", features=features, labels=0 * labels)
    said = refused("report", place.flat_model, tmp_path / "one.npz", "--out", tmp_path / "x")
    assert "a report needs at least 2 classes" in said
    assert names(tmp_path) == ["f", "one.npz", "r"]


# --- compare ---


def result(path: Path, name: str, seed: int, **values: float | None) -> Path:
    path.write_text(
        json.dumps(
            {
                "format": model_evaluation.FORMAT,
                "name": name,
                "seed": seed,
                "values": values,
                "strangers": {"digits": {"values": {"ood_auroc": 0.9, "ood_average_precision": 0.8}}},
            }
        )
    )
    return path


def test_spreads_and_paired_differences(tmp_path: Path) -> None:
    scores = {"diag": [0.70, 0.72, 0.77], "full": [0.74, 0.75, 0.79]}
    paths = [
        result(tmp_path / f"{name}{seed}.json", name, seed, r_auroc=value, **{"recall@1": 0.5})
        for name, values in scores.items()
        for seed, value in enumerate(values)
    ]
    comparison = worked("compare", *paths, "--json").json()
    diag, full = comparison["results"]
    assert diag["seeds"] == [0, 1, 2]
    assert diag["values"]["r_auroc"]["mean"] == pytest.approx(np.mean(scores["diag"]))
    assert diag["values"]["r_auroc"]["deviation"] == pytest.approx(np.std(scores["diag"], ddof=1))
    assert full["values"]["auroc digits"] == {"mean": pytest.approx(0.9), "deviation": pytest.approx(0)}
    (gap,) = [one for one in comparison["differences"] if one["metric"] == "r_auroc"]
    expected = metrics.compare_paired(scores["full"], scores["diag"])
    assert gap["difference"] == pytest.approx(expected.difference)
    assert gap["paired"]["low"] == pytest.approx(expected.low)
    shown = worked("compare", *paths, "--metric", "r_auroc").out
    assert "0.7300 ± 0.0361" in shown
    assert "+0.0300" in shown
    # Only seeds that both have are compared.
    less = worked("compare", *paths[:3], *paths[4:], "--metric", "r_auroc", "--json").json()
    assert less["differences"][0]["seeds"] == [1, 2]


def test_results_of_runs_beside_those_of_models(tmp_path: Path, root: Path, place: Place) -> None:
    runs = [
        root / "figures" / "results" / "fashion_mnist" / name / f"seed{seed}.json"
        for name in ("laplace_diag", "pfe")
        for seed in (0, 1)
    ]
    worked(
        *(
            "evaluate",
            place.flat_model,
            place.test_features,
            *QUICK,
            "--out",
            tmp_path / "e.json",
            "--name",
            "mine",
        )
    )
    comparison = worked("compare", *runs, tmp_path / "e.json", "--json").json()
    assert [one["name"] for one in comparison["results"]] == [
        "fashion_mnist/laplace_diag",
        "fashion_mnist/pfe",
        "mine",
    ]
    content = [json.loads(path.read_text()) for path in runs[:2]]
    expected = np.mean([one["scores"]["own"]["r_auroc"] for one in content])
    assert comparison["results"][0]["values"]["r_auroc"]["mean"] == pytest.approx(expected)
    expected = np.mean([one["scores"]["own"]["out"]["mnist"]["auroc"] for one in content])
    assert comparison["results"][0]["values"]["auroc mnist"]["mean"] == pytest.approx(expected)


def test_wrong_results(tmp_path: Path) -> None:
    good = result(tmp_path / "a.json", "a", 0, r_auroc=0.7)
    (tmp_path / "cut.json").write_text(good.read_text()[:40])
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "half.json").write_text(json.dumps({"format": model_evaluation.FORMAT, "name": "x"}))
    (tmp_path / "none.json").write_text(
        json.dumps({"format": model_evaluation.FORMAT, "name": "x", "seed": 0, "strangers": {}})
    )
    failed: dict[str, Any] = {"cell": "a/b", "seed": 0, "status": "failed", "error": "it diverged"}
    (tmp_path / "failed.json").write_text(json.dumps(failed))
    (tmp_path / "elsewhere").mkdir()
    same = result(tmp_path / "elsewhere" / good.name, "a", 0, r_auroc=0.6)
    wrong: dict[str, tuple[object, ...]] = {
        "there is no file": (good, tmp_path / "nowhere.json"),
        "values are missing; evaluate again": (good, tmp_path / "none.json"),
        "no JSON": (good, tmp_path / "cut.json"),
        "is no result": (good, tmp_path / "other.json"),
        "evaluate again": (good, tmp_path / "half.json"),
        "it diverged": (good, tmp_path / "failed.json"),
        "is a folder": (good, tmp_path),
        "give each file a name": (good, same),
        "no result has 'recal'": (good, "--metric", "recal"),
        "names for 1 files": (good, "--name", "a", "--name", "b"),
    }
    for said, arguments in wrong.items():
        assert said in refused("compare", *arguments), said
    comparison = worked("compare", good, same, "--name", "one", "--name", "two", "--json").json()
    assert comparison["differences"][0]["paired"] is None
    assert lam("compare").code == 2


def test_numbers_that_are_not_defined_are_left_out(tmp_path: Path) -> None:
    one = result(tmp_path / "a.json", "a", 0, r_auroc=None)
    two = result(tmp_path / "b.json", "b", 0, r_auroc=0.5)
    groups = comparing.grouped([comparing.read_result(one), comparing.read_result(two)])
    assert groups[0].spread("r_auroc") is None
    assert comparing.differences(groups, ["r_auroc"]) == []
    assert "-" in worked("compare", one, two, "--metric", "r_auroc").out


def test_two_models_on_one_data_set_are_told_apart_by_their_files(tmp_path: Path) -> None:
    written = result(tmp_path / "written.json", "m", 0, r_auroc=0.5)
    for name in ("diag", "lowrank"):
        (tmp_path / f"{name}.json").write_bytes(written.read_bytes())
    done = worked("compare", tmp_path / "diag.json", tmp_path / "lowrank.json", "--json")
    assert [group["name"] for group in done.json()["results"]] == ["diag", "lowrank"]
    assert done.json()["differences"][0]["difference"] == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "diag.json").write_bytes(written.read_bytes())
    assert "with --name" in refused("compare", tmp_path / "diag.json", tmp_path / "other" / "diag.json")


def test_two_models_with_one_seed_are_compared_query_by_query(tmp_path: Path, place: Place) -> None:
    for number, temperature in enumerate((1, 100)):
        worked(
            *("fit", "--features", place.features, "--dim", 4, "--steps", 50, "--temperature", temperature),
            *("--out", tmp_path / f"m{number}"),
        )
        worked(
            *("evaluate", tmp_path / f"m{number}", place.test_features, *QUICK),
            *("--ood", place.stranger_features, "--out", tmp_path / f"e{number}.json"),
        )
    done = worked("compare", tmp_path / "e0.json", tmp_path / "e1.json", "--json").json()
    gaps = {gap["metric"]: gap for gap in done["differences"]}
    assert gaps["recall@1"]["interval"]["low"] == gaps["recall@1"]["interval"]["high"] == 0
    for metric in ("r_auroc", "auroc strangers"):
        interval = gaps[metric]["interval"]
        assert interval["low"] <= gaps[metric]["difference"] <= interval["high"]
        assert gaps[metric]["same_queries"]
    shown = worked("compare", tmp_path / "e0.json", tmp_path / "e1.json").out
    assert "e0" in shown
    assert "seed 0, the same queries" in shown


def test_other_images_are_compared_by_the_interval_of_each(tmp_path: Path, place: Place) -> None:
    halves = np.load(place.test_features)
    for name, rows in (("first", slice(0, 120)), ("second", slice(120, 240))):
        np.savez(tmp_path / f"{name}.npz", features=halves["features"][rows], labels=halves["labels"][rows])
        worked(
            *("evaluate", place.flat_model, tmp_path / f"{name}.npz", "--samples", 0, "--resamples", 200),
            *("--out", tmp_path / f"{name}.json"),
        )
    done = worked("compare", tmp_path / "first.json", tmp_path / "second.json", "--json").json()
    (gap,) = [gap for gap in done["differences"] if gap["metric"] == "ausc"]
    own = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("first", "second")]
    widths = [one["intervals"]["ausc"]["high"] - one["intervals"]["ausc"]["low"] for one in own]
    assert gap["interval"]["high"] - gap["interval"]["low"] == pytest.approx(float(np.hypot(*widths)))
    assert not gap["same_queries"]
