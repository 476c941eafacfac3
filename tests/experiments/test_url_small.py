"""The tables of `url-small`: what they compare, and that differences are paired."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments import url_small_questions
from experiments.harness.suites import Benchmark
from experiments.harness.suites import suite as files
from experiments.harness.suites.fitting import Part
from experiments.harness.suites.running import SCORES, WORK
from laplacian_metric import metrics
from laplacian_metric.core import tensor_file
from tests.experiments.harness.suites.tiny import content


def test_differences_are_paired_and_each_space_has_its_own_errors(tmp_path: Path) -> None:
    run = Benchmark(files.parse(content(), "tiny"), tmp_path)
    classes = torch.arange(8).repeat_interleave(25)
    generator = torch.Generator().manual_seed(0)
    values = {}
    for entry, strength in (("deterministic", 0.5), ("laplace", 2.0)):
        right = torch.rand(200, generator=generator) < 0.5
        own = torch.randn(200, generator=generator) - strength * right
        place = Part("sample", entry, 0, 0).place(tmp_path / WORK)
        place.mkdir(parents=True)
        tensor_file.save(place / SCORES, {"own": own.float(), "right": right, "classes": classes})
        values[entry] = metrics.ood_auroc(own[right].float(), own[~right].float())
    entries = {name: {"chosen": {"V1": {"setting": 0}}} for name in values}
    difference = url_small_questions.compared(
        run, "sample", entries, ("laplace", "own", "deterministic", "own")
    )
    assert difference["difference"] == pytest.approx(values["laplace"] - values["deterministic"])
    assert 0 < difference["low"] < difference["difference"] < difference["high"]
    assert difference["seeds"] == 1
    assert url_small_questions.compared(run, "sample", {}, ("laplace", "own", "deterministic", "own")) is None
