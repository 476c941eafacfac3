"""Small stand-ins for what examples and pages are given: photographs, files of weights, exported features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

COLOURS = {"apple": (200, 40, 40), "lime": (60, 180, 60), "plum": (90, 40, 160)}
COUNTS = {"train": 6, "val": 5, "test": 5}


def photos(folder: Path, side: int = 40) -> Path:
    """Noisy images of one colour for each class, in folders for splits and classes."""
    generator = np.random.default_rng(0)
    for split, count in COUNTS.items():
        for name, colour in COLOURS.items():
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(count):
                pixels = np.array(colour) + 40 * generator.normal(size=(side, side, 3))
                image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
                image.save(place / f"{number}.png")
    return folder


def weights(name: str, folder: Path) -> Path:
    """A file as its publisher's, with random weights."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    if name.startswith("tf_efficientnet"):
        import timm

        from tests.encoder import published

        torch.save(published.weights_of(timm.create_model(name)), folder / "lite.pth")
        return folder / "lite.pth"
    from torchvision import models

    model: nn.Module = models.get_model(name, weights=None)
    save_file(model.state_dict(), folder / "weights.safetensors")
    return folder / "weights.safetensors"


def features(
    count: int = 200, classes: int = 4, width: int = 16
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features (N, H) around one centre for each class, and the classes."""
    generator = np.random.default_rng(0)
    labels = np.arange(count) % classes
    centres = np.eye(classes).repeat(width // classes, axis=1)
    noise = 0.5 * generator.normal(size=(count, width))
    return (centres[labels] + noise).astype(np.float32), labels.astype(np.int64)
