"""Suites as files: what they may say, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.harness import suites
from experiments.harness.suites import suite as files
from experiments.harness.suites.sets import TrackSets
from laplacian_metric.core.splits import Role
from tests.experiments.harness.suites.tiny import content

TEST = {"data": "sample-mnist", "split": "test"}
TRAIN = {"data": "sample-fashion-mnist", "split": "train"}


@pytest.mark.parametrize("name", suites.names())
def test_every_setting_of_the_installed_suites_can_be_made(name: str) -> None:
    suite = suites.load(name)
    for entry, one in suite.entries.items():
        for track in one.tracks:
            for setting in range(len(one.settings)):
                options = suite.options(track, entry, setting)
                assert options.method.make().name == one.method.name
                assert options.plain()["training"]["epochs"] >= 0
    for track in suite.tracks.values():
        assert all(images.role is Role.EVALUATION for images in track.unseen.values())
        assert all(images.role is not Role.EVALUATION for images in track.choice.values())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"tracks": {"sample": {"validation": {"data": "sample-mnist", "split": "test"}}}},
            "test images choose nothing",
        ),
        (
            {"tracks": {"sample": {"choice": {"x": {"data": "sample-mnist", "split": "test"}}}}},
            "choose nothing",
        ),
        (
            {
                "tracks": {
                    "sample": {"train": {"data": "sample-fashion-mnist", "split": "train", "held_out": True}}
                }
            },
            "train",
        ),
        (
            {"tracks": {"sample": {"unseen": {"x": {"data": "sample-fashion-mnist", "split": "train"}}}}},
            "take test images",
        ),
        ({"tracks": {"sample": {"corruptions": ["rain"]}}}, "rain"),
        ({"reference": "pfe"}, "reference is 'pfe'"),
        ({"entries": {"laplace": {"base": None}}}, "laplace needs a base"),
        ({"entries": {"deterministic": {"base": "laplace"}}}, "takes no base"),
        ({"entries": {"laplace": {"base": "lam"}}}, "deterministic"),
        ({"entries": {"laplace": {"settings": []}}}, "at least one"),
        ({"entries": {"laplace": {"settings": [{"loss": {}}]}}}, "loss"),
        ({"entries": {"laplace": {"settings": [{"method": {"temprature": 1.0}}]}}}, "temperature"),
        ({"entries": {"laplace": {"tracks": ["smaple"]}}}, "did you mean 'sample'"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], named: str) -> None:
    def apply(below: dict[str, Any], above: dict[str, Any]) -> None:
        for key, value in above.items():
            if isinstance(value, dict) and isinstance(below.get(key), dict) and "data" not in value:
                apply(below[key], value)
            else:
                below[key] = value

    values = content()
    apply(values, change)
    with pytest.raises(ValueError, match=f"^the file.*{named}"):
        files.parse(values, "the file")


def test_held_out_images_are_test_images_and_in_no_other_set(tmp_path: Path) -> None:
    sets = TrackSets(files.parse(content(), "tiny").tracks["sample"], None, tmp_path)
    train, seen = sets["train"], sets["seen"]
    assert seen.role is Role.EVALUATION
    assert train.role is Role.FITTING
    assert not torch.isin(sets.images("train").digests(), sets.images("seen").digests()).any()
    assert len(sets["cropped"]) == len(sets["clean"]) == 18
    assert not torch.equal(sets["corrupted/noise-1.0"].inputs, sets["clean"].inputs)


def test_features_of_a_frozen_network_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = content()
    values["tracks"]["sample"]["network"]["frozen"] = True
    track = files.parse(values, "tiny").tracks["sample"]
    sets = TrackSets(track, None, tmp_path, progress=False)
    features = {name: sets[name].inputs for name in ("validation", "clean", "cropped")}
    block = sets.images("validation").floats()
    with torch.no_grad():
        expected = sets.encoder.eval().features(block)
    torch.testing.assert_close(features["validation"], expected, rtol=1e-3, atol=1e-3)
    assert not torch.equal(features["clean"], features["cropped"])

    again = TrackSets(track, None, tmp_path, progress=False)
    again.encoder.backbone.register_forward_pre_hook(lambda *_: pytest.fail("the features are there"))
    assert all(torch.equal(again[name].inputs, rows) for name, rows in features.items())

    payload = next((tmp_path / "clean").rglob("features.bin"))
    payload.write_bytes(payload.read_bytes()[:-1])
    assert torch.equal(TrackSets(track, None, tmp_path, progress=False)["clean"].inputs, features["clean"])
