"""Every data set by name, read from a miniature of its real layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from laplacian_metric import data
from laplacian_metric.data import CorruptFileError, Dataset, MissingDataError, Split
from tests.experiments.sets import miniatures

# What a miniature needs beyond the defaults: it is too small to hold 5,000 images out.
OPTIONS: dict[str, dict[str, Any]] = {
    "fashion-mnist": {"held_out": 20},
    "mnist": {"held_out": 20},
    "cifar-10": {"held_out": 20},
    "svhn": {"held_out": 10},
    "n-digit-mnist": {"held_out": 20, "num_images": 140},
}
ZERO_SHOT = ["cars-196", "cub-200-2011", "lfw", "quickdraw", "stanford-online-products"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of the test's own; nothing else is looked in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LAPLACIAN_METRIC_DATA", raising=False)
    place = tmp_path / "data"
    place.mkdir()
    return place


def load(name: str, folder: Path, split: str, **options: Any) -> Dataset:
    return data.load(name, split=split, data_dir=folder, **{**OPTIONS.get(name, {}), **options})


@pytest.mark.parametrize("name", sorted(miniatures.MINIATURES))
def test_every_split_is_complete(name: str, folder: Path) -> None:
    miniatures.MINIATURES[name](folder)
    for split in ("train", "validation", "train+validation", "test"):
        loaded = load(name, folder, split, image_size=8)
        assert len(loaded) == len(loaded.labels) == len(loaded.indices) > 0
        assert loaded.labels.dtype == loaded.indices.dtype == torch.int64
        assert loaded.split is Split(split)
        assert loaded.licence
        assert loaded.citation
        assert loaded.page
        image, label = loaded[-1]
        assert image.dtype == torch.float32
        assert image.shape[-2:] == (8, 8)
        assert label == int(loaded.labels[-1])
        images, labels = next(iter(DataLoader(loaded, batch_size=3)))
        assert images.shape == (3, *image.shape)
        assert torch.equal(labels, loaded.labels[:3])
        assert loaded.floats().shape == (len(loaded), *image.shape)


@pytest.mark.parametrize("name", sorted(set(miniatures.MINIATURES) - {"n-digit-mnist"}))
def test_training_and_validation_share_no_image_and_make_up_the_published_set(
    name: str, folder: Path
) -> None:
    miniatures.MINIATURES[name](folder)
    train, validation, both = (
        load(name, folder, split) for split in ("train", "validation", "train+validation")
    )
    assert not set(train.indices.tolist()) & set(validation.indices.tolist())
    assert sorted([*train.indices.tolist(), *validation.indices.tolist()]) == both.indices.tolist()


@pytest.mark.parametrize("name", ZERO_SHOT)
def test_zero_shot_splits_share_no_class(name: str, folder: Path) -> None:
    miniatures.MINIATURES[name](folder)
    train, validation, test = (
        set(load(name, folder, split).classes) for split in ("train", "validation", "test")
    )
    assert not train & validation
    assert not (train | validation) & test
    assert set(load(name, folder, "all").classes) == train | validation | test


@pytest.mark.parametrize(
    ("name", "train", "validation", "test"),
    [
        ("cub-200-2011", [0, 1, 2, 3, 5, 6, 7, 8], [4, 9], range(10, 20)),
        ("cars-196", [0, 1, 2, 3, 5, 6, 7, 8], [4, 9], range(10, 20)),
        ("stanford-online-products", [0, 1, 2, 3, 5, 6, 7, 8], [4, 9], range(10, 20)),
        ("quickdraw", [0, 1, 2, 3, 5, 6, 7, 8, 10], [4, 9], range(11, 22)),
        ("lfw", [0, 2, 4, 6, 10, 12, 14, 16], [8, 18], range(1, 20, 2)),
    ],
)
def test_classes_of_zero_shot_splits(
    name: str, train: list[int], validation: list[int], test: range, folder: Path
) -> None:
    miniatures.MINIATURES[name](folder)
    assert load(name, folder, "train").classes == train
    assert load(name, folder, "validation").classes == validation
    assert load(name, folder, "test").classes == list(test)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar-10", "svhn"])
def test_validation_has_the_last_images_of_every_class(name: str, folder: Path) -> None:
    miniatures.MINIATURES[name](folder)
    validation, both = load(name, folder, "validation"), load(name, folder, "train+validation")
    each = OPTIONS[name]["held_out"] // 10
    for label in range(10):
        members = both.indices[both.labels == label]
        assert validation.indices[validation.labels == label].tolist() == members[-each:].tolist()


def test_idx_images_are_those_at_their_indices(folder: Path) -> None:
    miniatures.fashion_mnist(folder)
    train = load("fashion-mnist", folder, "train")
    assert isinstance(train.images, torch.Tensor)
    assert train.images[:, 0, 0, 0].tolist() == train.indices.tolist()


def test_cifar_is_red_first_and_batches_keep_their_order(folder: Path) -> None:
    miniatures.cifar10(folder)
    both = load("cifar-10", folder, "train+validation")
    assert isinstance(both.images, torch.Tensor)
    assert both.images[:, :, 0, 0].tolist() == [[position // 40, 100, 200] for position in range(200)]
    image = load("cifar-10", folder, "test", preprocessing="imagenet")[0][0]
    assert image[:, 0, 0].tolist() == pytest.approx(
        [(5 / 255 - 0.485) / 0.229, (100 / 255 - 0.456) / 0.224, (200 / 255 - 0.406) / 0.225], abs=1e-5
    )


def test_human_labels_of_cifar(folder: Path) -> None:
    miniatures.cifar10(folder)
    train, test = load("cifar-10", folder, "train"), load("cifar-10", folder, "test")
    assert train.extras["human_labels"].shape == (len(train), 3)
    wrong = train.indices % 5 == 0
    assert torch.equal(train.extras["worst_label"] != train.labels, wrong)
    assert test.extras["human_distribution"].shape == (40, 10)
    assert torch.equal(test.extras["human_distribution"].argmax(dim=1), test.labels)
    noisy = load("cifar-10", folder, "train", labels="worst")
    assert torch.equal(noisy.labels, train.extras["worst_label"])
    assert torch.equal(noisy.indices, train.indices)
    with pytest.raises(ValueError, match="no labels for test images"):
        load("cifar-10", folder, "test", labels="worst")
    with pytest.raises(ValueError, match=r"'noisy'; it must be one of: clean, aggregate"):
        load("cifar-10", folder, "train", labels="noisy")


def test_cifar_split_by_class(folder: Path) -> None:
    miniatures.cifar10(folder)
    options = {"held_out": 15, "zero_shot": True}
    train, validation, both, test = (
        load("cifar-10", folder, split, **options)
        for split in ("train", "validation", "train+validation", "test")
    )
    assert [len(part) for part in (train, validation, both, test)] == [85, 15, 100, 20]
    assert train.classes == validation.classes == [0, 1, 2, 3, 4]
    assert test.classes == [5, 6, 7, 8, 9]
    for part, whole in ((train, "train+validation"), (validation, "train+validation"), (test, "test")):
        published = load("cifar-10", folder, whole)
        assert torch.equal(published.labels[part.indices], part.labels)
        assert isinstance(published.images, torch.Tensor)
        assert isinstance(part.images, torch.Tensor)
        assert torch.equal(published.images[part.indices], part.images)
        for name, values in part.extras.items():
            assert torch.equal(published.extras[name][part.indices], values)
    assert not set(train.indices.tolist()) & set(validation.indices.tolist())
    for label in range(5):
        members = both.indices[both.labels == label]
        assert validation.indices[validation.labels == label].tolist() == members[-3:].tolist()
    with pytest.raises(ValueError, match="which zero_shot keeps for testing: leave one of the two out"):
        load("cifar-10", folder, "train", labels="worst", zero_shot=True)


def test_human_labels_can_be_left_out_or_insisted_on(folder: Path) -> None:
    miniatures.cifar10(folder)
    assert not load("cifar-10", folder, "train", human_labels=False).extras
    (folder / "cifar10n.npz").unlink()
    (folder / "cifar10h-probs.npy").unlink()
    assert not load("cifar-10", folder, "train").extras
    with pytest.raises(MissingDataError, match=r"cifar10n.npz was not found .*noisylabels.com"):
        load("cifar-10", folder, "train", human_labels=True)
    with pytest.raises(MissingDataError, match=r"cifar10h-probs.npy was not found .*github.com/jcpeterson"):
        load("cifar-10", folder, "test", human_labels=True)


def test_human_labels_in_another_order_are_noticed(folder: Path) -> None:
    miniatures.cifar10(folder)
    arrays = dict(np.load(folder / "cifar10n.npz"))
    arrays["clean_label"] = np.roll(arrays["clean_label"], 1)
    np.savez(folder / "cifar10n.npz", **arrays)
    with pytest.raises(CorruptFileError, match="the orders differ"):
        load("cifar-10", folder, "train")
    np.savez(folder / "cifar10n.npz", **{key: values[:7] for key, values in arrays.items()})
    with pytest.raises(CorruptFileError, match=r"\(7,\) entries of clean_label for 200 training images"):
        load("cifar-10", folder, "train")
    np.save(folder / "cifar10h-probs.npy", np.ones((40, 10)))
    with pytest.raises(CorruptFileError, match="no probabilities"):
        load("cifar-10", folder, "test")


def test_digit_nought_of_svhn_has_label_nought(folder: Path) -> None:
    miniatures.svhn(folder)
    test = load("svhn", folder, "test")
    assert isinstance(test.images, torch.Tensor)
    assert test.images.shape == (20, 3, 32, 32)
    assert test.labels.tolist() == [*range(1, 10), 0] * 2
    assert (test.images[:, 0, 0, 0] % 10).tolist() == test.labels.tolist()


def test_photographs_come_with_their_own_label(folder: Path) -> None:
    miniatures.cub(folder)
    test = load("cub-200-2011", folder, "test", preprocessing="unit")
    assert test.class_names[10] == "011.Bird_11"
    assert isinstance(test.images, data.ImageFiles)
    assert test.images.names[0] == "011.Bird_11/Bird_11_0000.jpg"
    assert test[0][0].shape == (3, 224, 224)
    # The miniature paints the number of the image, counted from 1, into its red.
    assert round(float(test[0][0][0].mean() * 255)) == pytest.approx(31, abs=2)


def test_both_layouts_of_cars(folder: Path) -> None:
    miniatures.cars_devkit(folder)
    test = load("cars-196", folder, "test")
    assert isinstance(test.images, data.ImageFiles)
    assert test.labels.tolist() == [*range(10, 20)] * 2
    assert test.images.names[0] == "cars_train/00011.jpg"
    assert test.images.names[-1] == "cars_test/00020.jpg"
    assert test.class_names[19] == "Car 20"
    assert len(test.floats()) == 20


def test_lists_of_faces_as_text_and_as_table(folder: Path, tmp_path: Path) -> None:
    miniatures.lfw(folder)
    miniatures.lfw(tmp_path / "other", table=True)
    first = load("lfw", folder, "test")
    second = load("lfw", tmp_path / "other", "test")
    assert isinstance(first.images, data.ImageFiles)
    assert isinstance(second.images, data.ImageFiles)
    assert first.images.names == second.images.names
    assert torch.equal(first.labels, second.labels)
    assert first.class_names[first.labels[0]] == "Person_01"
    (folder / "lfw" / "peopleDevTest.txt").write_text("3\nPerson_01\t2\n")
    with pytest.raises(CorruptFileError, match="announces 3 people but lists 1"):
        load("lfw", folder, "test")
    (folder / "lfw" / "peopleDevTest.txt").write_text("1\nPerson_00\t1\n")
    with pytest.raises(CorruptFileError, match="Person_00 is listed for training too"):
        load("lfw", folder, "test")


def test_published_bitmaps_of_sketches(folder: Path) -> None:
    place = folder / "quickdraw" / "numpy_bitmap"
    place.mkdir(parents=True)
    for value, name in enumerate(("ant", "bee", "cat", "dog")):
        np.save(place / f"{name}.npy", np.full((9, 784), value, dtype=np.uint8))
    test = load("quickdraw", folder, "test", per_class=3)
    assert isinstance(test.images, torch.Tensor)
    assert test.class_names == ("ant", "bee", "cat", "dog")
    assert test.labels.tolist() == [2, 2, 2, 3, 3, 3]
    assert test.images[:, 0, 0, 0].tolist() == test.labels.tolist()
    with pytest.raises(CorruptFileError, match=r"ant.npy has 9 sketches, 10 are asked for"):
        load("quickdraw", folder, "test", per_class=10)


def test_a_list_that_does_not_match_its_images(folder: Path) -> None:
    miniatures.cub(folder)
    labels = folder / "CUB_200_2011" / "image_class_labels.txt"
    labels.write_text(labels.read_text() + "61 20\n")
    with pytest.raises(CorruptFileError, match=r"images.txt lists 60 images, image_class_labels.txt 61"):
        load("cub-200-2011", folder, "train")
    labels.write_text("1 one\n")
    with pytest.raises(CorruptFileError, match=r"image_class_labels.txt has 'one' where a number should be"):
        load("cub-200-2011", folder, "train")
    labels.write_text("1\n")
    with pytest.raises(CorruptFileError, match="line 1 has 1 columns instead of 2"):
        load("cub-200-2011", folder, "train")


def test_a_label_without_a_class(folder: Path) -> None:
    miniatures.cub(folder)
    classes = folder / "CUB_200_2011" / "classes.txt"
    classes.write_text("".join(classes.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(
        CorruptFileError, match=r"CUB_200_2011 has labels from 0 to 19, .* but names 19 classes"
    ):
        load("cub-200-2011", folder, "test")


def test_products_for_training_and_testing_must_differ(folder: Path) -> None:
    miniatures.products(folder)
    root = folder / "Stanford_Online_Products"
    test = load("stanford-online-products", folder, "test")
    assert test.extras["super_class"].unique().tolist() == [0, 1]
    assert test.class_names[10] == "product 11"
    (root / "Ebay_test.txt").write_text((root / "Ebay_train.txt").read_text())
    with pytest.raises(CorruptFileError, match="class 1 is for training and for testing"):
        load("stanford-online-products", folder, "train")
    (root / "Ebay_test.txt").write_text("1 1 1 a.JPG\n")
    with pytest.raises(CorruptFileError, match="must begin with the line 'image_id"):
        load("stanford-online-products", folder, "train")
