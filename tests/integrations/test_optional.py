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

# Module of the library -> (module of ours, class, arguments, what to install).
NEEDS: dict[str, tuple[str, str, tuple[Any, ...], str]] = {
    "pytorch_metric_learning.testers": (
        "pytorch_metric_learning",
        "LAMTester",
        (None,),
        "pytorch-metric-learning",
    ),
    "pytorch_metric_learning.utils.accuracy_calculator": (
        "pytorch_metric_learning",
        "UncertaintyCalculator",
        (),
        "pytorch-metric-learning",
    ),
    "sklearn.base": ("scikit_learn", "TrustClassifier", (), "scikit-learn"),
    "lightning.pytorch": (
        "lightning",
        "OnlineLAMCallback",
        (ContrastiveLoss(),),
        r"laplacian-metric\[lightning\]",
    ),
    "langchain_core.retrievers": ("langchain", "TrustRetriever", (), r"laplacian-metric\[langchain\]"),
    "llama_index.core.postprocessor.types": (
        "llama_index",
        "TrustPostprocessor",
        (),
        r"laplacian-metric\[llama-index\]",
    ),
    "haystack": ("haystack", "TrustFilter", (None,), r"laplacian-metric\[haystack\]"),
    "mteb.models.search_wrappers": ("mteb", "TrustSearch", (None, None), r"laplacian-metric\[mteb\]"),
}


def test_importing_the_room_loads_no_library(root: Path) -> None:
    """Routing needs numpy only."""
    code = "import sys, laplacian_metric.integrations, laplacian_metric.integrations.routing; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded.isdisjoint({*(name.split(".")[0] for name in NEEDS), "huggingface_hub", "torch"})


@pytest.mark.parametrize("missing", list(NEEDS))
def test_what_to_install(missing: str) -> None:
    name, made, arguments, install = NEEDS[missing]
    parts = missing.split(".")
    module = module_without(name, *(".".join(parts[: end + 1]) for end in range(len(parts))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, missing, None)
        with pytest.raises(ImportError, match=install):
            getattr(module, made)(*arguments)


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
