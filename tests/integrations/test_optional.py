"""Without a library its module can be imported, and says what to install when it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hessians import ContrastiveLoss
from laplacian_metric.integrations.optional import base_class, require
from tests.integrations.without import module_without

LIBRARIES = {
    "pytorch_metric_learning",
    "sklearn",
    "lightning",
    "sentence_transformers",
    "huggingface_hub",
    "torch",
}


def test_importing_the_room_loads_no_library(root: Path) -> None:
    code = "import sys, laplacian_metric.integrations, laplacian_metric.integrations.optional; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    assert LIBRARIES.isdisjoint(name.split(".")[0] for name in done.stdout.split())


@pytest.mark.parametrize(
    ("name", "missing", "module_name", "arguments", "message"),
    [
        (
            "uncertainty_calculator",
            ("pytorch_metric_learning", "pytorch_metric_learning.utils.accuracy_calculator"),
            "UncertaintyCalculator",
            (),
            'UncertaintyCalculator needs pytorch_metric_learning: pip install "pytorch-metric-learning',
        ),
        (
            "pytorch_metric_learning",
            ("pytorch_metric_learning", "pytorch_metric_learning.testers"),
            "LAMTester",
            (None,),
            "LAMTester needs pytorch_metric_learning",
        ),
        (
            "scikit_learn",
            ("sklearn", "sklearn.base"),
            "LaplaceEmbedding",
            (),
            r'LaplaceEmbedding needs sklearn: pip install "scikit-learn"',
        ),
        (
            "lightning",
            ("lightning", "lightning.pytorch"),
            "OnlineLAMCallback",
            (ContrastiveLoss(),),
            r'OnlineLAMCallback needs lightning: pip install "laplacian-metric\[lightning\]"',
        ),
    ],
)
def test_what_to_install(
    name: str, missing: tuple[str, ...], module_name: str, arguments: tuple[Any, ...], message: str
) -> None:
    module = module_without(name, *missing)
    with pytest.raises(ImportError, match=message):
        getattr(module, module_name)(*arguments)


def test_a_library_that_is_there_but_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_library.py").write_text("import a_part_of_it_that_is_not_there", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    message = "x needs broken_library .it is there, but cannot be imported: No module named 'a_part_of_it"
    with pytest.raises(ImportError, match=message):
        require("broken_library", "x", "y")
    with pytest.raises(ImportError, match=message.replace("x needs", "Missing needs")):
        base_class("broken_library", "Base", "y")()


def test_errors_of_a_class_are_the_library_s_own() -> None:
    assert base_class("collections", "OrderedDict", "nothing")(a=1) == {"a": 1}
