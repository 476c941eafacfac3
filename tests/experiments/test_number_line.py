"""Numbers on a line: what neighbours share by a loop, and a run from data to the table and the picture."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import number_line
from experiments.number_line import mean_run, shares_a_digit
from tests.experiments.sets import miniatures


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
