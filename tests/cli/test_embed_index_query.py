"""`lam embed`, `lam index` and `lam query`: from a model or a file of vectors to answers, and what they refuse."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laplacian_metric.core import artifact
from laplacian_metric.core.array_files import ArrayFileError, read_features
from laplacian_metric.core.array_gallery import ArrayGallery
from laplacian_metric.core.dataset import shared
from laplacian_metric.data import load as load_data
from laplacian_metric.data.opening import Opening, open_source, parse_place
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.serve import Index
from laplacian_metric.trust import Trust
from tests.cli.conftest import Place
from tests.cli.running import clusters, lam, photos, refused, worked


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def replies(*arguments: object) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = worked("query", *arguments, "--json").json()["replies"]
    return listed


# --- embed ---


def test_every_image_of_a_folder_is_embedded(tmp_path: Path, place: Place) -> None:
    done = worked("embed", place.model, place.photos, "--out", tmp_path / "e.npz", "--json")
    written = np.load(tmp_path / "e.npz")
    assert len(written["ids"]) == 120
    assert written["ids"][:2].tolist() == ["class 0/000.png", "class 0/001.png"]
    model = ModelFolder.load(place.model)
    data = load_data("folder", "all", path=place.photos, image_size=28, channels=1, preprocessing="unit")
    features = model.encoder.features(data.floats()).detach()
    e = model.lam.embed(data.floats())
    np.testing.assert_allclose(written["features"], features, atol=1e-4)
    np.testing.assert_allclose(written["vectors"], e.point, atol=1e-5)
    np.testing.assert_allclose(written["kappa"], e.kappa, rtol=1e-3)
    assert done.json()["least_certain"][0]["kappa"] == written["kappa"].min()
    # What of its parts the folder has plays no role.
    (tmp_path / "deep" / "a" / "b").mkdir(parents=True)
    shutil.copy(place.photos / "class 0" / "000.png", tmp_path / "deep" / "a" / "b" / "x.PNG")
    (tmp_path / "deep" / ".hidden.png").write_bytes(b"")
    (tmp_path / "deep" / "notes.txt").write_text("none")
    worked("embed", place.model, tmp_path / "deep", "--out", tmp_path / "d.npz")
    assert np.load(tmp_path / "d.npz")["ids"].tolist() == ["a/b/x.PNG"]
    image = place.photos / "class 1" / "004.png"
    worked("embed", place.model, image, "--out", tmp_path / "one.npz")
    one = np.load(tmp_path / "one.npz")
    row = written["ids"].tolist().index("class 1/004.png")
    np.testing.assert_allclose(one["vectors"][0], written["vectors"][row], atol=1e-5)


def test_both_formats_hold_the_same(tmp_path: Path, place: Place) -> None:
    path = tmp_path / "e.safetensors"
    worked("embed", place.flat_model, place.test_features, "--out", path)
    ours, theirs = read_features(path), read_features(place.queries)
    assert ours.ids.tolist() == theirs.ids.tolist() == [f"t{row}" for row in range(240)]
    assert ours.labels is not None
    assert theirs.labels is not None
    assert ours.labels.tolist() == theirs.labels.tolist()
    np.testing.assert_array_equal(ours.rows, theirs.rows)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ArrayFileError):
        read_features(path)


def test_data_sets_are_named_by_class_and_place(tmp_path: Path, place: Place) -> None:
    worked("embed", place.model, "sample-mnist", "--out", tmp_path / "e.npz")
    data = load_data("sample-mnist", "test")
    assert np.load(tmp_path / "e.npz")["ids"][17] == f"{int(data.labels[17])}/17"


def test_wrong_things_to_embed(tmp_path: Path, place: Place) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copytree(place.photos, tmp_path / "broken")
    (tmp_path / "broken" / "class 1" / "004.png").write_bytes(b"no")
    np.save(tmp_path / "wide.npy", clusters(20, width=7)[0])
    np.savez(tmp_path / "ids.npz", features=clusters(4)[0], ids=["a", "b", "a", "c"])
    damaged = shutil.copytree(place.flat_model, tmp_path / "m")
    path = next(damaged.rglob("encoder.safetensors"))
    path.write_bytes(path.read_bytes()[:-4])
    wrong: dict[str, tuple[object, object]] = {
        "empty": (place.model, tmp_path / "empty"),
        "class 1/004.png": (place.model, tmp_path / "broken"),
        "features": (place.flat_model, place.photos),
        "images": (place.model, place.features),
        "7": (place.flat_model, tmp_path / "wide.npy"),
        "'a'": (place.flat_model, tmp_path / "ids.npz"),
        "split": (place.model, f"{place.photos}:test"),
        "no saved artifact": (tmp_path / "none", place.photos),
        "sample-minst": (place.model, "sample-minst"),
        "encoder.safetensors": (damaged, place.features),
        "model takes features": (place.flat_model, place.photos / "class 1" / "004.png"),
    }
    before = names(tmp_path)
    for named, (model, images) in wrong.items():
        assert named in refused("embed", model, images, "--out", tmp_path / "e.npz"), named
    assert ".npz" in refused("embed", place.model, place.photos, "--out", tmp_path / "e.csv")
    assert "folder" in refused("embed", place.model, place.photos, "--out", tmp_path / "a" / "e.npz")
    done = worked("embed", place.model, tmp_path / "broken", "--out", tmp_path / "e.npz", "--skip-broken")
    assert "004.png" in done.err
    assert len(np.load(tmp_path / "e.npz")["ids"]) == 119
    assert "--force" in refused("embed", place.model, place.photos, "--out", tmp_path / "e.npz")
    worked("embed", place.model, place.photos, "--out", tmp_path / "e.npz", "--force")
    assert names(tmp_path) == sorted([*before, "e.npz"])


# --- index ---


def test_an_index_of_training_items_is_the_models_trust_with_a_guarantee(place: Place) -> None:
    index, model = Index.load(place.index), ModelFolder.load(place.flat_model)
    queries, labels = clusters(240, seed=1)
    assert model.trust is not None
    assert index.encoder == model.encoder.fingerprint()
    ours, theirs = index.trust(queries), model.trust(queries)
    if len(index) == len(model.trust.spaces.of_features):  # type: ignore[arg-type]
        np.testing.assert_allclose(ours.probability, theirs.probability)
    guarantee = index.trust.guarantee((queries, [str(label) for label in labels]), error=0.2)
    assert index.guarantee == guarantee
    assert index.trust.threshold == guarantee.threshold


def test_vectors_in_a_file_are_indexed_without_a_model(tmp_path: Path, place: Place) -> None:
    done = worked(
        "index", place.features, "--calibrate", place.test_features, "--out", tmp_path / "i", "--json"
    )
    (h, labels), (queries, classes) = clusters(400), clusters(240, seed=1)
    trust = Trust.fit((h, labels), (queries, classes))
    np.testing.assert_array_equal(
        Index.load(tmp_path / "i").trust(queries).probability, trust(queries).probability
    )
    assert done.json()["items"] == 400
    assert done.json()["calibration_error"]["queries"] == 240
    assert done.json()["guarantee"] is None
    # Labels in a file of their own are the same.
    np.save(tmp_path / "f.npy", h)
    np.save(tmp_path / "l.npy", labels)
    worked(
        *("index", tmp_path / "f.npy", "--labels", tmp_path / "l.npy", "--calibrate", place.test_features),
        *("--out", tmp_path / "j"),
    )
    assert Index.load(tmp_path / "j").trust.inputs == trust.inputs


def test_images_are_indexed_and_searched_for(tmp_path: Path, place: Place) -> None:
    queries = photos(tmp_path / "queries", 30, split="test")
    worked(*("index", place.model, place.photos, "--calibrate", queries, "--out", tmp_path / "i"))
    image = queries / "class 2" / "003.png"
    (reply,) = replies(tmp_path / "i", image, "--model", place.model, "-k", 3)
    worked("embed", place.model, image, "--out", tmp_path / "e.npz")
    (same,) = replies(tmp_path / "i", tmp_path / "e.npz", "-k", 3)
    assert reply["neighbours"][0]["id"].startswith("class ")
    assert reply["nearest"] == reply["neighbours"][0]["id"]
    assert reply["probability"] == pytest.approx(same["probability"], abs=1e-4)
    assert "--model" in refused("query", tmp_path / "i", image)
    assert "encoder" in refused("query", place.index, image, "--model", place.model)


@pytest.mark.parametrize("engine", ["faiss:Flat", "milvus:photos.db"])
def test_a_gallery_in_an_engine_answers_as_arrays_do(tmp_path: Path, place: Place, engine: str) -> None:
    pytest.importorskip("faiss" if engine.startswith("faiss") else "milvus_lite")
    address = engine.replace("photos.db", str(tmp_path / "photos.db"))
    built = ("index", place.flat_model, place.features, "--gallery", address, "--out", tmp_path / "kept")
    worked(*built)
    worked("index", place.flat_model, place.features, "--out", tmp_path / "arrays")
    ours, theirs = (replies(tmp_path / folder, place.queries) for folder in ("kept", "arrays"))
    assert [reply["nearest"] for reply in ours] == [reply["nearest"] for reply in theirs]
    assert [reply["probability"] for reply in ours] == pytest.approx(
        [reply["probability"] for reply in theirs], abs=2e-3
    )
    assert "--force" in refused(*built)


def test_items_come_and_go(tmp_path: Path, place: Place) -> None:
    out = ("--out", shutil.copytree(place.index, tmp_path / "i"))
    more, labels = clusters(12, seed=4)
    np.savez(tmp_path / "more.npz", features=more, labels=labels, ids=[f"new{row}" for row in range(12)])
    done = worked("index", place.flat_model, tmp_path / "more.npz", "--add", *out)
    assert "guarantee" in done.err
    index = Index.load(tmp_path / "i")
    assert (len(index), index.guarantee, index.trust.calibration_error) == (412, None, None)
    assert [reply.nearest for reply in index.replies(more)] == [f"new{row}" for row in range(12)]
    removed = ("--remove", "new3", "--remove", "7")
    assert worked("index", *removed, *out, "--json").json()["items"] == 410
    refused("index", "--remove", "new3", *out)
    # Removed and refreshed, the index is that of the items which are left.
    left = {reply.nearest for reply in Index.load(tmp_path / "i").replies(more)}
    assert "new3" not in left
    assert "model" in refused("index", place.model, place.photos, "--add", *out)


def test_of_two_writers_one_is_told(tmp_path: Path, place: Place) -> None:
    out = shutil.copytree(place.index, tmp_path / "i")
    ends = []
    with artifact.lock(out):
        thread = threading.Thread(target=lambda: ends.append(lam("index", "--remove", "7", "--out", out)))
        thread.start()
        thread.join()
    assert [end.code for end in ends] == [1]
    assert "somebody else" in ends[0].err
    assert len(Index.load(out)) == len(Index.load(place.index))
    worked("index", "--remove", "7", "--out", out)


def test_wrong_indexes(tmp_path: Path, place: Place, caplog: pytest.LogCaptureFixture) -> None:
    features, labels = clusters(10, seed=3)
    np.savez(tmp_path / "few.npz", features=features, labels=labels)
    begin: tuple[object, ...] = ("index", place.flat_model, place.features, "--out", tmp_path / "i")
    wrong: dict[str, tuple[object, ...]] = {
        "queries cannot calibrate": (*begin, "--calibrate", tmp_path / "few.npz"),
        "too few": (*begin, "--guarantee", tmp_path / "few.npz"),
        "error": (*begin, "--guarantee", place.test_features, "--error", 2),
        "items of the index": (*begin, "--guarantee", place.features),
        "not known": (*begin, "--guarantee", place.ood_features),
        "0 of 400": (*begin, "--calibrate", place.features),
        "--calibrate": ("index", place.model, place.photos, "--out", tmp_path / "i"),
        "nothing says": ("index", place.features, "--out", tmp_path / "i"),
        "data": ("index", place.flat_model, "--out", tmp_path / "i"),
        "source": ("index", "--out", tmp_path / "i"),
        "labels": ("index", place.ood_features, "--calibrate", place.features, "--out", tmp_path / "i"),
        "no saved": ("index", "--remove", "7", "--out", tmp_path / "i"),
        "address": (*begin, "--gallery", "redis:here"),
    }
    for named, arguments in wrong.items():
        assert named in refused(*arguments), named
    assert names(tmp_path) == ["few.npz"]
    worked(*begin)
    assert "--force" in refused(*begin)
    worked(*begin, "--force")
    refused(*begin[:3], "--out", place.photos, "--force")


def test_an_interrupted_index_leaves_nothing(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trust, "fit", interrupted)
    command = ("index", place.features, "--calibrate", place.test_features, "--out", tmp_path / "i")
    assert lam(*command).code == 130
    assert names(tmp_path) == []


# --- query ---


def test_answers_are_those_of_trust(place: Place) -> None:
    queries = read_features(place.queries)
    answer = Index.load(place.index).trust(queries.rows)
    listed = replies(place.index, place.queries, "-k", 3)
    assert [reply["query"] for reply in listed] == queries.ids.tolist()
    expected = {
        "label": answer.labels,
        **{name: getattr(answer, name) for name in ("nearest", "verdict", "because")},
    }
    for name, values in expected.items():
        assert [reply[name] for reply in listed] == values.tolist()
    np.testing.assert_allclose([reply["probability"] for reply in listed], answer.probability)
    assert answer.neighbours is not None
    near = answer.neighbours.first(3)
    assert [[item["id"] for item in reply["neighbours"]] for reply in listed] == near.ids.tolist()
    np.testing.assert_allclose(
        [[item["distance"] for item in reply["neighbours"]] for reply in listed], near.distances
    )
    accepted = sum(reply["verdict"] == "accept" for reply in listed)
    assert 0 < accepted < 240
    shown = worked("query", place.index, place.queries).out
    assert f"{accepted} of 240 answers accepted" in shown
    ood = replies(place.index, place.ood_features)
    assert max(reply["probability"] for reply in ood) < np.median(answer.probability)


def test_names_cannot_control_a_terminal(tmp_path: Path) -> None:
    (h, labels), queries = clusters(80), clusters(60, seed=1)
    ids = [f"\x1b[2Jant {row}" for row in range(80)]
    Index(Trust.fit(ArrayGallery(h, labels, ids), queries)).save(tmp_path / "i")
    np.save(tmp_path / "q.npy", queries[0][:2])
    assert "\ufffd[2Jant" in worked("query", tmp_path / "i", tmp_path / "q.npy").out


def test_wrong_queries(tmp_path: Path, place: Place) -> None:
    index = place.index
    np.save(tmp_path / "wide.npy", np.ones((2, 7)))
    np.save(tmp_path / "zero.npy", np.zeros((2, 6)))
    np.savez(tmp_path / "other.npz", a=np.eye(6), b=np.eye(6))
    damaged = shutil.copytree(index, tmp_path / "damaged")
    path = next(damaged.rglob("vectors.npy"))
    path.write_bytes(path.read_bytes()[:-8])
    wrong: dict[str, tuple[object, ...]] = {
        "queries": (index,),
        "--text": (index, place.queries, "--text", "words"),
        "--sentences": (index, "--text", "words"),
        "--model": (index, place.photos),
        "no saved artifact": (tmp_path / "none", place.queries),
        "model": (place.flat_model, place.queries),
        "vectors.npy": (damaged, place.queries),
        "no file": (index, tmp_path / "none.npz"),
        "no array 'features'": (index, tmp_path / "other.npz"),
        "H = 6": (index, tmp_path / "wide.npy"),
        "zero": (index, tmp_path / "zero.npy"),
    }
    for named, arguments in wrong.items():
        assert named in refused("query", *arguments), named


def test_a_query_does_not_import_torch(place: Place, root: Path) -> None:
    code = (
        "import json, sys, time\nbegun = time.process_time()\n"
        "from laplacian_metric.cli import app\n"
        f"arguments = ['query', {str(place.index)!r}, {str(place.queries)!r}, '--json']\n"
        "try:\n    app(arguments)\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'matplotlib', 'pandas', 'laplace', 'timm', 'scipy', 'sklearn', 'PIL'} & set(sys.modules)\n"
        "print(json.dumps([sorted(heavy), time.process_time() - begun]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    heavy, seconds = json.loads(done.stderr.splitlines()[-1])
    assert heavy == []
    assert len(json.loads(done.stdout)["replies"]) == 240
    assert seconds < 2  # of the processor, imports included, whatever else the machine is doing


def test_a_closed_output_is_a_failure(place: Place, root: Path) -> None:
    command = [sys.executable, "-m", "laplacian_metric.cli", "query", str(place.index), str(place.queries)]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], cwd=root, check=False, capture_output=True
    )
    assert done.returncode != 0


# --- places ---


def test_places_and_splits(tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_place("sample-mnist:val") == ("sample-mnist", "validation")
    assert parse_place("C:photos") == ("C:photos", None)
    (tmp_path / "a:b").mkdir()
    assert parse_place("a:b") == ("a:b", None)
    how = Opening(ModelFolder.load(place.model).preparation)
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
