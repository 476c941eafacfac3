"""What covered digits leave to be read: chances by counting squares, and beliefs by Bayes' rule."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from experiments import covered_digits
from experiments.covered_digits import beliefs, black_tiles, chance_to_be_hidden, greatest_precision
from laplacian_metric.data import load
from tests.experiments.sets import miniatures

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
