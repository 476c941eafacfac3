"""Cells that take a second, on a few images of the embedded sample."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments import harness as runs

BASE: dict[str, Any] = {
    "name": "mini/deterministic",
    "data": {
        "train": "sample-fashion-mnist",
        "out": [{"name": "sample-mnist", "label": "digits", "limit": 30}],
        "limit": 60,
    },
    "network": {"name": "fashion-mnist", "dim": 3},
    "training": {"epochs": 2, "batch_size": 20, "weight_decay": 1e-5},
    "method": {"name": "deterministic"},
    "seeds": [0],
    "members": 2,
    "evaluation": {"samples": 4, "ks": [1, 5]},
}
DIVERGES: dict[str, Any] = {"inherit": "mini/deterministic", "training": {"learning_rate": 1e30}}
RETRIEVAL = {"recall@1", "recall@5", "map@1", "map@5", "map@r", "r_precision"}
LAPLACE: dict[str, Any] = {"base": "mini/deterministic", "method": {"name": "laplace", "prior": 1.0}}


class Folder:
    """A folder with cells, and beside it what their runs leave."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cells = root / "cells"
        self.work = root / "work"
        self.results = root / "results"
        self.said: list[str] = []

    def write(self, name: str, content: dict[str, Any]) -> Path:
        """Write a cell."""
        path = self.cells / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump({"name": name, **content}, sort_keys=False), encoding="utf-8")
        return path

    def read(self) -> runs.Cells:
        return runs.Cells(self.cells)

    def run(self, cells: Sequence[str] = ("*",), **options: Any) -> runs.Summary:
        return runs.run(
            cells,
            cells_dir=self.cells,
            work=self.work,
            results=self.results,
            progress=False,
            **{"data_dir": None, "say": self.said.append, **options},
        )

    def result(self, name: str, seed: int = 0) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(
            runs.Results(self.results).path(name, seed).read_text(encoding="utf-8")
        )
        return content

    def states(self) -> dict[tuple[str, int], str]:
        cell_states = runs.states(("*",), cells_dir=self.cells, work=self.work, results=self.results)
        return {(name, seed): state for name, seed, state in cell_states}


def folder_with(root: Path, **cells: dict[str, Any]) -> Folder:
    """A folder with the base's cell and others, each by its name below mini/."""
    folder = Folder(root)
    folder.write("mini/deterministic", BASE)
    for name, content in cells.items():
        folder.write(f"mini/{name}", content)
    return folder


def changed(folder: Folder, name: str, **sections: Any) -> None:
    """Write a cell again, with other settings."""
    path = folder.cells / f"{name}.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for key, value in sections.items():
        content[key] = {**content.get(key, {}), **value} if isinstance(value, dict) else value
    path.write_text(yaml.safe_dump(content), encoding="utf-8")


def comparable(record: dict[str, Any]) -> dict[str, Any]:
    """A result without what differs from session to session."""
    kept = {
        key: value
        for key, value in record.items()
        if key not in ("seconds", "commit", "command", "environment")
    }
    if kept["training"]:
        kept["training"] = {
            **kept["training"],
            "history": [
                {key: value for key, value in entry.items() if key != "seconds"}
                for entry in kept["training"]["history"]
            ],
        }
    return kept
