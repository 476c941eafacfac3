"""The sets of images: OOD images have the size of what the network knows, corrupted ones come from validation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.corruptions import corrupt, corrupt_some
from experiments.harness.image_sets import (
    CORRUPTIONS,
    CROP,
    cover_digits,
    image_sets,
)
from experiments.harness.sections import DataSection
from laplacian_metric import data
from laplacian_metric.core.splits import Role
from tests.experiments.sets.miniatures import write_image


def section(**options: object) -> DataSection:
    return DataSection.model_validate({"train": "sample-fashion-mnist", **options})


def test_sets_are_the_splits_at_even_steps() -> None:
    sets = image_sets(section(limit=50), None, batch_size=20)
    for name in ("train", "validation", "test"):
        whole = data.load("sample-fashion-mnist", name)
        rows = torch.arange(50) * len(whole) // 50
        assert torch.equal(sets[name].inputs, whole.floats()[rows])
        assert torch.equal(sets[name].labels, whole.labels[rows])


def test_corrupted_images_are_every_fifth_of_validation_and_windows_are_of_test_images() -> None:
    sets = image_sets(section(limit=50), None)
    clean = sets["validation"].inputs[::5]
    expected = torch.cat([corrupt(clean, kind, 1.0) for kind in CORRUPTIONS])
    assert torch.equal(sets["corrupted"].inputs, expected)
    assert torch.equal(sets["corrupted"].labels, sets["validation"].labels[::5].repeat(4))
    assert sets["corrupted"].role is Role.SELECTION
    images = sets.images["test"]
    expected = corrupt(images.floats(), "crop", CROP, indices=images.indices)
    assert torch.equal(sets["cropped"].inputs, expected)
    assert sets["cropped"].role is Role.EVALUATION


def test_a_share_of_the_training_images_may_be_corrupted_and_no_others() -> None:
    clean, sets = (
        image_sets(section(limit=50), None),
        image_sets(section(limit=50, corrupted_share=0.4), None),
    )
    expected = corrupt_some(clean["train"].inputs, 0.4, indices=clean.images["train"].indices)
    assert torch.equal(sets["train"].inputs, expected)
    assert not torch.equal(expected, clean["train"].inputs)
    assert sets["training"] is sets["train"]
    assert sets["train"].role is Role.FITTING
    for name in ("validation", "test"):
        assert torch.equal(sets[name].inputs, clean[name].inputs)


@pytest.mark.parametrize("channels", [1, 3])
def test_ood_images_get_the_size_and_the_channels_of_the_training_images(
    channels: int, tmp_path: Path
) -> None:
    for kind in ("apples", "pears"):
        for number in range(2):
            write_image(tmp_path / "fruit" / "test" / kind / f"{number}.png", 50 * number, size=(40, 30))
    out = (
        {"name": "folder", "label": "fruit", "options": {"path": "fruit"}},
        {"name": "sample-mnist", "limit": 6},
    )
    sets = image_sets(section(limit=20, image_size=32, channels=channels, out=out), tmp_path)
    assert sets["test"].inputs.shape == (20, channels, 32, 32)
    assert sets["out/fruit"].inputs.shape == (4, channels, 32, 32)
    assert sets["out/sample-mnist"].inputs.shape == (6, channels, 32, 32)
    assert sets["out/fruit"].inputs.max() <= 1


def test_digits_are_covered_anew_as_the_data_set_covers_them() -> None:
    """The share of covered digits, and the mean area and place of a square; 4,000 images, 5 standard errors."""
    image = torch.full((1, 28, 56), 9, dtype=torch.uint8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        covered = torch.stack([cover_digits(image) for _ in range(4000)])[:, 0] == 0
    assert bool((image == 9).all())  # the image itself stays
    tiles = torch.stack([covered[..., :28], covered[..., 28:]]).flatten(0, 1).double()
    area = tiles.flatten(1).sum(1)
    sides = torch.arange(29, dtype=torch.float64)
    expected = 0.2 * sides.square().mean()  # a side of 0 covers nothing
    assert abs(float(area.mean() - expected)) < 5 * float(area.std()) / len(area) ** 0.5
    share, true = float((area > 0).double().mean()), 0.2 * 28 / 29
    assert abs(share - true) < 5 * (true * (1 - true) / len(area)) ** 0.5
    assert bool((area.sqrt() == area.sqrt().round()).all())  # squares
    across = tiles.mean(0)
    assert torch.allclose(across, across.flip(0), atol=0.02)
    assert torch.allclose(across, across.T, atol=0.02)


def test_only_training_is_augmented() -> None:
    sets = image_sets(section(limit=30, augment="crop-flip"), None)
    rows = [torch.arange(30)]
    torch.manual_seed(0)
    (batch,) = sets["training"].batches(rows)
    seen = batch.inputs
    assert torch.equal(batch.labels, sets["train"].labels)
    assert seen.shape == sets["train"].inputs.shape
    assert not torch.equal(seen, sets["train"].inputs)
    assert torch.equal(sets["train"].inputs, image_sets(section(limit=30), None)["train"].inputs)
