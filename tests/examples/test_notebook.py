"""The notebook runs as it stands, and what it says of its numbers holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = "which_answers_to_trust.ipynb"


@pytest.fixture(scope="module")
def executed(root: Path) -> Any:
    """The notebook after a run in a kernel of its own."""
    nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")
    client = pytest.importorskip("nbclient", reason="notebooks need nbclient")
    pytest.importorskip("ipykernel", reason="notebooks need ipykernel")
    notebook = nbformat.read(root / "examples" / NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    resources = {"metadata": {"path": str(root)}}
    return client.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()


def printed(notebook: Any) -> str:
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return "".join(
        "".join(output.get("text", "")) for cell in cells for output in cell["outputs"] if "text" in output
    )


@pytest.mark.slow
def test_it_says_what_it_computes(executed: Any) -> None:
    text = printed(executed)
    scores = {
        name.strip(): [float(value) for value in values.split()]
        for name, values in re.findall(r"^(\S.{24})((?:\s+\d\.\d{3}){3})$", text, re.MULTILINE)
    }
    assert len(scores) == 4
    probability, distance = scores["Trust: 1 - probability"], scores["distance to the gallery"]
    assert max(scores, key=lambda name: scores[name][0]) == "Trust: 1 - probability"
    assert max(scores, key=lambda name: scores[name][2]) == "Trust: 1 - probability"
    assert distance[2] > probability[2] - 0.1
    assert any(
        "image/png" in output.get("data", {})
        for cell in executed["cells"]
        for output in cell.get("outputs", [])
    )


def test_it_is_stored_with_its_output_and_without_a_path(root: Path) -> None:
    text = (root / "examples" / NOTEBOOK).read_text(encoding="utf-8")
    notebook = json.loads(text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    assert "right answers:" in printed(notebook)
    assert not re.search(r"/(home|tmp|root|work|usr)/", text)
