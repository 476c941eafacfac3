"""The scripts behind the FashionMNIST table, on a few images of the embedded sample."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from experiments.fashion_mnist import evaluate, table, train, train_online
from laplacian_metric import data
from laplacian_metric.data import embedded_sample

SHARES = {"train": slice(0, 300), "validation": slice(300, 400)}


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for by name is cut out of the embedded sample."""

    def load(name: str, split: str, data_dir: Path) -> data.LabelledImages:
        inner = name == "fashion-mnist" and split != "test"
        sample = embedded_sample(name, "train" if inner else "test")
        rows = SHARES.get(split, slice(0, 100)) if inner else slice(0, 100)
        return data.from_arrays(sample.images[rows], sample.labels[rows], split=split)

    monkeypatch.setattr(data, "load", load)


def settings(epochs: int) -> train.Settings:
    return train.Settings(seed=0, epochs=epochs, batch_size=50)


def test_a_run_that_is_continued_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train.train(settings(2), tmp_path, whole, "net")
    for epochs in (1, 2):
        train.train(settings(epochs), tmp_path, parts, "net")
    one, other = (load_file(folder / "net_last.safetensors") for folder in (whole, parts))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    log = json.loads((parts / "net.json").read_text())
    assert [entry["epoch"] for entry in log["epochs"]] == [1, 2]
    with pytest.raises(ValueError, match="other settings"):
        train.train(train.Settings(seed=1, epochs=3, batch_size=50), tmp_path, parts, "net")


def test_an_online_run_that_is_continued_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_online.train(settings(2), "default", 0.01, tmp_path, whole)
    for epochs in (1, 2):
        train_online.train(settings(epochs), "default", 0.01, tmp_path, parts)
    name = "online_default_0.01_seed0_last.pt"
    one, other = (torch.load(folder / name, weights_only=True) for folder in (whole, parts))
    for key, tensor in one["online"]["encoder"].items():
        assert torch.equal(tensor, other["online"]["encoder"][key])
    assert torch.equal(one["online"]["running"]["curvature"], other["online"]["running"]["curvature"])


def test_cells_are_computed_once_and_make_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nets, cells = tmp_path / "nets", tmp_path / "cells"
    train.train(settings(table.COMPARED_EPOCH), tmp_path, nets, "active_seed0")
    train_online.train(settings(1), "default", 0.01, tmp_path, nets)
    monkeypatch.setattr(evaluate, "SAMPLES", 3)
    wanted = (evaluate.Posterior(), evaluate.Posterior("lowrank", rank=4, norm=False))
    for network in ("active_seed0", "online_default_0.01_seed0"):
        evaluate.keep_log(nets / f"{network}.safetensors", cells)
        evaluate.run(nets / f"{network}.safetensors", tmp_path, cells, wanted)
    names = {path.stem for path in cells.glob("*.json")}
    assert "online_default_0.01_seed0__running" in names
    assert "active_seed0__lowrank4_fixed_nonorm_marginal" in names
    cell = json.loads((cells / "active_seed0__diag_fixed_marginal.json").read_text())
    assert set(cell["scores"]) == {"1/kappa", "variance", "confidence"}
    assert 0 <= cell["retrieval_ece"] <= 1

    def never(*_: object) -> None:
        raise AssertionError("a cell that is there was computed again")

    monkeypatch.setattr(evaluate, "measure", never)
    evaluate.run(nets / "active_seed0.safetensors", tmp_path, cells, wanted)
    monkeypatch.setattr("sys.argv", ["table", "--cells", str(cells), "--out", str(tmp_path)])
    table.main()
    text = (tmp_path / "fashion_mnist.md").read_text()
    assert text.strip() in capsys.readouterr().out
    auroc = cell["scores"]["1/kappa"]["auroc"]
    assert f"| trained, then post-hoc | diag fixed marginal | 1/kappa | 1 | {auroc:.3f} |" in text
