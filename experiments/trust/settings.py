"""The settings: a frozen encoder, a gallery, validation and test queries, and OOD queries near and far.

Each is computed once and kept outside of the repository, as features and the encoder's linear head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.trust.features import (
    CHANGES,
    Arrays,
    balanced,
    cached,
    changed_features,
    image_set_features,
    images,
    minilm_features,
)
from hessians import ContrastiveLoss, Pairs
from laplacian_metric.encoder.heads import train_head, whitening_head
from laplacian_metric.trust.head import Head

MOST_OOD = 500
MOST_TEST = 2000
OUT = (7, 8, 9)  # the classes of ten that are held out


@dataclass(frozen=True)
class Setting:
    """A setting with its arrays, by the name of a part: "gallery", "validation", "test", "training" (features only),
    "calibration" (a gallery of other classes, where the setting is zero-shot), "near/..." and "far/...": OOD queries.
    """

    name: str
    seed: int
    head: Head | None
    parts: dict[str, NDArray[Any]]

    def h(self, part: str) -> NDArray[Any]:
        """Return the features of a part in float32."""
        return self.parts[f"{part}:h"].astype(np.float32)

    def labels(self, part: str) -> NDArray[Any]:
        """Return the labels of a part."""
        return self.parts[f"{part}:labels"]

    @property
    def zero_shot(self) -> bool:
        """Whether the classes of the gallery are others than those of the calibration."""
        return "calibration:h" in self.parts

    def ood(self, kind: str = "") -> list[str]:
        """Return the names of the OOD parts, "near" or "far" or all."""
        return sorted(
            {name.split(":")[0] for name in self.parts if name.startswith(kind or ("near/", "far/"))}
        )


def pooled_network(channels: int) -> nn.Sequential:
    """Return three convolutions and two poolings: 28 or 32 pixels a side -> 1,024 or 1,600 features."""
    layers = (nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU())
    return nn.Sequential(*layers, nn.Conv2d(64, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())


def lam_network(channels: int) -> nn.Sequential:
    """Return the LAM paper's network for FashionMNIST: 9,216 features."""
    layers = (nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU())
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten())


def trained(
    network: Callable[[int], nn.Sequential], x: Tensor, labels: NDArray[Any], dim: int, steps: int, seed: int
) -> nn.Sequential:
    """Return a backbone and a linear head, trained with the contrastive loss on batches of 128 images."""
    torch.manual_seed(seed)
    backbone = network(x.shape[1])
    model = nn.Sequential(backbone, nn.Linear(backbone(x[:1]).shape[1], dim))
    loss = ContrastiveLoss(margin=0.7, negatives="active")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = np.random.default_rng(seed)
    classes = np.unique(labels)
    for _ in range(steps):
        chosen = generator.permutation(classes)[:16]
        count = 128 // len(chosen)
        rows = np.concatenate(
            [generator.choice(np.flatnonzero(labels == label), count, replace=True) for label in chosen]
        )
        optimizer.zero_grad()
        loss(model(x[rows]), Pairs.from_labels(torch.from_numpy(labels[rows].astype(np.int64)))).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.inference_mode()
def of_network(model: nn.Sequential, x: Tensor) -> NDArray[np.float16]:
    """Return the features (N, H) of images."""
    return torch.cat([model[0](block).half() for block in x.split(250)]).numpy()


def saved_head(head: nn.Module) -> Arrays:
    """Return the arrays of a head."""
    linear = Head.of(head)
    assert linear is not None
    return {"head:weight": linear.weight.astype(np.float32), "head:bias": linear.bias.astype(np.float32)}


def at(x: Tensor, side: int, channels: int) -> Tensor:
    """Return images of another size and number of channels."""
    x = x if x.shape[-1] == side else F.interpolate(x, (side, side), mode="bilinear", antialias=True)
    return x.expand(-1, channels, -1, -1) if x.shape[1] == 1 else x


def network_setting(
    root: Path,
    seed: int,
    *,
    network: Callable[[int], nn.Sequential],
    source: str,
    out: tuple[int, ...],
    far: tuple[str, ...],
    per_class: int,
    new_gallery: int,
    dim: int,
    steps: int,
) -> Arrays:
    """Return a setting of a network trained here; the gallery is its training images, or ``new_gallery`` of a class."""
    x, labels = images(root, source, "train", 700, seed)
    test_x, test_labels = images(root, source, "test", 250, seed)
    inside = ~np.isin(labels, out)
    order = np.flatnonzero(inside)
    rank = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        rank[labels == label] = np.arange((labels == label).sum())
    train = order[rank[order] < per_class]
    validation = order[(rank[order] >= per_class) & (rank[order] < per_class + 150)]
    gallery = order[rank[order] >= 700 - new_gallery] if new_gallery else train
    model = trained(network, x[train], labels[train], dim, steps, seed)
    parts = saved_head(model[1]) | {"training:h": of_network(model, x[train])}
    test = np.flatnonzero(~np.isin(test_labels, out))[:MOST_TEST]
    for name, source_x, source_labels, rows in (
        ("gallery", x, labels, gallery),
        ("validation", x, labels, np.random.default_rng(seed).permutation(validation)[:1000]),
        ("test", test_x, test_labels, test),
    ):
        parts |= {f"{name}:h": of_network(model, source_x[rows]), f"{name}:labels": source_labels[rows]}
    if out:
        parts["near/held-out classes:h"] = of_network(model, test_x[np.isin(test_labels, out)][:MOST_OOD])
    for name, change in CHANGES.items():
        parts[f"far/{name}:h"] = of_network(model, change(test_x[test[-MOST_OOD:]]))
    for name in far:
        other = images(root, name, "test", 50 if name != "quickdraw" else 3, seed)[0][:MOST_OOD]
        parts[f"far/{name}:h"] = of_network(model, at(other, x.shape[-1], x.shape[1]))
    return parts


def frozen_setting(
    root: Path, cache: Path, *, source: str, head: str, out: tuple[int, ...], encoder: str = "lite0"
) -> Arrays:
    """Return a setting of a frozen encoder with a head by PCA, or trained on other images of the known classes."""
    features_of = partial(image_set_features, root, cache, encoder=encoder)
    train, test = (features_of(f"{source}-{split}") for split in ("train", "test"))
    other = {"fashion": "cifar", "cifar": "fashion"}[source]
    far = {name: features_of(name)["h"] for name in ("mnist-test", f"{other}-test", "quickdraw-test")}
    far |= {
        change: changed_features(root, cache, f"{source}-test", change, encoder)["h"] for change in CHANGES
    }
    parts = {f"far/{name}:h": spaced(h, MOST_OOD) for name, h in far.items()}
    in_distribution = ~np.isin(train["labels"], out)
    h, labels = train["h"][in_distribution], train["labels"][in_distribution]
    third = len(h) // 3
    features = torch.from_numpy(h[:third].astype(np.float32))
    if head == "pca":
        layer = whitening_head(features, 32)
    else:
        generator = torch.Generator().manual_seed(0)
        loss = ContrastiveLoss(margin=0.7, negatives="active")
        layer = train_head(
            features, torch.from_numpy(labels[:third]), loss, 32, steps=400, generator=generator
        )
    parts |= saved_head(layer) | {"training:h": h[:third]}
    parts |= {"gallery:h": h[third:-1000], "gallery:labels": labels[third:-1000]}
    parts |= {"validation:h": h[-1000:], "validation:labels": labels[-1000:]}
    inside = ~np.isin(test["labels"], out)
    parts |= {"test:h": test["h"][inside][:MOST_TEST], "test:labels": test["labels"][inside][:MOST_TEST]}
    return parts | {"near/held-out classes:h": test["h"][~inside][:MOST_OOD]}


def spaced(rows: NDArray[Any], most: int) -> NDArray[Any]:
    """Return at most so many rows, evenly spaced."""
    chosen: NDArray[Any] = rows[np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int))]
    return chosen


def halves(labels: NDArray[Any], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of a gallery and of queries: half of each class, in random order."""
    order = balanced(labels, 10**9, 0)
    rank = np.empty(len(labels), dtype=np.int64)
    size = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        rank[rows], size[rows] = np.arange(len(rows)), len(rows)
    first = rank[order] < size[order] // 2
    return order[first], order[~first][:most]


def zero_shot(
    validation: Arrays, test: Arrays, out_share: float, far: dict[str, NDArray[Any]], most: int = MOST_TEST
) -> Arrays:
    """Return the parts of a setting whose calibration has other classes than its gallery."""
    parts = {f"far/{name}:h": spaced(h, MOST_OOD) for name, h in far.items()}
    gallery, queries = halves(validation["labels"], 1000)
    parts |= {"calibration:h": validation["h"][gallery], "calibration:labels": validation["labels"][gallery]}
    parts |= {"validation:h": validation["h"][queries], "validation:labels": validation["labels"][queries]}
    classes = np.random.default_rng(0).permutation(np.unique(test["labels"]))
    held_out = np.isin(test["labels"], classes[: round(out_share * len(classes))])
    parts["near/held-out classes:h"] = spaced(test["h"][held_out], MOST_OOD)
    h, labels = test["h"][~held_out], test["labels"][~held_out]
    gallery, queries = halves(labels, most)
    parts |= {"gallery:h": h[gallery], "gallery:labels": labels[gallery]}
    return parts | {"test:h": h[queries], "test:labels": labels[queries]}


def contrastive_head(h: NDArray[Any], labels: NDArray[Any], dim: int = 64, steps: int = 400) -> nn.Linear:
    """Return a head trained on features and labels of any kind."""
    codes = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    loss = ContrastiveLoss(margin=0.7, negatives="active")
    generator = torch.Generator().manual_seed(0)
    features = torch.from_numpy(h.astype(np.float32))
    return train_head(features, codes, loss, dim, steps=steps, images_per_class=8, generator=generator)


def frozen_quickdraw(root: Path, cache: Path, encoder: str = "lite0") -> Arrays:
    """Return Quick, Draw! by a frozen encoder, zero-shot: a head trained on other classes."""
    features_of = partial(image_set_features, root, cache, encoder=encoder)
    train, validation, test = (features_of(f"quickdraw-{split}") for split in ("train", "validation", "test"))
    far = {name: features_of(f"{name}-test")["h"] for name in ("mnist", "fashion", "cifar")}
    head = contrastive_head(train["h"], train["labels"])
    return saved_head(head) | {"training:h": train["h"]} | zero_shot(validation, test, 0.25, far)


def quickdraw_network(root: Path, seed: int) -> Arrays:
    """Return Quick, Draw! by a small network trained here, zero-shot."""
    x, labels = images(root, "quickdraw", "train", 30, seed)
    model = trained(pooled_network, x, labels, 32, 300, seed)
    split = {}
    for name, per_class in (("validation", 60), ("test", 40)):
        part, part_labels = images(root, "quickdraw", name, per_class, seed)
        split[name] = {"h": of_network(model, part), "labels": part_labels}
    far = {
        name: of_network(model, images(root, name, "test", 50, seed)[0])
        for name in ("mnist", "fashion-mnist")
    }
    turned = images(root, "quickdraw", "test", 3, seed)[0]
    far |= {name: of_network(model, change(turned)) for name, change in CHANGES.items()}
    parts = saved_head(model[1]) | {"training:h": of_network(model, x)}
    return parts | zero_shot(split["validation"], split["test"], 0.25, far)


def frozen_grocery(root: Path, cache: Path, encoder: str = "lite0") -> Arrays:
    """Return photographs of fruit by a frozen encoder, zero-shot, with a PCA head."""
    features_of = partial(image_set_features, root, cache, encoder=encoder)
    content = features_of("grocery")
    classes = np.random.default_rng(1).permutation(np.unique(content["labels"]))
    of_test = np.isin(content["labels"], classes[6:])
    validation, test = (
        {name: values[rows] for name, values in content.items()} for rows in (~of_test, of_test)
    )
    far = {name: features_of(f"{name}-test")["h"] for name in ("mnist", "fashion", "cifar")}
    head = whitening_head(torch.from_numpy(validation["h"].astype(np.float32)), 32)
    return saved_head(head) | zero_shot(validation, test, 0.25, far)


def reuters_minilm(root: Path, cache: Path) -> Arrays:
    """Return newswires by MiniLM with a trained head; a third of the topics are held out."""
    content = minilm_features(root, cache, "reuters-test", 2500)
    topics, sizes = np.unique(content["labels"], return_counts=True)
    out = topics[np.argsort(-sizes)][2::3]
    inside = ~np.isin(content["labels"], out)
    near = spaced(content["h"][~inside], MOST_OOD)
    h, labels = content["h"][inside], content["labels"][inside]
    parts = saved_head(contrastive_head(h[:300], labels[:300])) | {"training:h": h[:300]}
    ranges = {"gallery": slice(300, 800), "validation": slice(800, 1100), "test": slice(1100, None)}
    for name, rows in ranges.items():
        parts |= {f"{name}:h": h[rows], f"{name}:labels": labels[rows]}
    parts["near/held-out topics:h"] = near
    return parts | {"far/glosses:h": minilm_features(root, cache, "wordnet", 9000)["h"][:MOST_OOD]}


def wordnet_minilm(root: Path, cache: Path) -> Arrays:
    """Return WordNet's glosses by MiniLM, whose rows are the embeddings; a quarter of the classes are held out."""
    content = minilm_features(root, cache, "wordnet", 9000)
    h, labels = content["h"], content["labels"]
    classes = np.random.default_rng(0).permutation(np.unique(labels))
    inside = ~np.isin(labels, classes[: len(classes) // 4])
    near = spaced(h[~inside], MOST_OOD)
    h, labels = h[inside], labels[inside]
    parts = {"gallery:h": h[:-3000], "gallery:labels": labels[:-3000]}
    parts |= {"validation:h": h[-3000:-2000], "validation:labels": labels[-3000:-2000]}
    parts |= {"test:h": h[-2000:], "test:labels": labels[-2000:], "near/held-out classes:h": near}
    parts["far/newswires:h"] = minilm_features(root, cache, "reuters-test", 2500)["h"][:MOST_OOD]
    return parts


GREY_FAR = ("mnist", "quickdraw")
NETWORKS: dict[str, dict[str, Any]] = {
    "fashion-lam": {"network": lam_network, "source": "fashion-mnist", "out": (), "far": GREY_FAR}
    | {"per_class": 400, "new_gallery": 0, "dim": 3, "steps": 80},
    "fashion-pooled": {"network": pooled_network, "source": "fashion-mnist", "out": (), "far": GREY_FAR}
    | {"per_class": 400, "new_gallery": 0, "dim": 3, "steps": 200},
    "mnist-new-gallery": {
        "network": pooled_network,
        "source": "mnist",
        "out": OUT,
        "far": ("fashion-mnist", "quickdraw"),
    }
    | {"per_class": 30, "new_gallery": 200, "dim": 8, "steps": 60},
    "cifar-3-out": {
        "network": pooled_network,
        "source": "cifar-10",
        "out": OUT,
        "far": ("fashion-mnist", "quickdraw"),
    }
    | {"per_class": 450, "new_gallery": 0, "dim": 16, "steps": 300},
    "cifar-500": {
        "network": pooled_network,
        "source": "cifar-10",
        "out": (),
        "far": ("fashion-mnist", "quickdraw"),
    }
    | {"per_class": 50, "new_gallery": 0, "dim": 16, "steps": 150},
}
FROZEN: dict[str, Callable[[Path, Path], Arrays]] = {
    "fashion-lite0": partial(frozen_setting, source="fashion", head="pca", out=OUT),
    "cifar-lite0": partial(frozen_setting, source="cifar", head="trained", out=(0, 3, 8)),
    "quickdraw-lite0": frozen_quickdraw,
    "grocery-lite0": frozen_grocery,
    "fashion-resnet50": partial(frozen_setting, source="fashion", head="pca", out=OUT, encoder="resnet50"),
    "cifar-resnet50": partial(
        frozen_setting, source="cifar", head="trained", out=(0, 3, 8), encoder="resnet50"
    ),
    "quickdraw-resnet50": partial(frozen_quickdraw, encoder="resnet50"),
    "grocery-resnet50": partial(frozen_grocery, encoder="resnet50"),
    "reuters-minilm": reuters_minilm,
    "wordnet-minilm": wordnet_minilm,
}
# Those on which anything was chosen.
DEVELOPMENT = ("fashion-lite0", "cifar-3-out", "quickdraw-lite0", "wordnet-minilm")
NAMES = (*FROZEN, *reversed(NETWORKS), "quickdraw-network")


def seeds_of(name: str) -> tuple[int, ...]:
    """Return the seeds of a setting: three where a network is trained."""
    return (0,) if name in FROZEN else (0, 1, 2)


def setting(root: Path, cache: Path, name: str, seed: int = 0) -> Setting:
    """Return a setting, from the cache where it has it."""

    def compute() -> Arrays:
        if name in FROZEN:
            return FROZEN[name](root, cache)
        return (
            quickdraw_network(root, seed)
            if name == "quickdraw-network"
            else network_setting(root, seed, **NETWORKS[name])
        )

    parts = cached(cache / "settings" / f"{name}-{seed}.npz", compute)
    weight = parts.pop("head:weight", None)
    head = None if weight is None else Head.of((weight, parts.pop("head:bias")))
    return Setting(name, seed, head, parts)
