"""Experiments on N-digit MNIST: the cells, numbers on a line, and what covered digits leave to be read."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from experiments import covered_digits, number_line
from experiments.covered_digits import beliefs, black_tiles, chance_to_be_hidden, greatest_precision
from experiments.number_line import mean_run, shares_a_digit
from laplacian_metric.data import load
from tests.experiments.harness.miniature import Folder
from tests.experiments.sets import miniatures

# Of every kind one.
RUN = ("N2_D2_point", "N2_D2_gaussian", "N2_D2_mixture", "N3_D3_gaussian_beta0")
SETS = ("test", "corrupt", "unseen", "unseen corrupt")


@pytest.fixture(scope="module")
def ran(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The cells with few images and steps; everything else is what it is."""
    place = tmp_path_factory.mktemp("n_digit")
    miniatures.mnist(place / "data")
    shutil.copytree(root / "experiments" / "cells" / "n_digit", place / "cells" / "n_digit")
    for path in (place / "cells").rglob("*.yaml"):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "training" in content:
            content["training"] |= {"epochs": 2, "batch_size": 8, "steps_per_epoch": 3, "learning_rate": 1e-3}
        if "evaluation" in content:
            content["evaluation"]["ks"] = [1, 5]
            content["evaluation"]["verification"] |= {
                "pairs": 60, "random_pairs": 4000, "bins": 3, "repeats": 2, "drawn": 20
            }  # fmt: skip
        if "options" in content.get("data", {}):
            # Of a miniature's classes there would be one image each, and pairs need two.
            few = 210 if content["data"]["options"]["digits"] == 2 else 720
            content["data"]["options"] |= {"num_images": few, "held_out": 20}
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    folder = Folder(place)
    summary = folder.run([f"n_digit/{name}" for name in RUN], seeds=[0], data_dir=place / "data")
    assert not summary.failed, summary.failed
    return folder


@pytest.mark.parametrize("name", RUN)
def test_a_cell_runs_and_measures_pairs(ran: Folder, name: str) -> None:
    record = ran.result(f"n_digit/{name}")
    assert len(record["training"]["history"]) == 2
    point = name.endswith("point")
    sets = record["verification"]
    # Those with two digits in the plane were run before it was known that corrupt images cannot be read.
    assert tuple(sets) == (SETS if name.startswith("N2_D2") else (*SETS, "mixed"))
    for key, one in sets.items():
        assert 0 <= one["average_precision"] <= 1
        assert (one["knn_in_gallery"] is not None) is ("corrupt" in key)
        assert ("own" in one["correlations"]) is not point
    # Seen and unseen numbers are different ones.
    seen, unseen = (set(sets[key]["space"]["centres"]["labels"]) for key in ("test", "unseen"))
    assert not seen & unseen
    assert sets["test"]["space"]["labels"] == sets["corrupt"]["space"]["labels"]


@given(order=st.permutations(range(100)))
def test_neighbours_that_share_a_digit_by_their_writing(order: list[int]) -> None:
    written = [f"{number:02d}" for number in order]
    expected = [a[0] == b[0] or a[1] == b[1] for a, b in itertools.pairwise(written)]
    assert shares_a_digit(torch.tensor(order)).tolist() == expected


@given(shared=st.lists(st.booleans(), min_size=1, max_size=99))
def test_the_mean_run_by_splitting(shared: list[bool]) -> None:
    runs = [len(run) + 1 for run in "".join("x" if one else " " for one in shared).split()]
    assert mean_run(torch.tensor(shared)) == pytest.approx(sum(runs) / len(runs) if runs else 1.0)


def test_a_random_order_shares_eighteen_on_average() -> None:
    """The note's 18: 18 of the 99 other numbers share a digit with any number. 2,000 orders; 5 standard errors."""
    generator = torch.Generator().manual_seed(0)
    counts = [int(shares_a_digit(torch.randperm(100, generator=generator)).sum()) for _ in range(2000)]
    values = torch.tensor(counts, dtype=torch.float64)
    assert abs(float(values.mean()) - 18) < 5 * float(values.std()) / 2000**0.5


def test_a_run_makes_results_a_table_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    miniatures.mnist(tmp_path / "data")
    load = number_line.load
    monkeypatch.setattr(
        number_line, "load", lambda *names, **more: load(*names, **more, num_images=140, held_out=20)
    )
    monkeypatch.setattr(number_line, "OPTIONS", dataclasses.replace(number_line.OPTIONS, epochs=1))
    monkeypatch.setattr(number_line, "SEEDS", (0, 1))
    places = tmp_path / "data", tmp_path / "work", tmp_path / "out"
    assert list(number_line.run(*places)) == [
        "hib_seed0", "soft-contrastive_seed0", "hib_seed1", "soft-contrastive_seed1",
    ]  # fmt: skip
    assert list(number_line.run(*places)) == []  # what is there is not made again
    found = json.loads((tmp_path / "out" / "results" / "number_line" / "hib_seed0.json").read_text())
    assert len(found["centres"]) == 100
    assert found["centres"] != found["untrained"]
    picture = number_line.table(tmp_path / "out")[2]
    assert picture.read_bytes().startswith(b"\x89PNG")


float64 = torch.float64


def with_ink(top: int, left: int, bottom: int, right: int) -> Tensor:
    """A digit whose ink reaches from one corner to the other, both included."""
    image = torch.zeros(28, 28, dtype=torch.uint8)
    image[top, left] = image[bottom, right] = 1
    return image


box = st.tuples(*[st.integers(0, 27)] * 4).map(
    lambda x: (min(x[0], x[2]), min(x[1], x[3]), max(x[0], x[2]), max(x[1], x[3]))
)


@given(corners=box)
def test_the_chance_to_be_hidden_is_the_share_of_squares(corners: tuple[int, int, int, int]) -> None:
    image = with_ink(*corners)
    total = 0.0
    for side in range(29):
        places = list(itertools.product(range(29 - side), repeat=2))
        covers = 0
        for top, left in places:
            rest = image.clone()
            rest[top : top + side, left : left + side] = 0
            covers += int(not rest.any())
        total += covers / len(places)
    assert float(chance_to_be_hidden(image[None])) == pytest.approx(total / 29, rel=1e-12)


def test_the_chance_is_how_often_the_data_set_s_squares_hide(tmp_path: Path) -> None:
    """20,000 digits; 5 standard errors are allowed."""
    miniatures.mnist(tmp_path)
    single = load("mnist", "test", data_dir=tmp_path)
    chances = chance_to_be_hidden(single.images[:, 0])
    images = load(
        "n-digit-mnist", "test", data_dir=tmp_path, digits=2, occlusion="corrupt", num_images=10_000
    )
    expected = chances[images.extras["digits"]]
    error = float((expected * (1 - expected)).sum().sqrt()) / expected.numel()
    assert float(black_tiles(images.images).double().mean()) == pytest.approx(
        float(expected.mean()), abs=5 * error
    )


def test_beliefs_are_bayes_rule() -> None:
    numbers = torch.tensor([12, 13, 42, 77])
    hidden = torch.linspace(0.1, 1.0, 10, dtype=float64)
    black = torch.tensor([[False, False], [False, True], [True, False], [True, True]])
    labels = torch.tensor([12, 12, 42, 77])
    probabilities = beliefs(black, labels, numbers, hidden)
    # The second digit of 1? is a 2 or a 3; the first of ?2 a 1 or a 4; of nothing, any.
    expected = torch.tensor(
        [
            [1.0, 0.0, 0.0, 0.0],
            [0.3 / 0.7, 0.4 / 0.7, 0.0, 0.0],
            [0.2 / 0.7, 0.0, 0.5 / 0.7, 0.0],
            [0.2 * 0.3, 0.2 * 0.4, 0.5 * 0.3, 0.8 * 0.8],
        ],
        dtype=float64,
    )
    expected[3] /= expected[3].sum()
    torch.testing.assert_close(probabilities, expected)


def test_pairs_are_ranked_by_the_probability_that_they_match() -> None:
    belief = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], dtype=float64)
    labels = torch.tensor([0, 0, 1, 1])
    pairs = torch.tensor([[0, 1], [0, 2], [2, 3], [0, 3]])
    # 1, 1/2, 1/2 and 0, of which the first and the third match: the two in the middle are tied.
    assert greatest_precision(belief, labels, pairs) == pytest.approx((1 + 2 / 3) / 2)


def test_the_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    miniatures.mnist(tmp_path / "data")
    monkeypatch.setattr(covered_digits, "PAIRS", 100)
    covered_digits.main(["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")])
    page = (tmp_path / "out" / "covered_digits.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith(("| 2", "| 3"))]
    for row in rows:
        _, black, one, accuracy = (float(cell) for cell in row.split("|")[3:7])
        assert 0 <= black <= one <= 1
        assert 1 - one <= accuracy + 5e-3
