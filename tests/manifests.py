"""Manifests of artifacts with other entries, and digests that are right all the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from laplacian_metric.core.artifact import MANIFEST, POINTER


def version(folder: Path) -> Path:
    """Return the folder of an artifact's current version."""
    return folder / (folder / POINTER).read_text().split()[0]


def content(folder: Path) -> dict[str, Any]:
    """Return what the manifest of an artifact holds."""
    values: dict[str, Any] = json.loads((version(folder) / MANIFEST).read_text(encoding="utf-8"))
    return values


def rewrite(folder: Path, **changes: Any) -> None:
    """Change entries of a manifest, ``...`` removes one, with the digest that belongs to them."""
    values = {**content(folder), **changes}
    replace(folder, json.dumps({name: value for name, value in values.items() if value is not ...}))


def replace(folder: Path, text: str) -> None:
    """Write a text in place of a manifest, with its digest."""
    path = version(folder)
    (path / MANIFEST).write_text(text, encoding="utf-8")
    (folder / POINTER).write_text(f"{path.name} {hashlib.sha256(text.encode()).hexdigest()}\n")


def redigest(folder: Path, name: str) -> None:
    """Have a manifest hold the size and the digest that a payload has now."""
    payload = (version(folder) / name).read_bytes()
    files = content(folder)["files"]
    files[name] |= {"bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    rewrite(folder, files=files)
