"""The command that runs cells, and the cells that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments import run, tables
from experiments.harness import Cells
from tests.experiments.harness.miniature import LAPLACE, Folder, folder_with


def called(folder: Folder, *options: str) -> int:
    places = {"--cells-dir": folder.cells, "--work": folder.work, "--results": folder.results}
    return run.main([*options, *(str(part) for pair in places.items() for part in pair)])


def test_cells_are_run_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE)
    assert called(folder, "--list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "to do    mini/deterministic, seed 0",
        "to do    mini/laplace, seed 0",
    ]
    assert called(folder, "--cells", "mini/det*") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "1 of 1 runs to do"
    assert said[1].startswith("mini/deterministic, seed 0: recall@1 0.")
    assert "AUROC digits 0." in said[1]
    assert called(folder, "--list", "--seeds", "0", "4", "--cells", "mini/det*") == 0
    assert capsys.readouterr().out.splitlines() == [
        "done     mini/deterministic, seed 0",
        "to do    mini/deterministic, seed 4",
    ]


def test_mistakes_are_one_line_and_a_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_with(tmp_path, wrong={**LAPLACE, "trainig": {}})
    assert called(folder) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("run: ")
    assert "wrong.yaml: there is no key 'trainig'; did you mean 'training'?" in said.err
    assert called(folder, "--cells", "mini/nothing") == 1


def test_failures_give_a_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_with(tmp_path, bad={"inherit": "mini/deterministic", "training": {"learning_rate": 1e30}})
    assert called(folder, "--cells", "mini/bad") == 1
    assert "mini/bad, seed 0: failed, ValueError" in capsys.readouterr().out


def test_every_cell_that_there_is_can_be_run(root: Path) -> None:
    cells = Cells(root / "experiments" / "cells")
    names = cells.names()
    assert {"fashion_mnist/deterministic", "fashion_mnist/laplace_diag", "fashion_mnist/online"} <= set(names)
    for name in names:
        assert cells.config(name)["name"] == name
        assert cells[name].title, f"{name} has no title"
        assert cells[name].notes, f"{name} does not say where its settings come from"


def test_the_cells_of_your_own_on_the_page_run(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (root / "experiments" / "README.md").read_text(encoding="utf-8")
    files = re.findall(r"`(mine[\w/]*\.yaml)`[^\n]*:\n\n```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert [name for name, _ in files] == [
        "mine/own/deterministic.yaml",
        "mine/own/laplace.yaml",
        "mine.yaml",
    ]
    for name, text in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        few = text.replace("{train: sample-fashion-mnist,", "{train: sample-fashion-mnist, limit: 100,")
        (tmp_path / name).write_text(few, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"python -m experiments\.(run|tables) ((?:--cells-dir|--tables) mine.*)\n", page)
    assert [name for name, _ in commands] == ["run", "tables"]
    for name, options in commands:
        assert {"run": run, "tables": tables}[name].main(options.split()) == 0
    table = (tmp_path / "found" / "tables" / "own.md").read_text(encoding="utf-8")
    assert re.search(
        r"\| LAM, low rank \| 0\.\d+ ± 0\.\d+ \| 0\.\d+ ± 0\.\d+ \| 0\.\d+ ± 0\.\d+ \| 2 \|", table
    )
