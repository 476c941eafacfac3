"""Every example runs, in a short form, and is short itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.examples import miniatures

MOST_LINES = 40


class Letters:
    """Stands in for a sentence encoder."""

    def encode(self, sentences: list[str], convert_to_tensor: bool = False, **_: Any) -> Any:
        import torch

        return torch.tensor([[float(s.lower().count(c)) for c in "abcdefghilmnoprstuwy"] for s in sentences])


def known_and_new(folder: Path) -> dict[str, Any]:
    """Exported features, and 40 of them once more."""
    features, labels = miniatures.features()
    np.save(folder / "new.npy", features[:40])
    np.savez(folder / "known.npz", features=features, labels=labels)
    return {"exported": folder / "known.npz", "new": folder / "new.npy"}


def nearest(points: Any) -> Any:
    """The row of every point's nearest other one."""
    return (points @ points.T - 2 * np.eye(len(points))).argmax(axis=1)


def photos_and(name: str) -> Callable[[Path], dict[str, Any]]:
    """A folder of images and a file of weights."""
    return lambda folder: {
        "photos": miniatures.photos(folder / "photos"),
        "weights": miniatures.weights(name, folder),
        "size": 32,
    }


# What is made for an example before it is called.
MADE: dict[str, Callable[[Path], dict[str, Any]]] = {
    "exported_features": known_and_new,
    "posthoc_efficientnet_lite": photos_and("tf_efficientnet_lite0"),
    "posthoc_imagenet_resnet50": photos_and("resnet50"),
    "share_posterior": lambda folder: {"folder": folder / "posterior"},
}

QUIET = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}

# What to call main with, which library it needs, and what has to hold of the result.
SHORT: dict[str, tuple[dict[str, Any], str | None, Callable[[Any], bool]]] = {
    "classify_or_refuse_scikit_learn": (
        {},
        "sklearn",
        lambda numbers: (
            0.9 < numbers["accuracy"] < numbers["accuracy of accepted answers"] <= 1
            and numbers["share of noise accepted"] < 0.1 < 0.5 < numbers["share of digits accepted"]
        ),
    ),
    "exported_features": (
        {"steps": 100, "dim": 3},
        None,
        lambda numbers: (
            # Retrieval within the 40, whose classes are 0, 1, 2, 3, 0, ...
            np.mean([row % 4 == other % 4 for row, other in enumerate(nearest(numbers["point"]))]) > 0.6
            and np.allclose(numbers["uncertainty"], 1 / numbers["kappa"])
            and 0 < numbers["uncertainty"].min() < numbers["uncertainty"].max()
        ),
    ),
    "online_lightning": ({"epochs": 1, **QUIET}, "lightning", lambda numbers: min(numbers.values()) > 0),
    "online_pytorch": ({"epochs": 3}, None, lambda numbers: numbers["recall@1"] > 0.5),
    "posthoc_efficientnet_lite": ({"steps": 20}, "timm", lambda numbers: 0 <= numbers["recall@1"] <= 1),
    "posthoc_imagenet_resnet50": ({}, "torchvision", lambda numbers: 0 <= numbers["recall@1"] <= 1),
    "posthoc_pytorch_metric_learning": (
        {"epochs": 2},
        "pytorch_metric_learning",
        lambda numbers: numbers["precision_at_1_level0"] > 0.5 and 0 <= numbers["ece_level0"] < 1,
    ),
    "sentences_with_uncertainty": (
        {"model": Letters(), "steps": 10},
        None,
        lambda numbers: (
            len(numbers) == 3
            and all(topic in ("delivery", "refund", "account") for topic, _ in numbers.values())
        ),
    ),
    "share_posterior": ({"images": 100}, None, lambda numbers: numbers == 0.0),
}


def test_every_example_is_run_and_short(root: Path) -> None:
    paths = sorted((root / "examples").glob("*.py"))
    assert [path.stem for path in paths] == sorted(SHORT)
    for path in paths:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES, path.name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(SHORT))
def test_an_example_runs(name: str, root: Path, tmp_path: Path) -> None:
    options, library, holds = SHORT[name]
    if library is not None:
        pytest.importorskip(library, reason=f"{library} is not installed, and examples/{name}.py needs it")
    if name in MADE:
        options = {**MADE[name](tmp_path), **options}
    numbers = load(name, root).main(**options)
    assert holds(numbers), numbers


def load(name: str, root: Path) -> Any:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", root / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
