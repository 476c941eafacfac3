"""A folder of results is written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from laplacian_metric.core.files import OutputFolderError, output_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("existing", [False, True])
def test_results_appear_when_all_is_done(tmp_path: Path, existing: bool) -> None:
    out = tmp_path / "deep" / "out"
    if existing:
        out.mkdir(parents=True)
    with output_folder(out) as folder:
        (folder / "a.txt").write_text("a")
        assert not (out / "a.txt").exists()
    assert names(out) == ["a.txt"]
    assert names(out.parent) == ["out"]


def interrupted(out: Path) -> None:
    with output_folder(out, force=True) as folder:
        (folder / "a.txt").write_text("new")
        raise KeyboardInterrupt


@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, existing: bool) -> None:
    out = tmp_path / "out"
    if existing:
        out.mkdir()
        (out / "a.txt").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        interrupted(out)
    assert names(tmp_path) == (["out"] if existing else [])
    if existing:
        assert (out / "a.txt").read_text() == "old"


def test_a_folder_with_files_needs_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    (out / "a.txt").write_text("old")
    with pytest.raises(OutputFolderError, match="--force"), output_folder(out):
        pytest.fail("the block must not be entered")
    with output_folder(out, force=True) as folder:
        (folder / "a.txt").write_text("new")
    assert (out / "mine.txt").read_text() == "mine"
    assert (out / "a.txt").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputFolderError, match="out"), output_folder(tmp_path / "out", force=True):
        pytest.fail("the block must not be entered")
    with pytest.raises(OutputFolderError, match="deeper"), output_folder(tmp_path / "out" / "deeper"):
        pytest.fail("the block must not be entered")
