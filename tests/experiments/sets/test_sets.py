"""Every published data set by name, read from a miniature of its real layout."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from experiments.sets import MissingDataError, lfw
from laplacian_metric import data
from laplacian_metric.data import Dataset, Split
from tests.experiments.sets import miniatures

# What a miniature needs beyond the defaults: it is too small to hold 5,000 images out.
OPTIONS: dict[str, dict[str, Any]] = {
    "fashion-mnist": {"held_out": 20},
    "mnist": {"held_out": 20},
    "cifar-10": {"held_out": 20},
    "svhn": {"held_out": 10},
    "n-digit-mnist": {"held_out": 20, "num_images": 140},
}
SETS = sorted(miniatures.MINIATURES)
DIVIDED = [name for name in SETS if Split.TRAIN in data.info(name).splits]
ZERO_SHOT = [name for name in SETS if Split.ALL in data.info(name).splits]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of the test's own; nothing else is looked in."""
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.delenv("LAPLACIAN_METRIC_DATA", raising=False)
    place = tmp_path / "data"
    place.mkdir()
    return place


def load(name: str, folder: Path, split: str, **options: Any) -> Dataset:
    return data.load(name, split=split, data_dir=folder, **{**OPTIONS.get(name, {}), **options})


@pytest.mark.parametrize("name", SETS)
def test_every_split_is_complete(name: str, folder: Path) -> None:
    miniatures.MINIATURES[name](folder)
    for split in data.info(name).splits:
        loaded = load(name, folder, split, image_size=8)
        assert len(loaded) == len(loaded.labels) == len(loaded.indices) > 0
        assert loaded.labels.dtype == loaded.indices.dtype == torch.int64
        assert loaded.split is split
        image, label = loaded[-1]
        assert image.shape[-2:] == (8, 8)
        assert label == int(loaded.labels[-1])
        images, labels = next(iter(DataLoader(loaded, batch_size=3)))
        assert images.shape == (3, *image.shape)
        assert torch.equal(labels, loaded.labels[:3])


@pytest.mark.parametrize("name", sorted(set(DIVIDED) - {"n-digit-mnist"}))
def test_training_and_validation_share_no_image_and_make_up_the_published_set(
    name: str, folder: Path
) -> None:
    miniatures.MINIATURES[name](folder)
    train, validation, both = (
        load(name, folder, split) for split in ("train", "validation", "train+validation")
    )
    assert not set(train.indices.tolist()) & set(validation.indices.tolist())
    assert sorted([*train.indices.tolist(), *validation.indices.tolist()]) == both.indices.tolist()
    if name not in ZERO_SHOT:
        each = OPTIONS[name]["held_out"] // 10
        for label in range(10):
            members = both.indices[both.labels == label]
            assert validation.indices[validation.labels == label].tolist() == members[-each:].tolist()


CLASSES: dict[str, tuple[list[int], list[int], list[int]]] = {
    name: ([0, 1, 2, 3, 5, 6, 7, 8], [4, 9], list(range(10, 20)))
    for name in ("cub-200-2011", "cars-196", "cars-196-crops", "stanford-online-products")
} | {
    "quickdraw": ([0, 1, 2, 3, 5, 6, 7, 8, 10], [4, 9], list(range(11, 22))),
    "lfw": ([0, 2, 4, 6, 10, 12, 14, 16], [8, 18], list(range(1, 20, 2))),
    "oxford-pets": ([0, 1, 2, 3, 5], [4], list(range(6, 12))),
    "omniglot": ([0, 1, 2, 3, 9, 10, 11], [8], [4, 5, 6, 7]),
}


@pytest.mark.parametrize("name", ZERO_SHOT)
def test_classes_of_zero_shot_splits(name: str, folder: Path) -> None:
    miniatures.MINIATURES[name](folder)
    splits = ("train", "validation", "test")
    assert tuple(load(name, folder, split).classes for split in splits) == CLASSES[name]
    assert load(name, folder, "all").classes == sorted(label for part in CLASSES[name] for label in part)


def test_images_are_those_at_their_indices(folder: Path) -> None:
    miniatures.fashion_mnist(folder)
    train = load("fashion-mnist", folder, "train")
    assert train.inputs[:, 0, 0, 0].tolist() == train.indices.tolist()
    miniatures.cub(folder)
    birds = load("cub-200-2011", folder, "test", preprocessing="unit")
    assert birds.class_names[10] == "011.Bird_11"
    assert birds.ids[0] == "011.Bird_11/Bird_11_0000.jpg"
    # The miniature paints the number of the image, counted from 1, into its red.
    assert round(float(birds[0][0][0].mean() * 255)) == pytest.approx(31, abs=2)


# --- CIFAR-10 and what people say of it ---


def test_human_labels_of_cifar(folder: Path) -> None:
    miniatures.cifar10(folder)
    train, test = load("cifar-10", folder, "train"), load("cifar-10", folder, "test")
    assert train.extras["human_labels"].shape == (len(train), 3)
    assert torch.equal(test.extras["human_distribution"].argmax(dim=1), test.labels)
    noisy = load("cifar-10", folder, "train", labels="worst")
    assert torch.equal(noisy.labels, train.extras["worst_label"])
    assert torch.equal(noisy.indices, train.indices)


def test_cifar_split_by_class(folder: Path) -> None:
    miniatures.cifar10(folder)
    train, validation, both, test = (
        load("cifar-10", folder, split, held_out=15, zero_shot=True)
        for split in ("train", "validation", "train+validation", "test")
    )
    assert [len(part) for part in (train, validation, both, test)] == [85, 15, 100, 20]
    assert train.classes == validation.classes == [0, 1, 2, 3, 4]
    assert test.classes == [5, 6, 7, 8, 9]
    for part, whole in ((train, "train+validation"), (validation, "train+validation"), (test, "test")):
        published = load("cifar-10", folder, whole)
        assert torch.equal(published.labels[part.indices], part.labels)
        assert torch.equal(published.inputs[part.indices], part.inputs)
        for name, values in part.extras.items():
            assert torch.equal(published.extras[name][part.indices], values)
    assert not set(train.indices.tolist()) & set(validation.indices.tolist())
    for label in range(5):
        members = both.indices[both.labels == label]
        assert validation.indices[validation.labels == label].tolist() == members[-3:].tolist()


# --- other sets ---


def test_the_digit_0_of_svhn_has_label_0(folder: Path) -> None:
    miniatures.svhn(folder)
    test = load("svhn", folder, "test")
    assert test.inputs.shape == (20, 3, 32, 32)
    assert test.labels.tolist() == [*range(1, 10), 0] * 2
    assert (test.inputs[:, 0, 0, 0] % 10).tolist() == test.labels.tolist()


def test_mosaics_are_cut_row_by_row(folder: Path) -> None:
    miniatures.svhn_first(folder)
    miniatures.cifar100(folder)
    miniatures.lfw_gray(folder)
    digits, things, faces = (
        load(name, folder, "test") for name in ("svhn-first-10000", "cifar-100-test", "lfw-gray")
    )
    for loaded, shape in ((digits, (12, 3, 32, 32)), (things, (16, 3, 32, 32)), (faces, (8, 1, 64, 64))):
        assert loaded.inputs.shape == shape
        values = loaded.inputs.double().flatten(1)
        assert torch.allclose(values.mean(1), 10.0 * torch.arange(len(loaded)).double(), atol=3)
        assert float(values.std(1).max()) < 3
    assert things.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert things.extras["super_class"].tolist() == [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
    assert faces.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    pairs = lfw.pairs(folder / "lfw")
    assert pairs.to_dict("list") == {"first": [0, 5], "second": [1, 2], "same": [1, 0], "fold": [1, 2]}


def test_names_and_kinds_of_classes(folder: Path) -> None:
    for name in ("omniglot", "oxford-pets", "stanford-online-products", "cars-196", "cars-196-crops"):
        miniatures.MINIATURES[name](folder)
    characters = load("omniglot", folder, "all")
    assert characters.extras["drawer"].tolist() == [0, 1, 2] * 12
    assert characters.inputs[:, 0, 0, 0].tolist() == [label + 1 for label in characters.labels]
    pets = load("oxford-pets", folder, "all")
    assert pets.extras["species"].tolist() == [label % 2 for label in range(1, 13) for _ in range(3)]
    cars = load("cars-196", folder, "test")
    assert cars.labels.tolist() == [*range(10, 20)] * 2
    assert (cars.ids[0], cars.ids[-1]) == ("cars_train/00011.jpg", "cars_test/00020.jpg")


# --- what is refused ---


@pytest.mark.parametrize(
    ("name", "split", "options", "named"),
    [
        ("cifar-10", "test", {"labels": "worst"}, "labels"),
        ("cifar-10", "train", {"labels": "noisy"}, "labels"),
        ("cifar-10", "train", {"labels": "worst", "zero_shot": True}, "zero_shot"),
        ("mnist", "dev", {}, "no split 'dev'"),
        ("mnist", "train", {"hold_out": 3}, "held_out"),
    ],
)
def test_wrong_options_are_named(
    name: str, split: str, options: dict[str, Any], named: str, folder: Path
) -> None:
    miniatures.MINIATURES[name](folder)
    with pytest.raises(ValueError, match=named):
        load(name, folder, split, **options)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def roll_labels(path: Path) -> None:
    arrays = dict(np.load(path))
    np.savez(path, **{**arrays, "clean_label": np.roll(arrays["clean_label"], 1)})


def few_labels(path: Path) -> None:
    miniatures.write_idx(path, np.zeros(29, dtype=np.uint8))


def no_shares(path: Path) -> None:
    np.save(path, np.ones((40, 10)))


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content) and None


def more(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(path.read_text() + content) and None


@pytest.mark.parametrize(
    ("name", "file", "damage", "named"),
    [
        ("fashion-mnist", "FashionMNIST/raw/train-labels-idx1-ubyte", few_labels, "29 labels"),
        ("cifar-10", "cifar-10-batches-bin/data_batch_3.bin", cut, r"data_batch_3\.bin"),
        ("cifar-10", "cifar10n.npz", roll_labels, r"cifar10n\.npz"),
        ("cifar-10", "cifar10h-probs.npy", no_shares, r"cifar10h-probs\.npy"),
        ("cub-200-2011", "CUB_200_2011/image_class_labels.txt", more("61 20\n"), "61"),
        ("cub-200-2011", "CUB_200_2011/image_class_labels.txt", text("1 one\n"), r"image_class_labels\.txt"),
        ("cub-200-2011", "CUB_200_2011/image_class_labels.txt", text("1\n"), r"image_class_labels\.txt"),
        ("cub-200-2011", "CUB_200_2011/classes.txt", text("1 a\n2 b\n"), "2 classes"),
        ("lfw", "lfw/peopleDevTest.txt", text("3\nPerson_01\t2\n"), "3 people"),
        ("lfw", "lfw/peopleDevTest.txt", text("1\nPerson_00\t1\n"), "Person_00"),
        (
            "stanford-online-products",
            "Stanford_Online_Products/Ebay_test.txt",
            text("a b\n1 2\n"),
            "Ebay_test",
        ),
        (
            "stanford-online-products",
            "Stanford_Online_Products/Ebay_test.txt",
            text("image_id class_id super_class_id path\n1 1 1 a.JPG\n"),
            "class 1 ",
        ),
    ],
)
def test_damaged_files_are_named(
    name: str, file: str, damage: Callable[[Path], None], named: str, folder: Path
) -> None:
    miniatures.MINIATURES[name](folder)
    damage(folder / file)
    with pytest.raises(ValueError, match=named):
        load(name, folder, "test" if "cifar10h" in file else "train")


# --- where they are looked for ---


@pytest.mark.parametrize("name", [*SETS, "msls"])
def test_missing_data_say_where_they_come_from(name: str, folder: Path) -> None:
    with pytest.raises(MissingDataError) as caught:
        data.load(name, split="test", data_dir=folder)
    info = data.info(name)
    for part in (str(folder), info.page, info.obtain, info.layout, "LAPLACIAN_METRIC_DATA"):
        assert part in str(caught.value)


def test_an_archive_is_downloaded_on_request_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[tuple[str, str | None]] = []

    def fetch(url: str, download_root: Path, *, md5: str | None = None) -> None:
        fetched.append((url, md5))
        miniatures.cub(download_root)

    monkeypatch.setattr("torchvision.datasets.utils.download_and_extract_archive", fetch)
    with pytest.raises(MissingDataError, match="download=True"):
        load("cub-200-2011", folder, "test")
    for _ in range(2):
        assert len(load("cub-200-2011", folder, "test", download=True)) == 30
    ((url, md5),) = fetched
    assert url.startswith("https://")
    assert md5 is not None


def test_two_processes_fetch_once(folder: Path, root: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nimport experiments.sets\n"
        "from laplacian_metric import data\nfrom tests.experiments.sets import miniatures\n"
        "from torchvision.datasets import utils\n"
        "def fetch(url, root, md5=None):\n"
        "    with (root / 'fetched').open('a') as log: log.write('x')\n"
        "    miniatures.cub(root)\n"
        "utils.download_and_extract_archive = fetch\n"
        f"print(len(data.load('cub-200-2011', 'test', data_dir={str(folder)!r}, download=True)))\n"
    )
    command = [sys.executable, "-c", code]
    processes = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0].strip() for process in processes] == ["30", "30"]
    assert (folder / "fetched").read_text() == "x"
