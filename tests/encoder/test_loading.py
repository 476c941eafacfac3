"""Encoders by name with weights: which head they get, and that a trained one is never dropped in silence."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from laplacian_metric.encoder import Encoder, save_encoder
from laplacian_metric.encoder.zoo import load_encoder


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A trained encoder of another size than its name's default, as a training with options keeps it."""
    encoder = Encoder.from_name("n-digit", dim=5, seed=0, digits=1)
    encoder.recipe = None
    save_encoder(encoder, tmp_path / "encoder.safetensors")
    return tmp_path / "encoder.safetensors"


@pytest.mark.parametrize("dim", [None, 5])
def test_a_trained_head_is_kept_whatever_its_size(weights: Path, dim: int | None) -> None:
    loaded = load_encoder("n-digit", weights, dim=dim, options={"digits": 1})
    assert loaded.head == "trained"
    assert torch.equal(loaded.encoder.head.weight, load_file(weights)["head.weight"])


def test_a_trained_head_of_another_size_than_asked_for_is_said_to_be_left_out(
    weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        loaded = load_encoder("n-digit", weights, dim=7, options={"digits": 1})
    assert (loaded.head, loaded.encoder.dim) == ("new", 7)
    assert "the head in encoder.safetensors has 5 dimensions and not 7: it is left out" in caplog.text


def test_what_does_not_fit_is_no_reason_to_drop_the_head(weights: Path) -> None:
    tensors = load_file(weights)
    del tensors["head.bias"]
    save_file(tensors, weights)
    with pytest.raises(ValueError, match=r"head\.bias"):
        load_encoder("n-digit", weights, options={"digits": 1})


def test_a_published_classifier_is_no_head_to_embed_with(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    for name in ("resnet18", "vit_tiny_patch16_224"):  # heads called fc and head
        path = tmp_path / f"{name}.pth"
        torch.save(timm.create_model(name, num_classes=12).state_dict(), path)
        loaded = load_encoder(f"timm:{name}", path, options={"num_classes": 12})
        assert (loaded.head, loaded.encoder.dim) == ("classifier", 12)
        assert load_encoder(f"timm:{name}", path, dim=6, options={"num_classes": 12}).head == "new"
    encoder = Encoder.from_name("timm:resnet18", dim=6, seed=0)
    save_encoder(encoder, tmp_path / "ours.safetensors")
    assert load_encoder("timm:resnet18", tmp_path / "ours.safetensors").head == "trained"
