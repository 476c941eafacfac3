"""The tables of `url-small`: what they compare, and that differences are paired."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import url_small, url_small_questions
from experiments.harness.suites import Benchmark, Row
from experiments.harness.suites import suite as files
from experiments.harness.suites.fitting import Part
from experiments.harness.suites.judging import GALLERY, IMAGE
from experiments.harness.suites.leaderboard import of_group
from experiments.harness.suites.running import SCORES, WORK
from laplacian_metric import metrics
from laplacian_metric.core import tensor_file
from tests.experiments.harness.suites.tiny import content

BASE = Row("t", "x", "X", "own", IMAGE, seeds=3, recall={"a": 0.4}, r_auroc={"a": 0.6, "b": 0.5})


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
    assert difference is not None
    assert difference["difference"] == pytest.approx(values["laplace"] - values["deterministic"])
    assert 0 < difference["low"] < difference["difference"] < difference["high"]
    assert difference["seeds"] == 1
    assert url_small_questions.compared(run, "sample", {}, ("laplace", "own", "deterministic", "own")) is None


def test_tables_keep_the_groups_apart_and_the_best_first() -> None:
    listed = [
        BASE,
        replace(BASE, title="Y", r_auroc={"a": 0.7, "b": 0.4}),
        replace(BASE, title="Z", group=GALLERY),
    ]
    text = of_group(listed, IMAGE)
    assert text.index("| Y |") < text.index("| X |")
    assert "Z" not in text
    assert "0.600" in text


def test_correlations_over_methods() -> None:
    listed = [
        replace(BASE, r_auroc={"a": 0.1 * n, "b": -0.1 * n}, upstream=0.2 * n, recall={"a": n})
        for n in range(1, 6)
    ]
    lines = {line[0]: line for line in url_small_questions.across_models(listed)}
    assert lines["R-AUROC of seen classes (upstream)"][1] == "1.00"
    assert lines["R-AUROC b"][1] == "-1.00"
    assert "people" not in lines  # nothing was measured


def test_corruptions_by_strength_and_safe_retrieval() -> None:
    keys = ("all", "queries", "queries, at random", "gallery", "both", "both, at random")
    image = {"corruption": {"noise-0.5": 0.6, "blur-0.5": 0.8, "noise-1.0": 0.9}, "unseen_auroc": 0.5}
    part: dict[str, Any] = {
        "image": {"own": image},
        "safe": {s: dict.fromkeys(keys, 0.25) for s in ("own", "match risk", "Trust")},
    }
    entry = {"title": "X", "score": "own", "seeds": {"V1": {"0": part}}}
    track = {"entries": {"x": entry, "y": {"title": "Y", "score": "own", "seeds": {}}}}
    assert url_small_questions.by_strength(track) == [["X", "0.700", "0.900", "0.500"]]
    assert [line[:3] for line in url_small_questions.safe(track)] == [
        ["X", s, "0.250"] for s in ("own", "match risk", "Trust")
    ]
    assert url_small.rounded({"a": [0.123456, math.nan]})["a"][0] == 0.1235


def test_every_question_has_a_panel_and_every_track_its_files(tmp_path: Path) -> None:
    own = {"method": {"name": "deterministic"}, "base": None, "score": "embedding norm", "settings": [{}]}
    plan = content()
    plan["entries"] |= {
        name: {**own, "title": name, "tracks": ["sample"]} for name in ("risk-head", "softmax")
    }
    run = Benchmark(files.parse(plan, "tiny"), tmp_path)
    assert run.run().failed == {}
    written = url_small.files_of(run, "sample", run.results())
    kinds = ("", "_questions", "_riskiest")
    assert {f"plots/url_small_sample{kind}.png" for kind in kinds} <= set(written)
    assert all(written[f"plots/url_small_sample{kind}.png"][:4] == b"\x89PNG" for kind in kinds)
    text = str(written["tables/url_small_sample.md"])
    assert "| risk-head: own less softmax: own | +0.000 (+0.000 to +0.000) | 2 |" in text
    assert "joint-risk: R@1 less joint-risk-stopped: R@1 | – |" in text
