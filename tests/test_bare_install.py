"""The base install: a wheel in a new environment without torch, where `Trust` works and the rest says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MOST_BYTES = 140e6
TOOLS = ("pip", "setuptools", "_distutils_hack")  # what every new environment has
ABSENT = ("torch", "scipy", "sklearn", "faiss", "pandas", "typer", "matplotlib")
FOUR_LINES = """
import sys
from laplacian_metric import Trust, data
parts = ("train", "validation", "test")
(gallery, y), (queries, q), (test, t) = (data.arrays("sample-fashion-mnist", part) for part in parts)
trust = Trust.fit((gallery.reshape(len(y), -1), y), (queries.reshape(len(q), -1), q))
answer = trust(test.reshape(len(t), -1))
sure = answer.probability >= 0.9
assert (answer.labels == t)[sure].mean() > (answer.labels == t).mean() + 0.1
assert not set(sys.modules) & set(ABSENT), set(sys.modules) & set(ABSENT)
"""


@pytest.fixture(scope="module")
def python(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the built wheel and what it requires."""
    folder = tmp_path_factory.mktemp("bare")
    sources = folder / "sources"  # a copy, because a build leaves files in the folder that it is made of
    for name in ("hessians", "laplacian_metric"):
        shutil.copytree(root / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, sources / name)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    interpreter = folder / "venv" / "bin" / "python"
    command = [interpreter, "-m", "pip", "--disable-pip-version-check", "-q", "install", str(sources)]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode and not os.environ.get("CI"):
        pytest.skip("no package registry can be reached, which the base requirements come from")
    assert installed.returncode == 0, installed.stderr
    return interpreter


def run(python: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=False, cwd=python.parent
    )


def test_the_base_is_small_and_trust_works(python: Path) -> None:
    packages = next((python.parents[1] / "lib").glob("python*")) / "site-packages"
    files = (
        path
        for path in packages.rglob("*")
        if path.is_file() and path.relative_to(packages).parts[0] not in TOOLS
    )
    size = sum(path.stat().st_size for path in files)
    assert size < MOST_BYTES
    done = run(python, FOUR_LINES.replace("ABSENT", repr(ABSENT)))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("statement", ["from laplacian_metric import LAM", "import hessians"])
def test_a_name_that_needs_torch_says_so_in_one_sentence(python: Path, statement: str) -> None:
    done = run(python, statement)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError")
    assert '".[lam]"' in last


def test_the_command_says_so_too(python: Path) -> None:
    done = subprocess.run([python.parent / "lam", "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert '".[lam]"' in done.stderr
    assert len(done.stderr.splitlines()) == 1
