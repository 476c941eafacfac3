"""Files that version 0.1.0 wrote, one of every format: they can be read, and give the numbers that they gave then.

The files are under ``tests/fixtures/formats``; ``tests/fixtures/make_formats.py`` wrote them then, and now writes those
of today.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import Tensor

from laplacian_metric import LAM, Encoder, NetworkLAM, OnlineLAM, methods, retrieval, runs
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.encoder import save_encoder
from laplacian_metric.integrations.hub import load_folder
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.method import FitData, Setup
from laplacian_metric.report.comparing import read_result
from laplacian_metric.retrieval import Items
from laplacian_metric.retrieval.embedding_files import Embedded
from laplacian_metric.training import TrainingOptions, load_best, train
from tests.fixtures import make_formats
from tests.fixtures.small import LOSS, METHODS, backbone, clusters, encoder

FORMATS = Path(__file__).parent / "fixtures" / "formats"
EXPECTED: dict[str, Any] = json.loads((FORMATS / "expected.json").read_text(encoding="utf-8"))
# Their kappa comes from random draws; their points do not.
RANDOM = ("mc-dropout", "swag")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of all files, since reading some of them writes beside them."""
    return Path(shutil.copytree(FORMATS, tmp_path / "formats"))


def stored_encoder() -> Encoder:
    """The trained network of most fixtures."""
    return Encoder.from_checkpoint(
        FORMATS / "encoder.safetensors", Encoder(backbone(), torch.nn.Linear(5, 3)), head="head"
    ).eval()


def inputs() -> Tensor:
    return torch.from_numpy(np.load(FORMATS / "inputs.npz")["inputs"])


def images() -> Tensor:
    return torch.from_numpy(np.load(FORMATS / "images.npz")["images"]).float() / 255


def queries() -> Items:
    stored = np.load(FORMATS / "queries.npz")
    arrays = (stored[name] for name in ("mean", "kappa", "uncertainty", "variance"))
    return Items(*arrays, str(stored["source"]))


def check(embedding: Any, expected: dict[str, Any], names: tuple[str, ...] = ()) -> None:
    """Compare what was computed with float32 on possibly another machine."""
    for name in names or ("point", "mean", "kappa", "uncertainty"):
        assert_allclose(
            getattr(embedding, name).numpy(), np.array(expected[name]), rtol=1e-3, atol=1e-5, err_msg=name
        )


def test_encoder_with_an_architecture_and_by_name() -> None:
    network = stored_encoder()
    assert network.fingerprint() == EXPECTED["encoder"]["fingerprint"]
    with torch.no_grad():
        assert_allclose(network.raw(inputs()), EXPECTED["encoder"]["raw"], rtol=1e-4, atol=1e-6)
    named = Encoder.from_checkpoint(
        FORMATS / "n-digit.safetensors", "n-digit", dim=3, digits=1, channels=(2, 3)
    )
    assert named.dim == 3


@pytest.mark.parametrize("name", EXPECTED["lam"])
def test_posteriors_of_all_structures_and_with_a_confidence(name: str) -> None:
    expected = EXPECTED["lam"][name]
    lam = LAM.load(FORMATS / "lam" / f"{name}.safetensors", stored_encoder())
    check(lam.embed(inputs()), expected)
    assert lam.fingerprint() == expected["fingerprint"]
    assert (lam.n_effective, lam.prior_precision) == (expected["n_effective"], expected["prior_precision"])
    assert (lam.confidence is not None) == (name == "confidence")
    assert lam.loss == LOSS
    again = LAM.load(FORMATS / "lam" / f"{name}.safetensors", stored_encoder(), LOSS)
    assert again.fingerprint() == lam.fingerprint()
    with pytest.raises(ValueError, match="fitted with another"):
        LAM.load(FORMATS / "lam" / f"{name}.safetensors", stored_encoder(), replace(LOSS, margin=0.8))


@pytest.mark.parametrize("name", EXPECTED["network"])
def test_posteriors_over_several_layers(name: str) -> None:
    expected = EXPECTED["network"][name]
    path = FORMATS / "network" / f"{name}.safetensors"
    lam = NetworkLAM.load(path, stored_encoder(), LOSS)
    check(lam.embed(inputs()), expected)
    assert lam.fingerprint() == expected["fingerprint"]
    with pytest.raises(ValueError, match="another loss"):
        NetworkLAM.load(path, stored_encoder(), replace(LOSS, margin=0.8))


def test_the_sums_of_a_fit_over_several_layers_are_taken_up(folder: Path) -> None:
    read: list[int] = []

    class Counting(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            read.append(1)
            return super().__iter__()

    lam = NetworkLAM(stored_encoder(), LOSS, layers="all", prior_precision=3.0)
    lam.fit(Counting([clusters(24), clusters(24, 1)]), cache=folder / "network" / "cache", check_mode=False)
    check(lam.embed(inputs()), EXPECTED["network"]["all"])
    assert read


def test_the_state_of_a_training_with_a_posterior_goes_on_to_the_same_losses() -> None:
    network = encoder(seed=1).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-3)
    online = OnlineLAM(network, optimizer, LOSS, 300, memory=0.1, warmup=2)
    online.load_state_dict(torch.load(FORMATS / "online.pt", weights_only=True))
    assert online.steps == 4
    online.encoder.eval()
    check(online.posterior().embed(inputs()), EXPECTED["online"])
    online.encoder.train()
    losses = [online.step(*clusters(16, seed)) for seed in (4, 5)]
    assert_allclose(losses, EXPECTED["online"]["losses"], rtol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_checkpoints_of_every_learned_method(name: str, folder: Path) -> None:
    expected = EXPECTED["training"][name]
    learner = methods.make(name, **METHODS[name]).learner([encoder(1)], Setup(LOSS, 24, 1e-3))
    place = folder / "training" / name
    load_best(learner, place)
    embedder = learner.embedder(FitData([clusters(24)], [clusters(16, 1)]))
    check(embedder.embed(inputs()), expected, ("point",) if name in RANDOM else ())
    # The same call finds the training finished: it neither refuses the folder nor begins anew.
    before = (place / "last.safetensors").read_bytes()
    data = (Dataset(*clusters(24), batch_size=8), Dataset(*clusters(16, 1), batch_size=8))
    options = TrainingOptions(epochs=2, batch_size=8, learning_rate=0.02, weight_decay=1e-3)
    trained = train(learner, *data, options, place, seed=5, progress=False)
    assert trained.best_epoch == expected["best_epoch"]
    assert (place / "last.safetensors").read_bytes() == before


def test_cached_features_are_taken_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = stored_encoder()
    x, labels = clusters(24)
    calls = []
    features = network.features
    monkeypatch.setattr(network, "features", lambda batch: calls.append(len(batch)) or features(batch))
    loader = [(x[:12], labels[:12]), (x[12:], labels[12:])]
    collected = LAM(network, LOSS).features(loader, folder=folder / "features")
    assert calls == [12], "only the first batch is computed again, to compare it"
    assert_allclose(collected.features, EXPECTED["features"]["features"], rtol=1e-6)
    assert collected.labels.tolist() == EXPECTED["features"]["labels"]


def test_model_folders_of_features_a_name_and_an_architecture() -> None:
    expected = EXPECTED["models"]
    flat = ModelFolder.load(FORMATS / "models" / "features")
    check(flat.lam.embed(torch.tensor(expected["features"]["inputs"])), expected["features"])
    assert flat.takes_features
    assert (flat.class_names, flat.about) == (("ant", "bee"), {"data": {"train": "h"}})
    assert {name: len(rows) for name, rows in flat.seen.items()} == {"train": 3, "validation": 2}
    named = ModelFolder.load(FORMATS / "models" / "named")
    check(named.lam.embed(images()), expected["named"])
    assert named.preparation is not None
    assert named.preparation.image_size == 28
    own = ModelFolder.load(FORMATS / "models" / "own", architecture=stored_encoder)
    check(own.lam.embed(inputs()), expected["own"])


def test_hub_folder() -> None:
    check(load_folder(FORMATS / "hub", stored_encoder()).embed(inputs()), EXPECTED["hub"])


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_indexes_of_every_kind_with_their_calibrations(kind: str, mmap: bool) -> None:
    if kind != "flat":
        pytest.importorskip("faiss")
    index = retrieval.load(FORMATS / "index" / kind, mmap=mmap)
    expected = EXPECTED["index"][kind]
    answers = index.query(queries(), k=3, abstain=True)
    assert answers.ids.tolist() == expected["ids"]
    assert_allclose(answers.similarity, expected["similarity"], rtol=1e-4)
    assert_allclose(answers.probability, expected["probability"], rtol=1e-4)
    assert answers.answered.tolist() == expected["answered"]
    assert [list(map(str, each)) for each in index.credible_sets(queries())] == expected["sets"]
    assert index.calibrations.drift is not None
    assert index.calibrations.drift.update(queries().kappa).seen == 10


def test_shards() -> None:
    expected = EXPECTED["index"]["shards"]
    answers = retrieval.open_shards(FORMATS / "shards").query(queries(), k=3)
    assert answers.ids.tolist() == expected["ids"]
    assert_allclose(answers.similarity, expected["similarity"], rtol=1e-4)
    assert len(retrieval.open_shards(FORMATS / "one-shard")) == 4


def test_exported_index() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(FORMATS / "gallery.parquet")
    assert table.column_names == ["id", "kappa", "uncertainty", "mean", "variance"]
    assert table.schema.metadata[b"laplacian_metric.source"].decode() == queries().source


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "parquet"])
def test_files_of_embeddings(suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    embedded = Embedded.read(FORMATS / f"embeddings.{suffix}")
    expected = EXPECTED["commands"]["embeddings"]
    assert embedded.ids[:2] == ("ä0", "ä1")
    for name in ("mean", "kappa", "uncertainty"):
        assert_allclose(getattr(embedded.items, name), np.array(expected[name]), rtol=1e-4, atol=1e-6)
    assert_allclose(embedded.point, np.array(expected["point"]), rtol=1e-4, atol=1e-6)
    model = ModelFolder.load(FORMATS / "models" / "features")
    assert embedded.items.source == model.lam.fingerprint()


def test_result_of_an_evaluation() -> None:
    result = read_result(FORMATS / "evaluation.json")
    assert (result.name, result.seed) == ("features", 0)
    assert result.values["recall@1"] == EXPECTED["commands"]["recall@1"]


def test_what_a_training_by_command_keeps(folder: Path) -> None:
    kept, expected = folder / "trained", EXPECTED["commands"]
    model = ModelFolder.load(kept / "laplace")
    check(model.lam.embed(images()), expected["laplace"])
    network = Encoder.from_checkpoint(
        kept / "deterministic" / "encoder.safetensors", "n-digit", dim=3, digits=1, channels=(2, 3)
    )
    with torch.no_grad():
        assert_allclose(network.raw(images()), expected["deterministic"], rtol=1e-4, atol=1e-6)
    before = (kept / "pfe" / "model" / "seed0" / "best.safetensors").read_bytes()
    cell = runs.fitted("model", 0, cells_dir=kept / "pfe" / "cells", work=kept / "pfe", progress=False)
    check(cell.embed(images()), expected["pfe"])
    assert (kept / "pfe" / "model" / "seed0" / "best.safetensors").read_bytes() == before


def test_the_encoder_can_be_written_again(tmp_path: Path) -> None:
    save_encoder(stored_encoder(), tmp_path / "again.safetensors")
    read: Callable[..., Encoder] = Encoder.from_checkpoint
    again = read(tmp_path / "again.safetensors", Encoder(backbone(), torch.nn.Linear(5, 3)), head="head")
    assert again.fingerprint() == EXPECTED["encoder"]["fingerprint"]


def test_every_file_has_a_test() -> None:
    """A file that nobody reads would not stand for its format."""
    text = Path(__file__).read_text(encoding="utf-8")
    for path in FORMATS.iterdir():
        assert path.stem in text or path.name in text, path.name
    assert_array_equal(sorted(EXPECTED["training"]), sorted(METHODS))


@pytest.mark.slow
def test_the_formats_of_today_hold_the_same_numbers(tmp_path: Path, long_form: bool) -> None:
    """The script that wrote the files writes today's formats; whoever changes one keeps what it writes before."""
    now = tmp_path / "now"
    make_formats.write_all(now, without=() if long_form else ("training", "commands"))
    expected = json.loads((now / "expected.json").read_text(encoding="utf-8"))
    for name in ("encoder", "lam", "network", "online", "features", "models", "hub"):
        same(expected[name], EXPECTED[name], name)
    for name, posterior in EXPECTED["lam"].items():
        check(LAM.load(now / "lam" / f"{name}.safetensors", stored_encoder()).embed(inputs()), posterior)
    flat = ModelFolder.load(now / "models" / "features")
    check(
        flat.lam.embed(torch.tensor(EXPECTED["models"]["features"]["inputs"])), EXPECTED["models"]["features"]
    )
    answers = retrieval.load(now / "index" / "flat").query(queries(), k=3, abstain=True)
    assert answers.ids.tolist() == EXPECTED["index"]["flat"]["ids"]
    if long_form:
        assert read_result(now / "evaluation.json").values["recall@1"] == EXPECTED["commands"]["recall@1"]


def same(values: Any, expected: Any, where: str) -> None:
    """Compare nested values, numbers but for rounding."""
    if isinstance(expected, dict):
        assert values.keys() == expected.keys(), where
        for name in expected:
            same(values[name], expected[name], f"{where}/{name}")
    elif isinstance(expected, str):
        assert values == expected, where
    else:
        assert_allclose(np.array(values), np.array(expected), rtol=1e-3, atol=1e-5, err_msg=where)
