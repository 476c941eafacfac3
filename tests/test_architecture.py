"""The house: imports go one way, importing is light, and nothing names a machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import laplacian_metric
from tests.imports import drawing, imported_modules, wrong_imports

HEAVY = (
    "torchvision",
    "timm",
    "faiss",
    "laplace",
    "matplotlib",
    "onnx",
    "pandas",
    "safetensors",
    "scipy",
    "sentence_transformers",
)


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")


def test_no_import_goes_the_wrong_way(root: Path) -> None:
    pending = ("core.method imports laplacian_metric.data", "model_folder imports laplacian_metric.retrieval")
    assert [wrong for wrong in wrong_imports(root) if not any(name in wrong for name in pending)] == []


def test_the_drawing_of_the_house_is_current(root: Path) -> None:
    page = (root / "docs" / "contributing" / "architecture.md").read_text(encoding="utf-8")
    assert f"```text\n{drawing(root)}\n```" in page, "replace the drawing: python -m tests.imports prints it"


def test_the_check_reads_the_real_tree(root: Path) -> None:
    source = (root / "laplacian_metric" / "data" / "registry.py").read_text(encoding="utf-8")
    names = {name for _, name in imported_modules(source, "laplacian_metric.data.registry", is_package=False)}
    assert "laplacian_metric.core.dataset" in names


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("hessians/a.py", "import laplacian_metric", "laplacian_metric"),
        ("hessians/deep/a.py", "def f():\n    from laplacian_metric.data import x", "laplacian_metric.data"),
        ("hessians/a.py", "import experiments.table", "experiments.table"),
        (
            "hessians/a.py",
            "import importlib\nimportlib.import_module('laplacian_metric')",
            "laplacian_metric",
        ),
        ("laplacian_metric/a.py", "from experiments import table", "experiments"),
        (
            "laplacian_metric/methods/a/x.py",
            "from laplacian_metric.methods import b",
            "laplacian_metric.methods.b",
        ),
        ("laplacian_metric/methods/a/x.py", "from .. import b", "laplacian_metric.methods.b"),
        ("laplacian_metric/methods/a/x.py", "from ..b.y import thing", "laplacian_metric.methods.b.y"),
        ("laplacian_metric/core/a.py", "from laplacian_metric.encoder import b", "laplacian_metric.encoder"),
        ("laplacian_metric/trust/a.py", "import laplacian_metric.laplace", "laplacian_metric.laplace"),
        ("laplacian_metric/metrics/a.py", "import laplacian_metric.methods.b", "laplacian_metric.methods.b"),
        ("laplacian_metric/metrics/__init__.py", "from ..data import embedded", "laplacian_metric.data"),
        ("laplacian_metric/vmf.py", "from laplacian_metric import data", "laplacian_metric.data"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, name: str, source: str, expected: str) -> None:
    write_tree(tmp_path, {"laplacian_metric/methods/b/y.py": "", name: source})
    wrong = wrong_imports(tmp_path)
    assert any(
        message.startswith(f"{name}:") and message.endswith(f"imports {expected}") for message in wrong
    )


def test_right_imports_are_left_alone(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {
            "hessians/a.py": "import torch\nfrom hessians.b import c",
            "hessians/b.py": "c = 'import laplacian_metric'",
            "laplacian_metric/a.py": "from hessians import a\nimport laplacian_metric.methods.b",
            "laplacian_metric/methods/__init__.py": "from laplacian_metric.methods import b, c",
            "laplacian_metric/methods/b/y.py": "from laplacian_metric.metrics import recall\nfrom . import z",
            "laplacian_metric/methods/b/z.py": "from laplacian_metric.methods.b.y import sibling",
            "laplacian_metric/metrics/recall.py": "from laplacian_metric.core import search",
            "laplacian_metric/core/a.py": (
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from laplacian_metric.encoder import Encoder"
            ),
        },
    )
    assert wrong_imports(tmp_path) == []


def loaded_by(statement: str, root: Path) -> set[str]:
    """The top-level modules that are loaded after a statement in a new interpreter."""
    code = f"import sys\n{statement}\nprint(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import laplacian_metric",
        "import hessians",
        "import laplacian_metric.cli",
        "from laplacian_metric import LAM, Encoder, OnlineLAM, StochasticEmbedding, metrics, vmf",
    ],
)
def test_importing_is_light(statement: str, root: Path) -> None:
    loaded = loaded_by(statement, root)
    assert {"laplacian_metric", "hessians"} & loaded
    assert loaded.isdisjoint(HEAVY)


def test_every_public_name_is_there() -> None:
    for name in laplacian_metric.__all__:
        assert getattr(laplacian_metric, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'LAMB'"):
        laplacian_metric.LAMB  # noqa: B018


def test_the_command_line_starts_without_torch(root: Path) -> None:
    assert "torch" not in loaded_by("import laplacian_metric.cli", root)


def text_files(root: Path) -> list[Path]:
    """The tracked files, and those about to be, that are text."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True)
    paths = [root / name for name in done.stdout.decode("utf-8").split("\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:8192]]


def machine_paths(text: str) -> list[str]:
    """Absolute paths of somebody's machine in a text."""
    folders = "home|root|work|Users|mnt|tmp|media|scratch"
    return re.findall(rf"(?<![\w./~:}}-])/(?:{folders})/[\w.+-]+[\w./+-]*", text)


def test_no_file_names_a_path_of_a_machine(root: Path) -> None:
    if not (root / ".git").exists():
        pytest.skip("not a git checkout, so the project's own files cannot be told from others")
    files = text_files(root)
    assert root / "README.md" in files
    imported = {
        path.relative_to(root).as_posix(): paths
        for path in files
        if path != Path(__file__).resolve() and (paths := machine_paths(path.read_text(encoding="utf-8")))
    }
    assert imported == {}


def test_a_path_of_a_machine_is_found() -> None:
    assert machine_paths("data = '/home/someone/data'") == ["/home/someone/data"]
    assert machine_paths("cd /mnt/disk && ls") == ["/mnt/disk"]
    assert machine_paths("see docs/home/start, https://example.org/home/x and ./work/out") == []
