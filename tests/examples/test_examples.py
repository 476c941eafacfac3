"""Every example runs, in a short form, and is short itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MOST_LINES = 40


class Letters:
    """Stands in for a sentence encoder."""

    def encode(self, sentences: list[str], convert_to_tensor: bool = False, **_: Any) -> Any:
        import torch

        return torch.tensor([[float(s.lower().count(c)) for c in "abcdefghilmnoprstuwy"] for s in sentences])


QUIET = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}

# What to call main with, which library it needs, and what has to hold of the result.
SHORT: dict[str, tuple[dict[str, Any], str | None, Callable[[Any], bool]]] = {
    "classify_or_refuse_scikit_learn": (
        {"steps": 40},
        "sklearn",
        lambda found: 0.8 < found["accuracy"] < found["accuracy of the surest 80 %"] <= 1,
    ),
    "online_lightning": ({"epochs": 1, **QUIET}, "lightning", lambda found: min(found.values()) > 0),
    "online_pytorch": ({"epochs": 3}, None, lambda found: found["recall@1"] > 0.5),
    "posthoc_pytorch_metric_learning": (
        {"epochs": 2},
        "pytorch_metric_learning",
        lambda found: found["precision_at_1_level0"] > 0.5 and 0 <= found["ece_level0"] < 1,
    ),
    "sentences_with_uncertainty": (
        {"model": Letters(), "steps": 10},
        None,
        lambda found: (
            len(found) == 3 and all(topic in ("delivery", "refund", "account") for topic, _ in found.values())
        ),
    ),
    "share_posterior": ({"images": 100}, None, lambda found: found == 0.0),
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
    if name == "share_posterior":
        options = {**options, "folder": tmp_path / "posterior"}
    spec = importlib.util.spec_from_file_location(f"example_{name}", root / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.main(**options)
    assert holds(found), found
