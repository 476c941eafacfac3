"""How many files and functions of the packages a task walks through: what somebody reads who follows it.

    python -m benchmarks.walks --out walks.json

Every function of `hessians` and `laplacian_metric` that is called counts once, with the file that it is in; bodies of
modules and of classes do not count. The task runs twice, and its second run is counted: imports, those of lazy packages
too, and what registers names while modules are imported, are no part of the walk. Caches are emptied in between.
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


def called(task: Callable[[Path], object]) -> dict[tuple[str, str], None]:
    """Return the files and functions of the packages that a task, which gets an empty folder, calls in its second run.

    They are in the order in which they are first called.
    """
    functions: dict[tuple[str, str], None] = {}

    def record(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        # Bodies of classes are code too, without being functions; a module's __getattr__ imports what is named.
        is_function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name not in SKIPPED
        if (
            event == "call"
            and is_function
            and name != "__getattr__"
            and code.co_filename.startswith(PACKAGES)
        ):
            functions[str(Path(code.co_filename).relative_to(ROOT)), name] = None

    with tempfile.TemporaryDirectory() as folder:
        task(Path(folder))
    forget_results()
    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(record)
        try:
            task(Path(folder))
        finally:
            sys.setprofile(None)
    return functions


def walked(task: Callable[[Path], object]) -> dict[str, int]:
    """Return how many files and functions of the packages a task walks through.

    Example:
        >>> from laplacian_metric.core.embedding import unit_rows
        >>> walked(lambda _: unit_rows(torch.ones(1, 2)))["files"] >= 1
        True
    """
    functions = called(task)
    return {"files": len({file for file, _ in functions}), "functions": len(functions)}


def forget_results() -> None:
    """Empty the caches of the packages' functions, which a second run would not call again."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("hessians", "laplacian_metric"):
            for value in list(vars(module).values()):
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()


def lam(_: Path) -> None:
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
    model, index = str(folder / "model"), str(folder / "index")
    data = str(folder / "features.npz")
    labels = np.arange(600) % 3
    noise = np.random.default_rng(0).standard_normal((600, 6))
    np.savez(data, features=(2 * np.eye(6)[labels] + noise).astype(np.float32), labels=labels)
    lam_command("fit", "--features", data, "--dim", "3", "--steps", "5", "--out", model)
    lam_command("index", model, data, "--out", index)
    lam_command("query", index, data, "-k", "2")


def lam_command(*words: str) -> None:
    """Run the command `lam` in this process."""
    from laplacian_metric.cli import app

    code = app(list(words), standalone_mode=False)
    if code:
        raise RuntimeError(f"lam {' '.join(words)} ended with {code}")


def cell(folder: Path) -> None:
    """Train and measure a cell of PFE on the installed sample."""
    from experiments import harness as runs

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
    from laplacian_metric.demo.compute import run_demo

    run_demo(folder / "demo", epochs=1)


TASKS = {
    "fit, prior, embed": lam,
    "lam fit, index, query": commands,
    "a cell of PFE": cell,
    "the demo": demo,
}


def main() -> None:
    """Count the walks, and write them to a JSON file; or list the files of one of them, with their functions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--list", choices=TASKS, help="lists this walk's files and functions instead")
    options = parser.parse_args()
    if options.list:
        walk: dict[str, list[str]] = {}
        for file, function in called(TASKS[options.list]):
            walk.setdefault(file, []).append(function)
        text = "\n".join(f"{file}: {', '.join(functions)}" for file, functions in walk.items())
    else:
        text = json.dumps({name: walked(task) for name, task in TASKS.items()}, indent=1)
    options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
