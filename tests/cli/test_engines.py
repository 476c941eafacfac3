"""lam index --engine and lam query: the answers are those of an index in a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.running import clusters, refused, worked


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features in four parts, and a model with Trust."""
    folder = tmp_path_factory.mktemp("engines")
    for seed, name in enumerate(("train", "validation", "test", "calibration")):
        features, labels = clusters(160, spread=0.45, seed=seed)
        ids = [f"{name}{row}" for row in range(160)]
        np.savez(folder / f"{name}.npz", features=features, labels=labels, ids=ids)
    data = ("--features", folder / "train.npz", "--validation", folder / "validation.npz", "--calibrate")
    worked("fit", *data, "--head", "identity", "--out", folder / "model")
    worked("embed", folder / "model", folder / "test.npz", "--out", folder / "queries.npz")
    return folder


@pytest.mark.parametrize("engine", ["exact:", "milvus:photos.db"])
def test_a_collection_answers_as_an_index_does(folder: Path, engine: str, tmp_path: Path) -> None:
    if engine.startswith("milvus"):
        pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    engine = engine.replace("photos.db", str(tmp_path / "photos.db"))
    built = (
        "index",
        folder / "model",
        folder / "train.npz",
        "--calibrate",
        folder / "calibration.npz",
        "--alpha",
        0.5,
    )
    worked(*built, "--out", tmp_path / "index")
    done = worked(*built, "--engine", engine, "--collection", "photos", "--out", tmp_path / "kept")
    assert "160 items" in done.out
    assert engine.partition(":")[0] in done.out
    question = ("--array", folder / "queries.npz", "--json")
    expected = worked("query", tmp_path / "index", *question).json()["replies"]
    replies = worked("query", tmp_path / "kept", *question).json()["replies"]
    for ours, theirs in zip(replies, expected, strict=True):
        assert [match["item"] for match in ours["matches"]] == [match["item"] for match in theirs["matches"]]
        assert (ours["answered"], ours["verdict"], ours["label"]) == (
            theirs["answered"],
            theirs["verdict"],
            theirs["label"],
        )
        assert ours["probability"] == pytest.approx(theirs["probability"], abs=2e-3)
    by_id = worked("query", tmp_path / "kept", "--id", "train7", "-k", 3, "--all", "--json").json()["replies"]
    same = worked("query", tmp_path / "index", "--id", "train7", "-k", 3, "--all", "--json").json()["replies"]
    assert by_id[0]["matches"][0]["item"] == same[0]["matches"][0]["item"]
    assert "train999" in refused("query", tmp_path / "kept", "--id", "train999")
    assert "--force" in refused(*built, "--engine", engine, "--out", tmp_path / "kept")


def test_wrong_engines_are_refused(folder: Path, tmp_path: Path) -> None:
    built = ("index", folder / "model", folder / "train.npz", "--out", tmp_path / "kept")
    assert "qdrant:URL" in refused(*built, "--engine", "redis:here")
    assert not (tmp_path / "kept").exists()
