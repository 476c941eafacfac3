"""N-digit MNIST, made from a miniature of MNIST whose images show which one they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.sets.n_digit_mnist import class_numbers
from laplacian_metric import data
from laplacian_metric.data import Dataset
from tests.experiments.sets import miniatures


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mnist")
    miniatures.mnist(place)
    return place


def make(folder: Path, split: str = "test", **options: Any) -> Dataset:
    settings = {"num_images": 700, "held_out": 20, **options}
    return data.load("n-digit-mnist", split=split, data_dir=folder, **settings)


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_digits_stand_side_by_side_and_spell_the_label(digits: int, folder: Path) -> None:
    images = make(folder, digits=digits)
    originals = data.load("mnist", split="test", data_dir=folder)
    assert images.inputs.shape == (700, 1, 28, 28 * digits)
    for place in range(digits):
        source = images.extras["digits"][:, place]
        tile = images.inputs[..., 28 * place : 28 * (place + 1)]
        assert torch.equal(tile, originals.inputs[source])
    spelled = [[int(character) for character in images.class_names[label]] for label in images.labels]
    assert torch.equal(originals.labels[images.extras["digits"]], torch.tensor(spelled))


def test_seventy_percent_of_the_numbers_are_seen(folder: Path) -> None:
    for digits in (2, 3):
        seen, unseen = (set(class_numbers(digits, kind).tolist()) for kind in ("seen", "unseen"))
        assert len(seen) == 7 * 10 ** (digits - 1)
        assert not seen & unseen
        assert len(seen | unseen) == 10**digits
    assert make(folder).classes == class_numbers(2, "seen").tolist()
    assert make(folder, classes="unseen").classes == class_numbers(2, "unseen").tolist()
    assert make(folder, split="train").classes == class_numbers(2, "seen").tolist()


def test_digits_of_the_splits_are_apart(folder: Path) -> None:
    train, validation = (make(folder, split=split).extras["digits"] for split in ("train", "validation"))
    held_out = data.load("mnist", split="validation", data_dir=folder, held_out=20).indices
    assert not set(train.flatten().tolist()) & set(held_out.tolist())
    assert set(validation.flatten().tolist()) <= set(held_out.tolist())


def test_the_clean_and_the_corrupt_test_set_are_twins(folder: Path) -> None:
    clean, corrupt = make(folder, occlusion="clean"), make(folder, occlusion="corrupt")
    assert torch.equal(clean.labels, corrupt.labels)
    assert torch.equal(clean.extras["digits"], corrupt.extras["digits"])
    assert int(clean.extras["covered"].count_nonzero()) == 0
    black = corrupt.inputs != clean.inputs
    assert bool((corrupt.inputs[black] == 0).all())
    # Position 0 of the miniature is black itself, so that nothing shows on it.
    shown = clean.extras["digits"] > 0
    share = black.reshape(700, 28, 2, 28).float().mean(dim=(1, 3))
    torch.testing.assert_close(share[shown], corrupt.extras["covered"][shown].float())


@pytest.mark.statistical
def test_occlusions_are_distributed_as_published(folder: Path) -> None:
    corrupt = make(folder, occlusion="corrupt", num_images=20_000).extras["covered"]
    side = (corrupt * 28**2).sqrt().round().to(torch.int64)
    counts = torch.bincount(side.flatten(), minlength=29).double()
    expected = counts.sum() / 29
    # Chi-square with 28 degrees of freedom is above 56.9 with probability 0.001; the seed is fixed.
    assert float(((counts - expected) ** 2 / expected).sum()) < 56.9
    mixed = make(folder, split="train", num_images=20_000).extras["covered"]
    # A square of side 0, one in 29, does not show. Five standard errors of a share of 40,000 digits.
    assert float((mixed > 0).double().mean()) == pytest.approx(0.2 * 28 / 29, abs=5 * 0.002)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"digits": 0}, "digits"),
        ({"classes": "new"}, "classes"),
        ({"split": "train", "classes": "unseen"}, "classes"),
        ({"occlusion": "dirty"}, "occlusion"),
        ({"num_images": 0}, "num_images"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=message):
        make(folder, **options)
