"""`lam evaluate`, `lam report` and `lam compare`: the numbers are the library's, and what goes wrong is said."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from laplacian_metric import metrics
from laplacian_metric.data.opening import Opening, open_source
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.report import comparing, model_evaluation
from laplacian_metric.report.model_evaluation import ModelEvaluation
from tests.cli.conftest import Place
from tests.cli.running import clusters, lam, refused, worked

QUICK = ("--resamples", 20, "--samples", 5)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def model(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of features whose uncertainty is 1/kappa."""
    out = tmp_path_factory.mktemp("plain") / "model"
    worked(
        *("fit", "--features", place.features, "--dim", 4, "--steps", 100, "--no-calibrate", "--out", out),
    )
    return out


def test_the_numbers_are_those_of_the_metrics(tmp_path: Path, place: Place, model: Path) -> None:
    done = worked(
        *("evaluate", model, place.test_features, "--ood", place.ood_features, *QUICK),
        *("--out", tmp_path / "e.json", "--json"),
    )
    evaluation = done.json()
    written = json.loads((tmp_path / "e.json").read_text())
    assert len(written["queries"]["uncertainty"]) == 240
    assert evaluation == {**written, "queries": None}  # what was measured of each query is for the file
    lam_ = ModelFolder.load(model).lam
    features, labels = (torch.from_numpy(one) for one in clusters(240, seed=1))
    e = lam_.embed_features(features)
    outside = lam_.embed_features(torch.from_numpy(np.load(place.ood_features)))
    expected = metrics.evaluate(
        e.point,
        labels,
        e.uncertainty,
        samples=lam_.sample_embeddings(features, 5, generator=torch.Generator().manual_seed(0)),
        ood_uncertainty={"ood": outside.uncertainty},
        resamples=20,
        generator=torch.Generator().manual_seed(0),
    )
    for name, value in evaluation["values"].items():
        assert value == pytest.approx(expected[name]), name
    interval = evaluation["intervals"]["recall@1"]
    assert interval["low"] == pytest.approx(expected.intervals["recall@1"].low)
    assert [row["answered"] for row in evaluation["refusals"]] == [
        expected.refusals[share].answered for share in (0, 10, 20, 30, 50)
    ]
    # The file is the evaluation, and scores without a method stand beside the posterior.
    again = ModelEvaluation.model_validate(evaluation)
    assert again.to_dict() == evaluation
    assert "feature norm" in again.scores
    assert str(place.root) not in done.out


def test_a_gallery_is_searched_in_place_of_the_other_images(tmp_path: Path, model: Path) -> None:
    """Classes go by their names: the gallery has them in another order, and one that no query has."""
    (queries, classes), (items, item_classes) = clusters(240, seed=4), clusters(400, classes=5, seed=3)
    item_names = np.array([*"abcdx"])
    np.savez(tmp_path / "items.npz", features=items[::-1], labels=item_names[item_classes][::-1])
    np.savez(tmp_path / "queries.npz", features=queries, labels=np.array([*"abcd"])[classes])
    command = ("evaluate", model, tmp_path / "queries.npz", *QUICK)
    done = worked(*command, "--gallery", tmp_path / "items.npz", "--out", tmp_path / "e.json", "--json")
    lam_ = ModelFolder.load(model).lam
    e, others = (lam_.embed_features(torch.from_numpy(h.copy())) for h in (queries, items[::-1]))
    both = torch.from_numpy(np.concatenate([queries, items[::-1]]))
    draws = list(lam_.sample_embeddings(both, 5, generator=torch.Generator().manual_seed(0)))
    expected = metrics.evaluate(
        e.point,
        torch.from_numpy(classes),
        e.uncertainty,
        database=others.point,
        database_labels=torch.from_numpy(item_classes[::-1].copy()),
        samples=torch.stack([z[:240] for z in draws]),
        database_samples=torch.stack([z[240:] for z in draws]),
        resamples=0,
    )
    result = done.json()
    for name, value in expected.values.items():
        assert result["values"][name] == pytest.approx(value), name
    assert result["data"]["items"] == 400
    # Among each other the numbers are others, and query by query the two are not compared.
    alone = worked(*command, "--out", tmp_path / "alone.json", "--json").json()
    assert alone["values"]["map@r"] != pytest.approx(result["values"]["map@r"], abs=1e-6)
    records = [json.loads((tmp_path / name).read_text())["queries"] for name in ("e.json", "alone.json")]
    assert records[0]["images"] != records[1]["images"]
    worked(
        *("report", model, tmp_path / "queries.npz", "--gallery", tmp_path / "items.npz", *QUICK),
        *("--out", tmp_path / "r"),
    )
    assert "among 400 items" in (tmp_path / "r" / "report.html").read_text(encoding="utf-8")


def test_a_table_for_people(place: Place) -> None:
    done = worked("evaluate", place.model, f"{place.photos}:test", "--ood", place.digits, *QUICK)
    for said in ("recall@1", "r_auroc", "AUROC digits", "wrong answers", "refused of digits"):
        assert said in done.out
    assert done.err == ""


def test_images_that_were_seen_are_counted(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    evaluation = worked("evaluate", place.model, place.photos, *QUICK, "--json").json()
    assert evaluation["data"]["seen"] == {"train": 96, "validation": 12}
    assert "was fitted to 96 of the 120 images" in caplog.text
    evaluation = worked("evaluate", place.model, f"{place.photos}:test", *QUICK, "--json").json()
    assert evaluation["data"]["seen"] == {"train": 0, "validation": 0}


def test_a_report_is_one_page(tmp_path: Path, place: Place) -> None:
    worked(
        *("report", place.model, f"{place.photos}:test", "--ood", place.digits, *QUICK),
        *("--title", "Clothes & digits", "--out", tmp_path / "r"),
    )
    assert names(tmp_path / "r") == ["report.html"]
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "Clothes &amp; digits" in page
    assert "class 1" in page
    assert str(place.root) not in page
    done = worked(
        *("report", place.model, f"{place.photos}:test", *QUICK, "--no-images", "--json"),
        *("--out", tmp_path / "f"),
    )
    assert done.json()["images"] == 12
    assert "Image labelled" not in (tmp_path / "f" / "report.html").read_text(encoding="utf-8")
    assert "--force" in refused("report", place.flat_model, place.test_features, "--out", tmp_path / "r")
    refused("report", place.flat_model, place.ood_features, "--out", tmp_path / "x")
    assert names(tmp_path) == ["f", "r"]


def test_wrong_evaluations(tmp_path: Path, place: Place) -> None:
    features = clusters(20, seed=3)[0]
    np.savez(tmp_path / "one.npz", features=features, labels=np.zeros(20, dtype=int))
    np.savez(tmp_path / "each.npz", features=features, labels=np.arange(20))
    (tmp_path / "there.json").write_text("{}")
    twice = 2 * ("--ood", place.ood_features)
    wrong: dict[str, tuple[object, ...]] = {
        "2 classes": (tmp_path / "one.npz",),
        "another of its class": (tmp_path / "each.npz",),
        "ood": (place.ood_features,),
        "twice": (place.test_features, *twice),
        "nowhere": (place.test_features, "--ood", "nowhere"),
        "classes": (place.test_features, "--gallery", place.ood_features),
        "--force": (place.test_features, "--out", tmp_path / "there.json"),
        "b.json": (place.test_features, "--out", tmp_path / "a" / "b.json"),
    }
    for said, arguments in wrong.items():
        assert said in refused("evaluate", place.flat_model, *arguments, *QUICK), said
    assert names(tmp_path) == ["each.npz", "one.npz", "there.json"]


def test_images_that_match_by_distance_have_no_classes(place: Place) -> None:
    source = open_source(f"{place.photos}:test", Opening(ModelFolder.load(place.model).preparation))
    near = replace(source, positive_distance=25.0)
    with pytest.raises(ValueError, match="class"):
        model_evaluation.evaluate(ModelFolder.load(place.model), near)


# --- compare ---


def result(path: Path, name: str, seed: int, **values: float) -> Path:
    score = {**values, "ood": {"digits": {"auroc": 0.9}}}
    evaluation = ModelEvaluation(name=name, seed=seed, scores={"own": score})  # type: ignore[dict-item]
    path.write_text(evaluation.model_dump_json(by_alias=True))
    return path


def test_spreads_and_paired_differences(tmp_path: Path) -> None:
    scores = {"diag": [0.70, 0.72, 0.77], "full": [0.74, 0.75, 0.79]}
    paths = [
        result(tmp_path / f"{name}{seed}.json", name, seed, r_auroc=value)
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


def test_wrong_results(tmp_path: Path) -> None:
    good = result(tmp_path / "a.json", "a", 0, r_auroc=0.7)
    (tmp_path / "elsewhere").mkdir()
    same = result(tmp_path / "elsewhere" / good.name, "a", 0, r_auroc=0.6)
    (tmp_path / "cut.json").write_text(good.read_text()[:40])
    (tmp_path / "other.json").write_text('{"a": 1}')
    wrong: dict[str, tuple[object, ...]] = {
        "nowhere.json": (good, tmp_path / "nowhere.json"),
        "cut.json": (good, tmp_path / "cut.json"),
        "other.json": (good, tmp_path / "other.json"),
        "folder": (good, tmp_path),
        "--name": (good, same),
        "'recal'": (good, "--metric", "recal"),
        "2 times": (good, "--name", "a", "--name", "b"),
    }
    for said, arguments in wrong.items():
        assert said in refused("compare", *arguments), said
    comparison = worked("compare", good, same, "--name", "one", "--name", "two", "--json").json()
    assert comparison["differences"][0]["paired"] is None
    assert lam("compare").code == 2


def test_numbers_that_are_not_defined_are_left_out(tmp_path: Path) -> None:
    paths = [result(tmp_path / f"{value}.json", str(value), 0, r_auroc=value) for value in (math.nan, 0.5)]
    groups = comparing.read_results(paths)
    assert groups[0].spread("r_auroc") is None
    assert comparing.differences(groups, ["r_auroc"]) == []
    assert "-" in worked("compare", *paths, "--metric", "r_auroc").out


def test_two_models_with_one_seed_are_told_apart_by_their_files_and_compared_query_by_query(
    tmp_path: Path, place: Place
) -> None:
    for number, temperature in enumerate((1, 100)):
        worked(
            *("fit", "--features", place.features, "--dim", 4, "--steps", 50, "--temperature", temperature),
            *("--out", tmp_path / f"m{number}"),
        )
        worked(
            *("evaluate", tmp_path / f"m{number}", place.test_features, *QUICK),
            *("--ood", place.ood_features, "--out", tmp_path / f"e{number}.json"),
        )
    done = worked("compare", tmp_path / "e0.json", tmp_path / "e1.json", "--json").json()
    assert [group["name"] for group in done["results"]] == ["e0", "e1"]
    gaps = {gap["metric"]: gap for gap in done["differences"]}
    assert gaps["recall@1"]["interval"]["low"] == gaps["recall@1"]["interval"]["high"] == 0
    for metric in ("r_auroc", "ood_auroc"):
        interval = gaps[metric]["interval"]
        assert interval["low"] <= gaps[metric]["difference"] <= interval["high"]
        assert gaps[metric]["same_queries"]
    assert "seed 0, the same queries" in worked("compare", tmp_path / "e0.json", tmp_path / "e1.json").out


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
