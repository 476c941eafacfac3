"""`lam benchmark`: files of scores, the quick suite, and what is wrong with options."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Place
from tests.cli.running import clusters, refused, worked


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    embeddings, labels = clusters(120, width=8)
    path = tmp_path / "mine.npz"
    np.savez(path, embeddings=embeddings, labels=labels, uncertainty=np.linspace(0, 1, len(labels)))
    return path


def test_scores_of_a_file(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = worked("benchmark", "--quick", "--scores", mine, "--out", out, "--json")
    (row,) = json.loads(done.out)["rows"]
    assert (row["title"], row["group"]) == ("mine", "image alone")
    assert 0 <= row["r_auroc scores"] <= 1
    with (out / "leaderboard.csv").open() as stream:
        (line,) = csv.DictReader(stream)
    assert float(line["r_auroc scores"]) == row["r_auroc scores"]
    page = (out / "leaderboard.html").read_text()
    assert "image alone" in page
    assert "Yours" in page


def test_a_model_of_your_own(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = json.loads(worked("benchmark", "--quick", "--encoder", place.model, "--out", out, "--json").out)[
        "rows"
    ]
    assert {row["score"] for row in rows} == {"own", "gallery distance", "match risk", "Trust"}
    assert {row["title"] for row in rows} == {"model"}
    own = next(row for row in rows if row["score"] == "own")
    assert 0 <= own["recall mnist"] <= 1
    assert 0 <= own["crop"] <= 1
    assert "takes features" in refused("benchmark", "--quick", "--encoder", place.flat_model, "--out", out)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--suite", "url-smal"), "url-small"),
        (("--quick", "--method", "laplac"), "laplace"),
        (("--quick", "--track", "smaple"), "sample"),
        (("--quick", "--seed", "5"), "no seed 5"),
        (("--scores", "none.npz"), "none.npz"),
        (("--encoder", "none"), "none"),
        (("--scores", "a.npz", "--encoder", "b"), "--encoder and --scores"),
        (("--scores", "a.npz", "--method", "pfe"), "--method"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    assert named in refused("benchmark", *arguments, "--out", tmp_path / "out")


@pytest.mark.slow
def test_the_quick_suite_from_an_empty_folder_and_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = worked("benchmark", "--quick", "--threads", 1, "--out", out, "--json")
    rows = json.loads(first.out)["rows"]
    assert {row["group"] for row in rows} == {"image alone", "beside the method", "image and gallery"}
    assert all(row["seeds"] == 1 for row in rows)
    assert "parts to do" in first.err
    page = (out / "leaderboard.html").read_text()
    assert "What chose the settings" in page
    again = worked("benchmark", "--quick", "--threads", 1, "--out", out, "--json")
    assert json.loads(again.out)["rows"] == rows
    assert again.err.startswith("0 parts to do")
