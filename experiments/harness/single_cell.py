"""The cells of a single training, which `runs` needs, from options and a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from laplacian_metric import methods
from laplacian_metric.core.files import atomic_write
from laplacian_metric.core.method import Start
from laplacian_metric.data import registry
from laplacian_metric.encoder.loading import preparation_for

NAME, BASE = "model", "network"
OF_NETWORK = ("data", "network", "loss", "training", "seeds")
BUILDS_ON_OTHERS = ("base", "inherit", "members")
REQUIRED = {
    "data": "--data NAME or FOLDER",
    "method": "--method NAME",
    "network": "--encoder NAME",
}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of both, key by key; the second wins.

    Example:
        >>> merged({"training": {"epochs": 3, "batch_size": 9}}, {"training": {"epochs": 5}})
        {'training': {'epochs': 5, 'batch_size': 9}}
    """
    whole = dict(below)
    for key, value in above.items():
        before = whole.get(key)
        whole[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return whole


def combined(config: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the options of the command line; the options of another method are dropped."""
    whole = {key: value for key, value in flags.items() if key != "method"}
    method = config.get("method")
    method = {"name": method} if isinstance(method, str) else method
    if "method" in flags and not (isinstance(method, dict) and method.get("name") == flags["method"]):
        method = {"name": flags["method"]}
    return merged(config, whole if method is None else {**whole, "method": method})


def settings_of_data(place: str) -> dict[str, Any]:
    """Return the section of a cell that names a data set or a folder of images."""
    path = Path(place).expanduser()
    if path.is_dir() and place not in registry.names():
        return {"train": "folder", "options": {"path": str(path.resolve())}}
    return {"train": place}


def write_cells(settings: Mapping[str, Any], folder: Path, seed: int) -> None:
    """Write the cells of one training: the method's, and that of the network which it starts from.

    Raises:
        ValueError: a section is missing, or the cell builds on others.
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
    for key, remedy in REQUIRED.items():
        if key not in whole:
            raise ValueError(f"{key} is missing: pass {remedy}, or a configuration that has it")
    for key in REQUIRED:
        if key == "method" and isinstance(whole[key], str):
            whole[key] = {"name": whole[key]}
        if not isinstance(whole[key], dict):
            raise ValueError(f"{key} is {whole[key]!r} in the configuration: settings by name are needed")
    method = whole["method"]
    whole["seeds"] = [seed]
    whole["data"] = _prepared(whole["data"], str(whole["network"].get("name")))
    folder.mkdir(parents=True, exist_ok=True)
    if methods.find(str(method.get("name"))).start is Start.SCRATCH:
        _write(folder, NAME, whole)
        return
    network = {key: whole[key] for key in OF_NETWORK if key in whole}
    _write(folder, BASE, {**network, "method": {"name": "deterministic"}, "evaluation": {"samples": 0}})
    _write(folder, NAME, {**whole, "base": BASE})


def _prepared(data: dict[str, Any], network: str) -> dict[str, Any]:
    """Prepare images as the network takes them, and read no test images."""
    prepared = preparation_for(network)
    settings = {"channels": prepared.channels, "preprocessing": prepared.preprocessing}
    if prepared.image_size is not None:
        settings["image_size"] = prepared.image_size
    return merged({**settings, "splits": {"test": "validation"}}, data)


def _write(folder: Path, name: str, content: dict[str, Any]) -> None:
    with atomic_write(folder / f"{name}.yaml") as temporary:
        temporary.write_text(yaml.safe_dump({"name": name, **content}, sort_keys=False), encoding="utf-8")
