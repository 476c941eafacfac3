"""A small model of images, one of features, and an index, made once by the commands themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.data import load
from laplacian_metric.encoder import Encoder, save_encoder
from tests.cli.running import clusters, photos, worked


@dataclass(frozen=True)
class Place:
    """A folder with what the tests of commands begin with; nobody writes into it."""

    root: Path

    @property
    def photos(self) -> Path:
        """Four classes of 30 images of clothes each."""
        return self.root / "photos"

    @property
    def digits(self) -> Path:
        """Images of something else, of two classes."""
        return self.root / "digits"

    @property
    def weights(self) -> Path:
        """Of an encoder for them."""
        return self.root / "encoder.safetensors"

    @property
    def model(self) -> Path:
        """Of images."""
        return self.root / "model"

    @property
    def features(self) -> Path:
        """Features and labels."""
        return self.root / "features.npz"

    @property
    def test_features(self) -> Path:
        """Others of the same classes, with ids."""
        return self.root / "test.npz"

    @property
    def stranger_features(self) -> Path:
        """Features from elsewhere, without labels."""
        return self.root / "strangers.npy"

    @property
    def flat_model(self) -> Path:
        """Of features."""
        return self.root / "flat-model"

    @property
    def index(self) -> Path:
        """Of the features, calibrated."""
        return self.root / "index"

    @property
    def queries(self) -> Path:
        """What embed made of other features."""
        return self.root / "queries.npz"


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Everything that commands are tried on."""
    new_place = Place(tmp_path_factory.mktemp("commands"))
    photos(new_place.photos, 30)
    photos(new_place.digits, 6, classes=2, name="sample-mnist", split="test")
    save_encoder(trained_encoder(), new_place.weights)
    features, labels = clusters(400)
    np.savez(new_place.features, features=features, labels=labels)
    others, classes = clusters(240, seed=1)
    np.savez(new_place.test_features, features=others, labels=classes, ids=[f"t{row}" for row in range(240)])
    np.save(new_place.stranger_features, 3 * np.ones((20, 6), dtype=np.float32) + clusters(20, seed=2)[0])
    worked("fit", "--weights", new_place.weights, "--data", new_place.photos, "--out", new_place.model)
    worked(
        *("fit", "--features", new_place.features, "--dim", 4, "--steps", 100, "--out", new_place.flat_model),
        *("--structure", "lowrank", "--rank", 5),
    )
    worked(
        *(
            "index",
            new_place.flat_model,
            new_place.features,
            "--calibrate",
            new_place.test_features,
            "--alpha",
            0.2,
        ),
        *("--out", new_place.index),
    )
    worked("embed", new_place.flat_model, new_place.test_features, "--out", new_place.queries)
    return new_place


def trained_encoder() -> Encoder:
    """A network that has seen a few batches of clothes."""
    sample = load("sample-fashion-mnist", "train+validation")
    rows = (sample.labels < 4).nonzero()[-240:, 0]
    images, labels = sample.floats()[rows], sample.labels[rows]
    encoder = Encoder.from_name("fashion-mnist", dim=3, seed=0)
    loss = ContrastiveLoss(margin=0.7, negatives="active")
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    for batch in torch.randperm(len(rows), generator=generator).split(60) * 2:
        optimizer.zero_grad()
        loss(encoder.raw(images[batch]), Pairs.from_labels(labels[batch])).backward()
        optimizer.step()
    return encoder.eval()
