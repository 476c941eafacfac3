"""`lam embed`, `lam index` and `lam query`: from a model to answers, and the refusals of all three."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from laplacian_metric.cli import query
from laplacian_metric.core.dataset import shared
from laplacian_metric.data import load as load_data
from laplacian_metric.data.opening import Opening, open_source, parse_place
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.retrieval import Index, Items, calibrate, calibrating, load, save
from laplacian_metric.retrieval.embedding_files import Embedded
from laplacian_metric.retrieval.replies import query_ids
from tests.cli.conftest import Place
from tests.cli.running import clusters, lam, refused, worked


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- embed ---


def test_every_image_of_a_folder_is_embedded(tmp_path: Path, place: Place) -> None:
    done = worked("embed", place.model, place.photos, "--out", tmp_path / "e.npz", "--json")
    embedded = Embedded.read(tmp_path / "e.npz")
    assert len(embedded.ids) == 120
    assert embedded.ids[:2] == ("class 0/000.png", "class 0/001.png")
    model = ModelFolder.load(place.model)
    data = load_data("folder", "all", path=place.photos, image_size=28, channels=1, preprocessing="unit")
    e = model.lam.embed(data.floats())
    np.testing.assert_allclose(embedded.items.mean, e.mean, atol=1e-5)
    np.testing.assert_allclose(embedded.point, e.point, atol=1e-5)
    np.testing.assert_allclose(embedded.items.kappa, e.kappa, rtol=1e-3)
    np.testing.assert_allclose(embedded.items.uncertainty, e.uncertainty, atol=1e-4)
    assert embedded.items.source == model.lam.fingerprint()
    least = done.json()["least_certain"]
    assert least[0]["uncertainty"] == embedded.items.uncertainty.max()
    # What of its parts the folder has plays no role.
    (tmp_path / "deep" / "a" / "b").mkdir(parents=True)
    shutil.copy(place.photos / "class 0" / "000.png", tmp_path / "deep" / "a" / "b" / "x.PNG")
    (tmp_path / "deep" / ".hidden.png").write_bytes(b"")
    (tmp_path / "deep" / "notes.txt").write_text("none")
    worked("embed", place.model, tmp_path / "deep", "--out", tmp_path / "d.npz")
    assert Embedded.read(tmp_path / "d.npz").ids == ("a/b/x.PNG",)


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "parquet"])
def test_the_formats_hold_the_same(tmp_path: Path, place: Place, suffix: str) -> None:
    path = tmp_path / f"e.{suffix}"
    worked("embed", place.flat_model, place.test_features, "--out", path)
    mine, other = Embedded.read(path), Embedded.read(place.queries)
    assert mine.ids == other.ids == tuple(f"t{row}" for row in range(240))
    assert mine.items.source == other.items.source
    for name in ("mean", "kappa", "uncertainty"):
        assert np.array_equal(getattr(mine.items, name), getattr(other.items, name))
    assert np.array_equal(mine.point, other.point)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"damaged|whole|safetensors"):
        Embedded.read(path)


def test_data_sets_are_named_by_class_and_place(tmp_path: Path, place: Place) -> None:
    worked("embed", place.model, "sample-mnist", "--out", tmp_path / "e.npz")
    ids = Embedded.read(tmp_path / "e.npz").ids
    data = load_data("sample-mnist", "test")
    assert ids[17] == f"{int(data.labels[17])}/17"


def test_wrong_things_to_embed(tmp_path: Path, place: Place) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copytree(place.photos, tmp_path / "broken")
    (tmp_path / "broken" / "class 1" / "004.png").write_bytes(b"no")
    np.save(tmp_path / "wide.npy", clusters(20, width=7)[0])
    np.savez(tmp_path / "ids.npz", features=clusters(4)[0], ids=["a", "b", "a", "c"])
    wrong: dict[str, tuple[object, object]] = {
        "has no images": (place.model, tmp_path / "empty"),
        "class 1/004.png does not decode": (place.model, tmp_path / "broken"),
        "is a folder of images, but this model takes features": (place.flat_model, place.photos),
        "holds arrays, but this model takes images": (place.model, place.features),
        "has 7 features for each image, and the model takes 6": (place.flat_model, tmp_path / "wide.npy"),
        "name 'a' twice": (place.flat_model, tmp_path / "ids.npz"),
        "leave the split out": (place.model, f"{place.photos}:test"),
        "holds no model": (place.photos, place.photos),
        "there is no model folder": (tmp_path / "none", place.photos),
        "no data set is called so": (place.model, "sample-minst"),
    }
    for said, (model, images) in wrong.items():
        assert said in refused("embed", model, images, "--out", tmp_path / "e.npz"), said
    assert "is none of .npz" in refused("embed", place.model, place.photos, "--out", tmp_path / "e.csv")
    assert "make it first" in refused("embed", place.model, place.photos, "--out", tmp_path / "a" / "e.npz")
    before = names(tmp_path)
    done = worked("embed", place.model, tmp_path / "broken", "--out", tmp_path / "e.npz", "--skip-broken")
    assert "004.png" in done.err
    assert len(Embedded.read(tmp_path / "e.npz").ids) == 119
    assert "--force" in refused("embed", place.model, place.photos, "--out", tmp_path / "e.npz")
    worked("embed", place.model, place.photos, "--out", tmp_path / "e.npz", "--force")
    assert names(tmp_path) == sorted([*before, "e.npz"])


def test_a_damaged_model_is_refused(tmp_path: Path, place: Place) -> None:
    shutil.copytree(place.flat_model, tmp_path / "m")
    path = tmp_path / "m" / "posterior.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    said = refused("embed", tmp_path / "m", place.features, "--out", tmp_path / "e.npz")
    assert "posterior.safetensors" in said
    assert "copy the folder again" in said


# --- index ---


def test_an_index_promises_what_calibrate_does(place: Place) -> None:
    index, model = load(place.index), ModelFolder.load(place.flat_model)
    features, labels = clusters(400)
    queries, classes = clusters(240, seed=1)
    items = Items.of(model.lam.embed_features(torch.from_numpy(features)), variance=False)
    assert np.array_equal(index.items.mean, items.mean)
    query_items = Items.of(model.lam.embed_features(torch.from_numpy(queries)))
    expected = calibrate(
        index,
        query_items,
        classes,
        labels,
        alpha=0.2,
        delta=0.1,
        level=0.9,
        generator=np.random.default_rng(0),
    )
    assert index.calibrations.to_dict() == expected.calibrations.to_dict()
    assert index.threshold is not None


def test_least_certain_items_are_left_out(tmp_path: Path, place: Place) -> None:
    done = worked(
        *("index", place.flat_model, place.features, "--calibrate", place.test_features, "--alpha", 0.2),
        *("--clean", 0.25, "--kind", "hnsw", "--out", tmp_path / "i", "--json"),
    )
    assert done.json()["items"] == 300
    assert done.json()["kind"] == "hnsw"
    assert done.json()["threshold"]["promised_error"] == 0.2
    assert done.json()["calibrated"] == ["threshold", "credible", "matching", "drift"]
    kept = set(load(tmp_path / "i").ids.tolist())
    whole = load(place.index)
    gone = np.array([name not in kept for name in whole.ids.tolist()])
    assert whole.items.uncertainty[gone].min() >= whole.items.uncertainty[~gone].max()


def test_calibration_images_must_be_new(
    tmp_path: Path, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    out = ("--out", tmp_path / "i", "--alpha", 0.5)
    said = refused("index", place.model, place.photos, "--calibrate", f"{place.photos}:test", *out)
    assert "12 of the 12 calibration images" in said
    assert "photos:train" in said
    # Moved and renamed they are the same images.
    shutil.copytree(place.photos / "class 0", tmp_path / "moved" / "class 0" / "again")
    shutil.copytree(place.photos / "class 1", tmp_path / "moved" / "class 1")
    assert "60 of the 60" in refused(
        "index", place.model, place.photos, "--calibrate", tmp_path / "moved", *out
    )
    refused("index", place.model, f"{place.photos}:train", "--calibrate", f"{place.photos}:validation", *out)
    assert "was calibrated by 12 of the 12 images of photos:validation" in caplog.text


def test_labels_in_a_file_are_those_of_the_index(tmp_path: Path, place: Place) -> None:
    features, labels = clusters(400)
    np.save(tmp_path / "f.npy", features)
    np.save(tmp_path / "l.npy", labels)
    worked(
        *("index", place.flat_model, tmp_path / "f.npy", "--labels", tmp_path / "l.npy", "--alpha", 0.2),
        *("--calibrate", place.test_features, "--out", tmp_path / "i"),
    )
    assert load(tmp_path / "i").calibrations.to_dict() == load(place.index).calibrations.to_dict()


def test_wrong_indexes(tmp_path: Path, place: Place) -> None:
    few = tmp_path / "few.npz"
    features, labels = clusters(20, seed=3)
    np.savez(few, features=features, labels=labels)
    np.savez(tmp_path / "one.npz", features=features, labels=0 * labels)
    begin: tuple[object, ...] = ("index", place.flat_model, place.features, "--out", tmp_path / "i")
    wrong: dict[str, tuple[object, ...]] = {
        "too few to promise": ("--calibrate", few),
        "needs at least 2 classes": ("--calibrate", tmp_path / "one.npz"),
        "alpha is 2": ("--calibrate", place.test_features, "--alpha", 2),
        "share is 1.5": ("--clean", 1.5),
        "classes of ood are not known": ("--calibrate", place.ood_features),
    }
    for said, more in wrong.items():
        assert said in refused(*begin, *more), said
    assert names(tmp_path) == ["few.npz", "one.npz"]
    worked(*begin)
    assert "pass --force to replace it" in refused(*begin)
    worked(*begin, "--force")
    assert "holds no index" in refused(*begin[:3], "--out", place.photos, "--force")


def test_an_interrupted_index_leaves_nothing(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrating, "calibrate", interrupted)
    command = (
        "index",
        place.flat_model,
        place.features,
        "--calibrate",
        place.test_features,
        "--out",
        tmp_path / "i",
    )
    assert lam(*command).code == 130
    assert names(tmp_path) == []


# --- query ---


def replies(*arguments: object) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = worked("query", *arguments, "--json").json()["replies"]
    return listed


def test_answers_are_those_of_the_index(place: Place) -> None:
    index, queries = load(place.index), Embedded.read(place.queries)
    answers = index.query(queries.items, 3, abstain=True)
    listed = replies(place.index, "--array", place.queries, "-k", 3)
    assert [reply["query"] for reply in listed] == list(queries.ids)
    assert answers.answered is not None
    assert answers.probability is not None
    assert [reply["answered"] for reply in listed] == answers.answered.tolist()
    assert 0 < answers.answered.sum() < 240
    for row, reply in enumerate(listed):
        if not reply["answered"]:
            assert reply["matches"] == []
            assert "above the threshold" in reply["reason"]
            continue
        assert [match["item"] for match in reply["matches"]] == answers.ids[row].tolist()
        np.testing.assert_allclose(
            [match["similarity"] for match in reply["matches"]], answers.similarity[row]
        )
        np.testing.assert_allclose(
            [match["probability"] for match in reply["matches"]], answers.probability[row]
        )
    everything = replies(place.index, "--array", place.queries, "-k", 3, "--all")
    assert all(len(reply["matches"]) == 3 for reply in everything)
    assert [reply["answered"] for reply in everything] == answers.answered.tolist()


def test_items_ask_without_finding_themselves(place: Place) -> None:
    index = load(place.index)
    listed = replies(place.index, "--id", "7", "--id", "11", "-k", 2, "--order", "expected distance", "--all")
    answers = index.query_ids(["7", "11"], 2, order="expected distance")
    assert [[match["item"] for match in reply["matches"]] for reply in listed] == answers.ids.tolist()
    assert all(match["item"] != reply["query"] for reply in listed for match in reply["matches"])


def test_a_table_says_what_was_refused(place: Place) -> None:
    done = worked("query", place.index, "--array", place.queries, "-k", 1)
    assert "refused: its uncertainty" in done.out
    assert "of 240 queries answered" in done.out
    assert "match probability" in done.out


def test_refused_queries_are_counted_where_there_are_many(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "LISTED", 2)
    done = worked("query", place.index, "--array", place.queries, "-k", 1)
    assert done.out.count("refused: its uncertainty") == 2
    count = sum(not reply["answered"] for reply in replies(place.index, "--array", place.queries))
    assert f"{count} queries are refused in all" in done.out


def test_more_items_than_there_are_are_not_promised(tmp_path: Path, place: Place) -> None:
    save(load(place.index).without(rows=slice(3, None)), tmp_path / "small")
    done = worked("query", tmp_path / "small", "--id", "0", "-k", 9)
    assert "each query returns 2 items" in done.err


def test_names_cannot_control_a_terminal(tmp_path: Path) -> None:
    items = Items(np.eye(2), kappa=[10, 20], uncertainty=[0.1, 0.05], variance=None, source="a4f0")
    save(Index(items, ["\x1b[2Jant", "bee"]), tmp_path / "i")
    assert "\ufffd[2Jant" in worked("query", tmp_path / "i", "--id", "bee").out


def test_wrong_queries(tmp_path: Path, place: Place) -> None:
    index = place.index
    np.savez(tmp_path / "half.npz", ids=["a"], source="x", mean=np.eye(2), kappa=[1.0, 2.0])
    shutil.copytree(index, tmp_path / "damaged")
    path = tmp_path / "damaged" / "mean.npy"
    path.write_bytes(path.read_bytes()[:-8])
    worked("embed", place.model, place.digits, "--out", tmp_path / "other.npz")
    embedded = Embedded.read(place.queries)
    items = Items(embedded.items.mean, embedded.items.kappa, embedded.items.uncertainty, None, "ab" * 32)
    Embedded(items, embedded.point, embedded.ids).write(tmp_path / "stranger.npz")
    wrong: dict[str, tuple[object, ...]] = {
        "pass either --id": (index,),
        "or --array": (index, "--id", "7", "--array", place.queries),
        "ids there look like '0'": (index, "--id", "seven"),
        "there is no index folder": (tmp_path / "none", "--id", "7"),
        "holds no index": (place.photos, "--id", "7"),
        "copy the folder again": (tmp_path / "damaged", "--id", "7"),
        "there is no file": (index, "--array", tmp_path / "none.npz"),
        "was not written by `lam embed`": (index, "--array", place.features),
        "embed the queries": (index, "--array", tmp_path / "half.npz"),
        "not made by the same network": (index, "--array", tmp_path / "other.npz"),
        "only what one posterior made": (index, "--array", tmp_path / "stranger.npz"),
    }
    for said, arguments in wrong.items():
        assert said in refused("query", *arguments), said
    assert lam("query", index, "--id", "7", "--order", "random").code == 2


def test_whole_numbers_and_an_index_without_a_threshold(place: Place) -> None:
    index = load(place.index)
    plain = index.__class__(index.items[:3])
    (reply,) = query_ids(plain, ["1"], k=2)
    assert reply.answered is None
    assert sorted(match.item for match in reply.matches) == ["0", "2"]
    with pytest.raises(ValueError, match="'x' is none"):
        query_ids(plain, ["x"], k=1)
    with pytest.raises(ValueError, match="single item"):
        query_ids(index.__class__(index.items[:1]), ["0"], k=1)


def test_a_query_does_not_import_torch(place: Place, root: Path) -> None:
    code = (
        "import json, sys, time\nbegun = time.process_time()\n"
        "from laplacian_metric.cli import app\n"
        f"arguments = ['query', {str(place.index)!r}, '--array', {str(place.queries)!r}, '--json']\n"
        "try:\n    app(arguments)\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'matplotlib', 'pandas', 'laplace', 'timm', 'scipy', 'PIL'} & set(sys.modules)\n"
        "print(json.dumps([sorted(heavy), time.process_time() - begun]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    heavy, seconds = json.loads(done.stderr.splitlines()[-1])
    assert heavy == []
    assert len(json.loads(done.stdout)["replies"]) == 240
    assert seconds < 2  # of the processor, imports included, whatever else the machine is doing


# --- places ---


def test_places_and_splits(tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_place("sample-mnist:val") == ("sample-mnist", "validation")
    assert parse_place("C:photos") == ("C:photos", None)
    (tmp_path / "a:b").mkdir()
    assert parse_place("a:b") == ("a:b", None)
    model = ModelFolder.load(place.model)
    how = Opening(model.preparation)
    assert len(open_source(str(place.photos), how, "train")) == 120
    assert len(open_source(f"{place.photos}:train", how)) == 96
    shutil.copytree(place.photos / "class 0", tmp_path / "p" / "train" / "c")
    shutil.copytree(place.photos / "class 1", tmp_path / "p" / "test" / "d")
    with pytest.warns(UserWarning, match="no image has a negative"):
        parts = [open_source("p", how, split) for split in ("train", "test")]
    assert [len(part) for part in parts] == [30, 30]
    assert [part.split for part in parts] == ["train", "test"]
    assert shared(parts[0].digests(), parts[1].digests()) == 0
    assert shared(parts[0].digests(), open_source(str(place.photos), how).digests()) == 30


def test_repeated_images_are_named_and_dropped_on_request(tmp_path: Path, place: Place) -> None:
    features, labels = clusters(60, seed=5)
    features[7], labels[7] = features[3], labels[4]
    features[11], labels[11] = features[3], labels[3]
    np.savez(tmp_path / "f.npz", features=features, labels=labels, ids=[f"f{row}" for row in range(60)])
    done = worked("index", place.flat_model, tmp_path / "f.npz", "--out", tmp_path / "all")
    assert "2 of the 60 images of f are repeats, 1 of them with another class" in done.err
    assert "f7 repeats f3, f11 repeats f3" in done.err
    assert "--drop-duplicates" in done.err
    assert "60 items" in done.out
    done = worked(
        "index", place.flat_model, tmp_path / "f.npz", "--drop-duplicates", "--out", tmp_path / "once"
    )
    assert "58 items" in done.out
    assert "--drop-duplicates" not in done.err
    ids = load(tmp_path / "once").ids.tolist()
    assert "f3" in ids
    assert "f7" not in ids


def test_a_single_image_is_embedded_as_it_is_among_others(tmp_path: Path, place: Place) -> None:
    image = place.photos / "class 1" / "004.png"
    assert "1 image." in worked("embed", place.model, image, "--out", tmp_path / "one.npz").out
    worked("embed", place.model, place.photos, "--out", tmp_path / "all.npz")
    one, every = np.load(tmp_path / "one.npz"), np.load(tmp_path / "all.npz")
    assert one["ids"].tolist() == ["004.png"]
    row = every["ids"].tolist().index("class 1/004.png")
    assert np.allclose(one["mean"][0], every["mean"][row], atol=1e-5)
    said = refused("evaluate", place.model, image, "--samples", 0)
    assert "is a single image, which `lam embed` takes" in said
    assert "is an image, but this model takes features" in refused(
        "embed", place.flat_model, image, "--out", tmp_path / "no.npz"
    )
