"""The command line of the harness: cells, tables and suites, and the committed results that it makes tables of."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import experiments.published  # noqa: F401 (cells as published need what it registers)
from experiments import harness
from experiments.harness import Cells
from experiments.harness.__main__ import main
from experiments.harness.results import read_results
from experiments.harness.tables.descriptions import read_published, read_tables
from experiments.harness.tables.table_columns import find
from tests.experiments.harness.miniature import LAPLACE, Folder, folder_with

EXPERIMENTS = Path(harness.__file__).parents[1]


def called(folder: Folder, *options: str) -> int:
    places = {"--cells-dir": folder.cells, "--work": folder.work, "--results": folder.results}
    return main(["run", *options, *(str(part) for pair in places.items() for part in pair)])


def test_cells_are_run_listed_and_put_into_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_with(tmp_path, laplace=LAPLACE)

    def states() -> list[str]:
        assert called(folder, "--list") == 0
        return [line.split()[0] for line in capsys.readouterr().out.splitlines()]

    assert states() == ["to", "to"]
    assert called(folder, "--cells", "mini/det*") == 0
    assert "mini/deterministic, seed 0: recall@1 0." in capsys.readouterr().out
    assert states() == ["done", "to"]
    (tmp_path / "tables.yaml").write_text(
        "tables: {mini: {title: M, columns: [mAP@1], rows: [{label: Point, cell: mini/deterministic}]}}"
    )
    tables = ["tables", "--results", str(folder.results), "--tables", str(tmp_path / "tables.yaml")]
    assert main([*tables, "--out", str(tmp_path)]) == 0
    text = (tmp_path / "tables" / "mini.md").read_text(encoding="utf-8")
    value = folder.result("mini/deterministic")["retrieval"]["test"]["map@1"]
    assert f"| Point | {value:.3f} | 1 |" in text
    record = json.loads((tmp_path / "tables" / "mini.json").read_text(encoding="utf-8"))
    assert [(one["cell"], one["status"]) for one in record["cells"]] == [("mini/deterministic", "done")]


def test_mistakes_and_failures_give_a_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_with(tmp_path, bad={"inherit": "mini/deterministic", "training": {"learning_rate": 1e30}})
    assert called(folder, "--cells", "mini/bad") == 1
    assert "mini/bad, seed 0: failed" in capsys.readouterr().out
    folder.write("mini/wrong", {**LAPLACE, "trainig": {}})
    assert called(folder) == 1
    assert "trainig" in capsys.readouterr().err


def test_the_cells_of_your_own_on_the_page_run(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (root / "experiments" / "README.md").read_text(encoding="utf-8")
    files = re.findall(r"`(mine[\w/]*\.yaml)`[^\n]*:\n\n```yaml\n(.*?)```", page, flags=re.DOTALL)
    for name, text in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        few = text.replace("{train: sample-fashion-mnist,", "{train: sample-fashion-mnist, limit: 100,")
        (tmp_path / name).write_text(few, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(
        r"python -m experiments\.harness ((?:run --cells-dir|tables --tables) mine.*)\n", page
    )
    for options in commands:
        assert main(options.split()) == 0
    table = (tmp_path / "found" / "tables" / "own.md").read_text(encoding="utf-8")
    assert re.search(r"\| LAM, low rank \|( 0\.\d+ ± 0\.\d+ \|){3} 2 \|", table)


# --- committed results ---


def test_committed_tables_are_made_again(root: Path, tmp_path: Path) -> None:
    assert main(["tables", "--results", str(root / "figures" / "results"), "--out", str(tmp_path)]) == 0
    committed = root / "figures" / "tables"
    names = sorted(
        path.name for path in (tmp_path / "tables").glob("*.md") if (committed / path.name).exists()
    )
    assert len(names) == 31
    for name in names:
        made, kept = (
            [
                line
                for line in (folder / name).read_text("utf-8").splitlines()
                if not line.startswith("- Made by")
            ]
            for folder in (tmp_path / "tables", committed)
        )
        assert made == kept, name


def test_committed_results_have_the_settings_of_their_cells(root: Path) -> None:
    cells, results = Cells(EXPERIMENTS / "cells"), harness.Results(root / "figures" / "results")
    for name in cells.names():
        for seed in cells[name].seeds:
            assert results.changes(name, seed, cells.config(name)) == []


def test_the_tables_are_described_rightly(root: Path) -> None:
    tables = read_tables(EXPERIMENTS / "tables.yaml")
    published = read_published(EXPERIMENTS / "published_numbers.yaml")
    cells = {result.cell for result in read_results(root / "figures" / "results")}
    for table in tables:
        assert cells & set(table.cells()) or table.name == "lfw"
        if table.published:
            assert all(row.published in (*published[table.published].rows, "") for row in table.rows)
        # A table of uncertainties carries the scores that need no method.
        if table.rows and any(column.about_uncertainty for column in table.columns):
            assert {"feature norm", "embedding norm", "nearest distance"} <= {row.score for row in table.rows}
    for numbers in (row for table in published.values() for row in table.rows.values()):
        for metric, number in numbers.items():
            name, _, out = metric.partition("/")
            assert find(name, out).metric == name
            assert 0 <= abs(number.mean) <= 1


# --- suites ---


def scores(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 20)
    embeddings = np.eye(8)[labels] + 0.4 * generator.standard_normal((120, 8))
    np.savez(folder / "mine.npz", embeddings=embeddings, labels=labels, uncertainty=generator.random(120))
    return folder / "mine.npz"


def test_your_own_scores_are_judged(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["suite", "--suite", "quick", "--scores", str(scores(tmp_path)), "--out", str(out)]) == 0
    (own,) = json.loads((out / "leaderboard.json").read_text(encoding="utf-8"))["rows"]
    assert (own["title"], own["score"], own["group"]) == ("mine", "own", "image alone")
    assert 0 <= own["recall scores"] <= 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--suite", "url-smal"), "url-small"),
        (("--suite", "quick", "--method", "laplac"), "laplace"),
        (("--suite", "quick", "--track", "smaple"), "sample"),
        (("--suite", "quick", "--seed", "5"), "5"),
        (("--scores", "none.npz"), "none.npz"),
        (("--scores", "a.npz", "--method", "pfe"), "--method"),
    ],
)
def test_wrong_options_of_suites_are_named(
    tmp_path: Path, arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["suite", *arguments, "--out", str(tmp_path / "out")]) == 1
    assert named in capsys.readouterr().err


@pytest.mark.slow
def test_the_quick_suite_from_an_empty_folder_and_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows() -> list[dict[str, object]]:
        assert main(["suite", "--suite", "quick", "--threads", "1", "--out", str(tmp_path)]) == 0
        return list(json.loads((tmp_path / "leaderboard.json").read_text(encoding="utf-8"))["rows"])

    first = rows()
    assert {row["group"] for row in first} == {"image alone", "beside the method", "image and gallery"}
    assert rows() == first


FAMILIES = ("cub", "lfw", "msls", "cifar10_svhn", "grocery")
PAGES = {
    "cub": "data.caltech.edu/records/65de6-vp158",
    "lfw": "kaggle datasets download -d jessicali9530/lfw-dataset",
    "msls": "www.mapillary.com/dataset/places",
    "cifar10_svhn": "cifar",
    "grocery": "there is no folder",
}


def test_one_set_of_features_serves_all_cells_on_a_frozen_backbone(root: Path) -> None:
    cells = Cells(root / "experiments" / "cells")
    places = {cells[name].features_at(seed) for name in cells.matching(["grocery/*"]) for seed in (0, 1)}
    assert len(places) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_without_its_data_a_cell_says_where_they_are(family: str, root: Path, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.cells = root / "experiments" / "cells"
    name = f"{family}/deterministic"
    summary = folder.run([name], seeds=[0], data_dir=tmp_path / "none")
    assert list(summary.without_data) == [f"{name}, seed 0"]
    assert PAGES[family].lower() in summary.without_data[f"{name}, seed 0"].lower()
    assert not list(folder.results.rglob("*.json"))
