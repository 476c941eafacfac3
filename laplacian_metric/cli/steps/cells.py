"""The cells of a single training: what `runs` needs, from flags and a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from laplacian_metric import methods
from laplacian_metric.cli.steps.encoders import preparation_for
from laplacian_metric.core.files import atomic_write
from laplacian_metric.core.method import Start
from laplacian_metric.data import registry

NAME, BASE = "model", "network"
OF_NETWORK = ("data", "network", "loss", "training", "seeds")
BUILDS_ON_OTHERS = ("base", "inherit", "members")


def assigned(pairs: Iterable[str]) -> dict[str, Any]:
    """Settings of the form KEY=VALUE, with dots in the keys, as nested values.

    Example:
        >>> assigned(["training.epochs=3", "loss.margin=0.5", "method.score=confidence"])
        {'training': {'epochs': 3}, 'loss': {'margin': 0.5}, 'method': {'score': 'confidence'}}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{pair!r} is no setting: write KEY=VALUE, such as training.epochs=3")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"the value of {key} is no YAML: {text!r}") from error
        if isinstance(value, str):
            value = _number(value)
        place, last = found, key.split(".")
        for part in last[:-1]:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ValueError(f"{pair!r}: {part} has a value already")
        place[last[-1]] = value
    return found


def _number(text: str) -> str | float:
    """1e-3 is text to YAML."""
    try:
        return float(text)
    except ValueError:
        return text


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """What the second has on top of the first, key by key."""
    whole = dict(below)
    for key, value in above.items():
        before = whole.get(key)
        whole[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return whole


def settings_of_data(place: str) -> dict[str, Any]:
    """The section of a cell that names a data set or a folder of images."""
    path = Path(place).expanduser()
    if path.is_dir() and place not in registry.names():
        return {"train": "folder", "options": {"path": str(path.resolve())}}
    return {"train": place}


def write_cells(settings: Mapping[str, Any], folder: Path, seed: int) -> None:
    """The cells of one training: the method's, and where it starts from a trained network that one's.

    Raises:
        ValueError: a part is missing, or the cell builds on others.
    """
    for key in BUILDS_ON_OTHERS:
        if key in settings:
            raise ValueError(
                f"the configuration has {key!r}, it builds on other cells: run it with `lam experiment run --cells-dir`"
            )
    whole = merged(
        {"loss": {"margin": 0.7}, "training": {}, "evaluation": {"samples": 0}},
        {key: value for key, value in settings.items() if key not in ("name", "title", "notes", "seeds")},
    )
    for key, remedy in (
        ("data", "--data NAME or FOLDER"),
        ("method", "--method NAME"),
        ("network", "--encoder NAME"),
    ):
        if key not in whole:
            raise ValueError(f"{key} is missing: pass {remedy}, or a configuration that has it")
    method = whole["method"]
    whole["method"] = {"name": method} if isinstance(method, str) else method
    whole["seeds"] = [seed]
    whole["data"] = _data(whole)
    folder.mkdir(parents=True, exist_ok=True)
    start = methods.find(str(whole["method"].get("name"))).start
    if start is Start.SCRATCH:
        _write(folder, NAME, whole)
        return
    network = {key: whole[key] for key in OF_NETWORK if key in whole}
    _write(folder, BASE, {**network, "method": {"name": "deterministic"}, "evaluation": {"samples": 0}})
    _write(folder, NAME, {**whole, "base": BASE})


def _data(whole: dict[str, Any]) -> dict[str, Any]:
    """Images as the network takes them; no test images are read."""
    data, network = whole["data"], whole["network"]
    if not isinstance(data, dict) or not isinstance(network, dict):
        return data  # type: ignore[no-any-return]
    prepared = preparation_for(str(network.get("name")))
    own = {"channels": prepared.channels, "preprocessing": prepared.preprocessing}
    if prepared.image_size is not None:
        own["image_size"] = prepared.image_size
    return merged({**own, "splits": {"test": "validation"}}, data)


def _write(folder: Path, name: str, content: dict[str, Any]) -> None:
    with atomic_write(folder / f"{name}.yaml") as temporary:
        temporary.write_text(yaml.safe_dump({"name": name, **content}, sort_keys=False), encoding="utf-8")
