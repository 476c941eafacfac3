"""The page on other libraries: the code of every section runs by itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import run_page

NEEDS = {
    "Retrieval: LangChain, LlamaIndex, Haystack": "langchain_core",
    "Routing": None,
    "pytorch-metric-learning": "pytorch_metric_learning",
    "scikit-learn": "sklearn",
    "Lightning": "lightning",
    "sentence-transformers": None,  # the page takes a stand-in
    "Hugging Face hub": None,  # nothing is uploaded
}


def sections(root: Path) -> dict[str, str]:
    page = (root / "docs" / "integrations.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_section_is_run(root: Path) -> None:
    assert set(sections(root)) - {"MTEB"} == set(NEEDS)  # its model would be downloaded


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title", list(NEEDS))
def test_the_code_of_a_section_runs(title: str, root: Path, tmp_path: Path) -> None:
    library = NEEDS[title]
    if library is not None:
        pytest.importorskip(library, reason=f"{library} is not installed, and the section {title!r} needs it")
    page = tmp_path / "section.md"
    page.write_text(sections(root)[title], encoding="utf-8")
    run_page(page)
