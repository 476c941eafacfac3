"""A small model of images, one of features, and an index, made once by the commands themselves when they are needed."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.data import load
from laplacian_metric.encoder import Encoder, save_encoder
from tests.cli.running import clusters, photos, worked


class Place:
    """A folder with what the tests of commands begin with; nobody writes into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        features, labels = clusters(400)
        self.features = root / "features.npz"
        np.savez(self.features, features=features, labels=labels)
        features, labels = clusters(240, seed=1)
        self.test_features = root / "test.npz"  # of the same classes, with ids
        np.savez(self.test_features, features=features, labels=labels, ids=[f"t{row}" for row in range(240)])
        self.ood_features = root / "ood.npy"  # from elsewhere, without labels
        np.save(self.ood_features, 3 * np.ones((20, 6), dtype=np.float32) + clusters(20, seed=2)[0])

    @cached_property
    def photos(self) -> Path:
        """Four classes of 30 images of clothes each."""
        return photos(self.root / "photos", 30)

    @cached_property
    def digits(self) -> Path:
        """Images of something else, of two classes."""
        return photos(self.root / "digits", 6, classes=2, name="sample-mnist", split="test")

    @cached_property
    def weights(self) -> Path:
        """Of an encoder for them."""
        save_encoder(trained_encoder(), self.root / "encoder.safetensors")
        return self.root / "encoder.safetensors"

    @cached_property
    def model(self) -> Path:
        """Of images."""
        worked(
            *("fit", "--weights", self.weights, "--data", self.photos),
            *("--out", self.root / "model"),
        )
        return self.root / "model"

    @cached_property
    def flat_model(self) -> Path:
        """Of features."""
        worked(
            *(
                "fit",
                "--features",
                self.features,
                "--dim",
                4,
                "--steps",
                100,
                "--out",
                self.root / "flat-model",
            ),
            *("--structure", "lowrank", "--rank", 5),
        )
        return self.root / "flat-model"

    @cached_property
    def index(self) -> Path:
        """Of the features, with a guarantee."""
        worked(
            *("index", self.flat_model, self.features, "--guarantee", self.test_features, "--error", 0.2),
            *("--out", self.root / "index"),
        )
        return self.root / "index"

    @cached_property
    def queries(self) -> Path:
        """What embed made of other features."""
        worked("embed", self.flat_model, self.test_features, "--out", self.root / "queries.npz")
        return self.root / "queries.npz"


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Everything that commands are tried on."""
    return Place(tmp_path_factory.mktemp("commands"))


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
