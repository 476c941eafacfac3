"""How many files and functions of the packages a task walks through: what somebody reads who follows it.

    python -m benchmarks.walks --out figures

Every function of `hessians` and `laplacian_metric` that is called counts once, with the file that it is in; bodies of
modules and of classes do not count.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (str(ROOT / "hessians"), str(ROOT / "laplacian_metric"))
SKIPPED = ("<module>", "<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


def walked(task: Callable[[], object]) -> dict[str, int]:
    """Return how many files and functions of the packages a task calls.

    Example:
        >>> from laplacian_metric.core.embedding import unit_rows
        >>> walked(lambda: unit_rows(torch.ones(1, 2)))["files"] >= 1
        True
    """
    functions: set[tuple[str, str]] = set()

    def record(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        # Bodies of classes are code too, without being functions.
        is_function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name not in SKIPPED
        if event == "call" and is_function and code.co_filename.startswith(PACKAGES):
            functions.add((code.co_filename, getattr(code, "co_qualname", code.co_name)))

    sys.setprofile(record)
    try:
        task()
    finally:
        sys.setprofile(None)
    return {"files": len({file for file, _ in functions}), "functions": len(functions)}


def lam() -> None:
    """Fit a LAM to features, choose its prior and embed."""
    from hessians import ContrastiveLoss
    from laplacian_metric import LAM, Encoder

    torch.manual_seed(0)
    labels = torch.arange(60) % 3
    images = torch.eye(3)[labels] + 0.3 * torch.randn(60, 3)
    posterior = LAM(Encoder(nn.Identity(), nn.Linear(3, 2)), ContrastiveLoss(margin=0.7))
    posterior.fit([(images, labels)], check_mode=False)
    posterior.optimize_prior_precision()
    posterior.embed(images)


def commands(folder: Path) -> None:
    """Run `lam fit`, `lam index` and `lam query` on the installed sample."""
    model, index, vectors = (str(folder / name) for name in ("model", "index", "queries.npz"))
    data = str(folder / "features.npz")
    labels = np.arange(600) % 3
    noise = np.random.default_rng(0).standard_normal((600, 6))
    np.savez(data, features=(2 * np.eye(6)[labels] + noise).astype(np.float32), labels=labels)
    lam_command("fit", "--features", data, "--dim", "3", "--steps", "5", "--out", model)
    lam_command("index", model, data, "--out", index)
    lam_command("embed", model, data, "--out", vectors)
    lam_command("query", index, "--array", vectors, "-k", "2")


def lam_command(*words: str) -> None:
    """Run the command `lam` in this process."""
    from laplacian_metric.cli import app

    code = app(list(words), standalone_mode=False)
    if code:
        raise RuntimeError(f"lam {' '.join(words)} ended with {code}")


def cell(folder: Path) -> None:
    """Train and measure a cell of PFE on the installed sample."""
    from laplacian_metric import runs

    cells = folder / "cells"
    cells.mkdir()
    plain = {
        "name": "plain",
        "title": "Plain",
        "data": {"train": "sample-fashion-mnist", "out": ["sample-mnist"]},
        "network": {"name": "fashion-mnist", "dim": 3},
        "loss": {"margin": 0.7},
        "training": {"epochs": 1, "batch_size": 250},
        "method": {"name": "deterministic"},
    }
    pfe = {"name": "pfe", "title": "PFE", "base": "plain", "method": {"name": "pfe"}}
    for config in (plain, pfe):
        (cells / f"{config['name']}.yaml").write_text(json.dumps(config), encoding="utf-8")
    places = {"cells_dir": cells, "work": folder / "work", "results": folder / "results", "data_dir": None}
    runs.run(["*"], seeds=[0], progress=False, **places)


def demo(folder: Path) -> None:
    """Run the demo for one epoch."""
    from laplacian_metric.demo.run import run_demo

    run_demo(folder / "demo", epochs=1)


def main() -> None:
    """Count the walks, and write them to a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    counts = {"fit, prior, embed": walked(lam)}
    for name, task in {"lam fit, index, query": commands, "a cell of PFE": cell, "the demo": demo}.items():
        with tempfile.TemporaryDirectory() as folder:
            counts[name] = walked(lambda task=task, folder=folder: task(Path(folder)))  # type: ignore[misc]
        print(name, counts[name])
    options.out.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
