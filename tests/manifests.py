"""Manifests of artifacts with other entries, and digests that are right all the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from laplacian_metric.core.checked import digest_of_dict


def rewrite(path: Path, sign: bool = True, **changes: Any) -> None:
    """Change entries of a manifest, ``...`` removes one; with the digest that belongs to them, or the old one."""
    content = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    content = {name: value for name, value in content.items() if value is not ...}
    if sign:
        content["digest"] = digest_of_dict({k: v for k, v in content.items() if k != "digest"})
    path.write_text(json.dumps(content), encoding="utf-8")


def redigest(path: Path, name: str) -> None:
    """Have a manifest hold the size and the digest that a payload has now."""
    content = (path.parent / name).read_bytes()
    files = json.loads(path.read_text(encoding="utf-8"))["files"]
    files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewrite(path, files=files)
