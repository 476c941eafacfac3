"""Learned and deduced uncertainty together: what is measured of made-up parts, and the direction on the sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from experiments import combined
from experiments.combined import (
    ALEATORIC,
    BOTH,
    CLEAN,
    CORRUPTED,
    EPISTEMIC,
    STRANGE,
    STRENGTHS,
    Parts,
)
from experiments.corruptions import HIDING
from tests.experiments.harness.miniature import Folder
from tests.experiments.tables.synthetic import result, write

CELLS: dict[str, dict[str, Any]] = {
    "deterministic": {
        "data": {
            "train": "sample-fashion-mnist",
            "corrupted_share": 0.5,
            "out": [{"name": "sample-mnist", "label": "digits"}],
        },
        "network": {"name": "n-digit", "dim": 3, "options": {"digits": 1}},
        "training": {"epochs": 10, "batch_size": 64, "learning_rate": 3e-3, "weight_decay": 1e-5},
        "method": {"name": "deterministic"},
        "seeds": [0],
        "evaluation": {"samples": 0, "corrupted": False},
    },
    "hib": {"inherit": "small/deterministic", "method": {"name": "hib"}},
    "laplace": {
        "base": "small/deterministic",
        "method": {
            "name": "laplace",
            "structure": "diag",
            "approximation": "fixed",
            "prior": "decay",
            "temperature": 0.01,
        },
    },
}


def made_up(aleatoric: float, epistemic: float) -> Parts:
    """Clean images at 0..9; corruption adds to the learned part and strangeness to the deduced one."""
    clean = torch.arange(10.0)
    parts: Parts = {CLEAN: {ALEATORIC: clean, EPISTEMIC: clean}}
    parts[STRANGE, 0.0] = {ALEATORIC: clean, EPISTEMIC: clean + epistemic}
    for kind in HIDING:
        for strength in STRENGTHS:
            noise = aleatoric * strength
            parts[f"{CORRUPTED}, {kind}", strength] = {ALEATORIC: clean + noise, EPISTEMIC: clean}
            parts[f"{BOTH}, {kind}", strength] = {ALEATORIC: clean + noise, EPISTEMIC: clean + epistemic}
    return parts


def test_each_part_is_judged_by_each_cause() -> None:
    aurocs = combined.causes(made_up(100.0, 100.0))
    assert aurocs[CORRUPTED] == {ALEATORIC: 1.0, EPISTEMIC: 0.5}
    assert aurocs[STRANGE] == {ALEATORIC: 0.5, EPISTEMIC: 1.0}
    assert aurocs["strange and corrupted, against strange"] == {ALEATORIC: 1.0, EPISTEMIC: 0.5}
    assert all(combined.claims(aurocs).values())
    mixed_up = combined.causes(made_up(-100.0, -100.0))
    assert not any(combined.claims(mixed_up).values())


@pytest.mark.slow
@pytest.mark.statistical
def test_each_part_reacts_to_its_cause_on_the_sample(tmp_path: Path, long_form: bool) -> None:
    """One seed of a small network; the AUROC of 100 images (long: 1000) have standard errors of 0.04 (0.013)."""
    folder = Folder(tmp_path)
    for name, content in CELLS.items():
        folder.write(f"small/{name}", content)
    for name in ("hib", "laplace"):  # their networks are trained when they are asked for
        write(folder.results, result(f"small/{name}", 0))
    described = {
        "seeds": [0, 1],
        "ood": "digits",
        "limit": 1000 if long_form else 100,
        "pairs": [
            {"label": "small", "aleatoric": "small/hib", "epistemic": "small/laplace", "one_norm": True},
            {"label": "absent", "aleatoric": "small/nothing", "epistemic": "small/laplace"},
        ],
    }
    (tmp_path / "described.yaml").write_text(yaml.safe_dump(described), encoding="utf-8")
    places = {
        "work": folder.work,
        "results": folder.results,
        "cells-dir": folder.cells,
        "out": tmp_path / "out",
    }
    places["described"] = tmp_path / "described.yaml"
    combined.main([text for name, place in places.items() for text in (f"--{name}", str(place))])
    record = json.loads((tmp_path / "out" / "combined.json").read_text(encoding="utf-8"))
    aurocs = {
        row["images"]: {part: float(row[f"{part} part, AUROC"]) for part in combined.PARTS}
        for row in record["rows"]
    }
    assert aurocs[CORRUPTED][ALEATORIC] > aurocs[STRANGE][ALEATORIC] + 0.1
    assert aurocs[STRANGE][EPISTEMIC] > aurocs[CORRUPTED][EPISTEMIC] + 0.1
    assert aurocs[CORRUPTED][ALEATORIC] > aurocs[CORRUPTED][EPISTEMIC] + 0.05
    assert aurocs[STRANGE][EPISTEMIC] > aurocs[STRANGE][ALEATORIC] + 0.1
    # Of OOD images that are corrupted too, the learned part knows which.
    assert aurocs["strange and corrupted, against strange"][ALEATORIC] > 0.6
