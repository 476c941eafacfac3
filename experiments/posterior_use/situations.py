"""The situations: frozen features, a small head that is trained anew for every seed, a gallery and queries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import experiments.sets  # noqa: F401 (makes published data sets known)
from experiments.trust.features import IMAGE_SETS, Arrays, balanced, image_set_features
from experiments.trust.settings import Setting, saved_head
from hessians import ContrastiveLoss
from laplacian_metric import data
from laplacian_metric.core.labelled_gallery import Head
from laplacian_metric.encoder.heads import train_head

DIM = 32
STEPS = 300
VALIDATION, TEST, OOD = 300, 1500, 500
FAR = {"cifar": ("mnist", "fashion"), "fashion": ("mnist", "cifar"), "quickdraw": ("fashion", "cifar")}


def trained_head(h: NDArray[Any], labels: NDArray[Any], seed: int) -> torch.nn.Linear:
    """Return a head (H -> 32) trained with the contrastive loss on labelled features."""
    codes = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    return train_head(
        torch.from_numpy(h.astype(np.float32)),
        codes,
        ContrastiveLoss(margin=0.7, negatives="active"),
        DIM,
        steps=STEPS,
        images_per_class=8,
        generator=torch.Generator().manual_seed(seed),
    )


def drawn(content: Arrays, most: int, seed: int) -> Arrays:
    """Return so many rows of a set, drawn at random."""
    rows = np.random.default_rng(seed).permutation(len(content["h"]))[:most]
    return {name: values[rows] for name, values in content.items()}


def part(name: str, content: Arrays) -> Arrays:
    """Return the arrays of a part of a setting."""
    return {f"{name}:h": content["h"], f"{name}:labels": content["labels"]}


def far_parts(root: Path, cache: Path, source: str, seed: int) -> Arrays:
    """Return OOD queries of other data sets."""
    sets = {name: image_set_features(root, cache, f"{name}-test") for name in FAR[source]}
    return {f"far/{name}:h": drawn(content, OOD, seed)["h"] for name, content in sets.items()}


def few_labels(
    root: Path, cache: Path, seed: int, *, source: str, per_class: int, labels: str = "clean"
) -> Arrays:
    """Return a gallery of ``per_class`` labelled images, on which the head is trained; other images are queries.

    With ``labels="worst"`` (CIFAR-10N) the gallery's labels are those of people, wrong where one of three was wrong;
    the queries have the right ones, so that an answer may be wrong because its item is named wrongly.
    """
    train = image_set_features(root, cache, f"{source}-train")
    queries = drawn(train, VALIDATION, seed)
    rest = np.setdiff1d(
        np.arange(len(train["h"])), np.random.default_rng(seed).permutation(len(train["h"]))[:VALIDATION]
    )
    names = train["labels"] if labels == "clean" else human_labels(root, source, labels)
    rows = rest[balanced(train["labels"][rest], per_class, seed)]
    gallery = {"h": train["h"][rows], "labels": names[rows]}
    head = trained_head(gallery["h"], gallery["labels"], seed)
    test = drawn(image_set_features(root, cache, f"{source}-test"), TEST, seed)
    parts = saved_head(head) | part("gallery", gallery) | part("validation", queries) | part("test", test)
    return parts | far_parts(root, cache, source, seed)


def human_labels(root: Path, source: str, kind: str) -> NDArray[np.int64]:
    """Return people's labels of the training images whose features are kept, in their order."""
    name, split, per_class = IMAGE_SETS[f"{source}-train"]
    clean = np.asarray(data.load(name, split, data_dir=root).labels)
    return np.asarray(data.load(name, split, data_dir=root, labels=kind).labels)[
        balanced(clean, per_class, 0)
    ]


def few_items(root: Path, cache: Path, seed: int, *, per_class: int) -> Arrays:
    """Return sketches of classes that nothing was trained on, with ``per_class`` items of each in the gallery."""
    train, validation, test = (
        image_set_features(root, cache, f"quickdraw-{split}") for split in ("train", "validation", "test")
    )

    def split(content: Arrays, most: int) -> tuple[Arrays, Arrays]:
        order = balanced(content["labels"], 10**9, seed)
        items = order[balanced(content["labels"][order], per_class, seed)]
        queries = np.random.default_rng(seed).permutation(np.setdiff1d(order, items))[:most]
        gallery, others = (
            {name: values[rows] for name, values in content.items()} for rows in (items, queries)
        )
        return gallery, others

    gallery, queries = split(test, TEST)
    calibration, calibrating = split(validation, VALIDATION)
    parts = saved_head(trained_head(train["h"], train["labels"], seed)) | part("gallery", gallery)
    parts |= part("test", queries) | part("calibration", calibration) | part("validation", calibrating)
    parts |= {"training:h": train["h"], "training:labels": train["labels"]}
    return parts | far_parts(root, cache, "quickdraw", seed)


SITUATIONS: dict[str, Callable[[Path, Path, int], Arrays]] = {
    **{
        f"{source}, {count} labels a class": partial(few_labels, source=source, per_class=count)
        for source in ("cifar", "fashion")
        for count in (5, 20, 100)
    },
    **{f"unseen sketches, {count} items a class": partial(few_items, per_class=count) for count in (1, 5)},
    "cifar, 100 labels a class, wrong ones among them": partial(
        few_labels, source="cifar", per_class=100, labels="worst"
    ),
}


def situation(root: Path, cache: Path, name: str, seed: int) -> Setting:
    """Return a situation with its arrays."""
    parts = SITUATIONS[name](root, cache, seed)
    return Setting(name, seed, Head(parts.pop("head:weight"), parts.pop("head:bias")), parts)
