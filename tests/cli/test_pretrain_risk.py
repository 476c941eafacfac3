"""`lam pretrain-risk`: heads for features, model folders and encoders by name, and what can be wrong with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from laplacian_metric.data import load
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.methods import risk
from tests.cli.conftest import Place
from tests.cli.running import clusters, refused, worked


def noisy(path: Path, count: int = 600) -> Path:
    features, labels = clusters(count, spread=0.6)
    np.savez(path, features=features, labels=labels)
    return path


def test_a_head_for_features(tmp_path: Path) -> None:
    features = noisy(tmp_path / "features.npz")
    done = worked("pretrain-risk", features, "--hidden", 16, "--out", tmp_path / "risk", "--json").json()
    head = risk.load(tmp_path / "risk")
    assert head.width == done["width"] == 6
    assert done["trained on"] == "540 items of 4 classes"
    assert 0 < done["measured"][0]["R-AUROC"] < 1
    assert head.card["measured"] == done["measured"]
    assert sum(path.stat().st_size for path in (tmp_path / "risk").iterdir()) < 20_000
    assert "--force" in refused("pretrain-risk", features, "--out", tmp_path / "risk")
    again = worked(
        *("pretrain-risk", features, "--validation", features, "--divide", "classes"),
        *("--out", tmp_path / "risk", "--force"),
    )
    assert "plain distance to the nearest item" in again.out


def test_a_head_belongs_to_the_encoder_of_a_model_folder(place: Place, tmp_path: Path) -> None:
    worked(
        "pretrain-risk",
        place.model,
        "--data",
        place.photos,
        "--hidden",
        8,
        "--neighbours",
        5,
        "--out",
        tmp_path / "risk",
    )
    encoder = ModelFolder.load(place.model).encoder
    data = load("folder", "train", path=place.photos, image_size=28, channels=1, preprocessing="unit")
    embedding, uncertainty = risk.with_head(encoder, risk.load(tmp_path / "risk"))(data.floats()[:7])
    assert torch.equal(embedding, encoder(data.floats()[:7]))
    assert uncertainty.shape == (7,)


def test_a_head_for_an_encoder_by_name(place: Place, tmp_path: Path) -> None:
    options = [
        "--weights",
        place.weights,
        "--data",
        place.photos,
        "--hidden",
        8,
        "--cache",
        tmp_path / "cache",
    ]
    worked("pretrain-risk", "fashion-mnist", *options, "--target", "pair-loss", "--out", tmp_path / "risk")
    assert risk.load(tmp_path / "risk").target == "pair-loss"
    assert (tmp_path / "cache" / "train").is_dir()


def test_mistakes_are_named(place: Place, tmp_path: Path) -> None:
    features = noisy(tmp_path / "features.npz", 40)
    out = ("--out", tmp_path / "risk")
    assert "leave --data out" in refused("pretrain-risk", features, "--data", place.photos, *out)
    assert "--data is needed" in refused("pretrain-risk", place.model, *out)
    assert "no encoder is called 'resnet49'" in refused(
        "pretrain-risk", "resnet49", "--data", place.photos, *out
    )
    assert "neighbours is 50" in refused("pretrain-risk", features, "--neighbours", 50, *out)
