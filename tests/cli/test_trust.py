"""Trust on the command line: fit --calibrate, evaluate, report, embed, index and query say what the library does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from laplacian_metric import metrics
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.retrieval import Items, load
from laplacian_metric.retrieval.embedding_files import Embedded
from tests.cli.running import clusters, refused, worked

QUICK = ("--resamples", 20, "--samples", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of four classes in three parts, of something else, and a model with Trust."""
    folder = tmp_path_factory.mktemp("trust")
    for seed, name in enumerate(("train", "validation", "test", "calibration")):
        features, labels = clusters(500, spread=0.45, seed=seed)
        np.savez(
            folder / f"{name}.npz",
            features=features,
            labels=labels,
            ids=[f"{name}{row}" for row in range(500)],
        )
    np.save(folder / "ood.npy", -3 * np.ones((60, 6), dtype=np.float32) + clusters(60, seed=9)[0])
    worked(
        *(
            "fit",
            "--features",
            folder / "train.npz",
            "--validation",
            folder / "validation.npz",
            "--calibrate",
        ),
        *("--head", "identity", "--out", folder / "model"),
    )
    return folder


def test_the_model_keeps_trust(folder: Path) -> None:
    model = ModelFolder.load(folder / "model")
    assert model.trust is not None
    assert len(model.trust.gallery) == 500
    assert model.about["calibration_error"]["queries"] == 500
    answer = model.trust(clusters(500, spread=0.45, seed=2)[0])
    assert set(answer.labels or []) == {"0", "1", "2", "3"}
    right = np.array(answer.labels, dtype=int) == clusters(500, seed=2)[1]
    assert answer.probability[right].mean() > answer.probability[~right].mean() + 0.1


def test_too_few_validation_images_are_refused(tmp_path: Path) -> None:
    features, labels = clusters(200)
    np.savez(tmp_path / "few.npz", features=features, labels=labels)
    said = refused("fit", "--features", tmp_path / "few.npz", "--calibrate", "--out", tmp_path / "m")
    assert "50" in said
    assert not (tmp_path / "m").exists()


def test_evaluate_says_the_numbers_of_trust(folder: Path) -> None:
    arguments = ("evaluate", folder / "model", folder / "test.npz", "--ood", folder / "ood.npy", *QUICK)
    reply = worked(*arguments, "--json").json()
    model = ModelFolder.load(folder / "model")
    features, labels = (torch.from_numpy(one) for one in clusters(500, spread=0.45, seed=2))
    assert model.trust is not None
    trust = model.trust.with_gallery(features, [str(label) for label in labels.tolist()])
    probability = torch.from_numpy(trust.items().probability)
    outside = torch.from_numpy(trust(np.load(folder / "ood.npy")).probability)
    point = model.lam.embed_features(features).point
    expected = metrics.evaluate(
        point, labels, probability=probability, ood_uncertainty={"ood": 1 - outside}, resamples=0
    )
    for name in ("recall@1", "r_auroc", "probability_ece", "brier"):
        assert reply["values"][name] == pytest.approx(expected[name]), name
    assert reply["scores"]["own"]["ood"]["ood"] == pytest.approx(expected.scores["own"].ood["ood"])
    assert reply["scores"]["novelty"]["ood"]["ood"]["auroc"] > 0.9
    assert "vote, no method" in reply["scores"]
    shown = worked(*arguments).out
    for said in ("probability_ece", "open-set AUROC ood", "gallery distance, no method"):
        assert said in shown


def test_a_report_shows_whether_the_probability_is_right(folder: Path, tmp_path: Path) -> None:
    worked("report", folder / "model", folder / "test.npz", *QUICK, "--out", tmp_path / "r")
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "Is the probability right?" in page
    assert "1 - probability of Trust" in page
    assert "kernel vote, no method" in page


@pytest.fixture(scope="module")
def index(folder: Path) -> Path:
    """An index of the training features, calibrated, with files of queries."""
    worked(
        *("index", folder / "model", folder / "train.npz", "--calibrate", folder / "calibration.npz"),
        *("--alpha", 0.2, "--out", folder / "index"),
    )
    worked("embed", folder / "model", folder / "test.npz", "--out", folder / "queries.npz")
    worked("embed", folder / "model", folder / "ood.npy", "--out", folder / "ood.parquet")
    return folder / "index"


def test_an_index_promises_by_the_probability(folder: Path, index: Path) -> None:
    loaded, model = load(index), ModelFolder.load(folder / "model")
    assert loaded.trust is not None
    assert model.trust is not None
    assert loaded.threshold is not None
    features, labels = clusters(500, spread=0.45, seed=2)
    answer = model.trust(features)  # over the images that it was calibrated over
    replies = worked("query", index, "--array", folder / "queries.npz", "-k", 1, "--json").json()["replies"]
    np.testing.assert_allclose([reply["probability"] for reply in replies], answer.probability, rtol=1e-5)
    accepted = 1 - answer.probability <= loaded.threshold.value
    assert [reply["answered"] for reply in replies] == accepted.tolist()
    right = np.array(answer.labels, dtype=int) == labels
    assert 0 < accepted.mean() < 1
    assert (~right[accepted]).mean() < (~right).mean()
    for row, reply in enumerate(replies):
        if accepted[row]:
            assert reply["matches"][0]["item"] == f"train{answer.nearest[row]}"
            assert reply["trust"].startswith(str(answer.reason[row]))
        else:
            assert reply["matches"] == []
            assert "is below the threshold" in reply["reason"]
    ood = worked("query", index, "--array", folder / "ood.parquet", "--json").json()["replies"]
    assert sum(reply["answered"] for reply in ood) < 0.2 * len(ood)
    shown = worked("query", index, "--array", folder / "queries.npz", "-k", 1).out
    assert "nearest is right" in shown


def test_without_a_threshold_what_is_not_trusted_is_refused(
    folder: Path, index: Path, tmp_path: Path
) -> None:
    done = worked("index", folder / "model", folder / "test.npz", "--out", tmp_path / "i")
    assert "refuses doubtful queries" in done.out
    replies = worked("query", tmp_path / "i", "--array", folder / "ood.parquet", "--json").json()["replies"]
    refused_queries = [reply for reply in replies if reply["answered"] is False]
    assert len(refused_queries) > 0.8 * len(replies)
    assert all(
        "unlike anything seen" in reply["reason"] or "no reliable" in reply["reason"]
        for reply in refused_queries
    )
    everything = worked("query", tmp_path / "i", "--array", folder / "ood.parquet", "--all", "--json").json()
    assert all(reply["matches"] for reply in everything["replies"])
    own = worked("query", tmp_path / "i", "--id", "test3", "--id", "test5", "-k", 2, "--json").json()[
        "replies"
    ]
    model = ModelFolder.load(folder / "model")
    assert model.trust is not None
    features, labels = clusters(500, spread=0.45, seed=2)
    expected = model.trust.with_gallery(features, [str(label) for label in labels]).items(np.array([3, 5]))
    np.testing.assert_allclose([reply["probability"] for reply in own], expected.probability, rtol=1e-5)


def test_queries_without_features_are_refused(folder: Path, index: Path, tmp_path: Path) -> None:
    embedded = Embedded.read(folder / "queries.npz")
    assert embedded.features is not None
    Embedded(embedded.items, embedded.point, embedded.ids).write(tmp_path / "old.npz")
    assert "have no features" in refused("query", index, "--array", tmp_path / "old.npz")
    with pytest.raises(ValueError, match="features are missing"):
        load(index).query(embedded.by_point(), 1)


def test_trust_follows_the_items(folder: Path, index: Path) -> None:
    loaded = load(index)
    embedded = Embedded.read(folder / "queries.npz")
    some = loaded.without(rows=slice(0, 100))
    assert some.trust is not None
    assert len(some.trust.gallery) == len(some) == 400
    assert loaded.trust is not None
    assert len(loaded.trust.gallery) == 500
    answers = some.query(embedded.by_point(), 1, features=embedded.features)
    assert answers.trust is not None
    assert (answers.trust.nearest == answers.rows[:, 0]).mean() > 0.99
    more = Items(
        embedded.point[:5], embedded.items.kappa[:5], embedded.items.uncertainty[:5], None, loaded.source
    )
    assert embedded.features is not None
    some.add(more, list(embedded.ids[:5]), features=embedded.features[:5], labels=list("01230"))
    assert some.trust is not None
    assert len(some.trust.gallery) == 405
    some.add(more, [f"new{row}" for row in range(5)])
    assert some.trust is None
    with pytest.raises(ValueError, match="500 items and the index 410"):
        some.with_trust(loaded.trust)


def test_the_formats_hold_the_features(folder: Path, index: Path, tmp_path: Path) -> None:
    expected = clusters(500, spread=0.45, seed=2)[0]
    for suffix in ("npz", "safetensors", "parquet"):
        worked("embed", folder / "model", folder / "test.npz", "--out", tmp_path / f"e.{suffix}")
        features = Embedded.read(tmp_path / f"e.{suffix}").features
        assert features is not None
        np.testing.assert_allclose(features, expected, rtol=1e-6)


def test_asking_for_trust_does_not_import_torch(folder: Path, index: Path, root: Path) -> None:
    code = (
        "import sys\nfrom laplacian_metric.cli import app\n"
        f"try:\n    app(['query', {str(index)!r}, '--array', {str(folder / 'queries.npz')!r}, '--json'])\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print(sorted({'torch', 'matplotlib', 'scipy', 'sklearn'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_probability_that_is_judged_among_far_fewer_images_is_said_to_be(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    features, labels = clusters(40, seed=8)
    np.savez(tmp_path / "few.npz", features=features, labels=labels)
    worked("evaluate", folder / "model", tmp_path / "few.npz", "--samples", 0, "--resamples", 0)
    assert "is judged here among 40" in caplog.text
