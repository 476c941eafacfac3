"""A data set: the same from memory and from files, of images and of features, with labels of any kind or none."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from laplacian_metric import data
from laplacian_metric.core.dataset import shared
from laplacian_metric.data import Dataset, Preparation, Split, from_arrays, registry


def doubled(image: Tensor) -> Tensor:
    return 255 - image


def some(split: str = "train", augmented: bool = False) -> Dataset:
    pixels = torch.arange(11 * 6).reshape(11, 1, 2, 3).to(torch.uint8)
    return from_arrays(pixels, torch.arange(11) % 3, split=split, augment=doubled if augmented else None)


def joined(data: Dataset) -> tuple[Tensor, Tensor]:
    batches = list(data.batches())
    return torch.cat([batch.inputs for batch in batches]), torch.cat([batch.labels for batch in batches])  # type: ignore[misc]


@pytest.mark.parametrize("workers", [0, 2])
def test_from_memory_and_from_images_the_same(workers: int) -> None:
    images = some(augmented=True)
    lazily = dataclasses.replace(images, batch_size=4, workers=workers)
    at_once = images.in_memory(batch_size=4)
    for version in (lazily, at_once):
        x, y = joined(version)
        # Embedding sees no augmentation.
        assert torch.equal(x, images.floats())
        assert torch.equal(y, images.labels)
        assert [len(batch) for batch in version.batches()] == [4, 4, 3]
        assert version.num_batches == 3
        assert len(version) == 11
    rows = [torch.tensor([3, 1]), torch.tensor([10, 0, 0])]
    for one, other, chosen in zip(lazily.batches(rows), at_once.batches(rows), rows, strict=True):
        # Training sees it, where it is not held in memory.
        expected = torch.stack([images[int(row)][0] for row in chosen])
        assert torch.equal(one.inputs, expected)
        assert torch.equal(other.inputs, images.floats()[chosen])
        assert torch.equal(one.labels, images.labels[chosen])
        assert torch.equal(other.labels, one.labels)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_generator_decides_what_workers_draw(workers: int) -> None:
    def noisy(image: Tensor) -> Tensor:
        return torch.randint(256, image.shape, dtype=torch.uint8)

    images = some()
    images = images.prepared(augment=noisy)
    data, rows = dataclasses.replace(images, workers=workers), list(torch.arange(11).split(3))

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.cat([batch.inputs for batch in data.batches(rows, torch.Generator().manual_seed(seed))])

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    before = torch.get_rng_state()
    if workers:
        list(data.batches(rows, torch.Generator().manual_seed(1)))
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("split", ["train", "validation", "test", "all"])
def test_the_split_is_kept(split: str) -> None:
    images = some(split)
    parts = [images, images.in_memory()]
    parts += [some_images.select(torch.arange(4)) for some_images in parts]
    parts += [Dataset(images.floats(), images.labels, split=Split(split)).select(torch.arange(3))]
    for some_images in parts:
        assert some_images.split is Split(split)
        assert some_images.role is Split(split).role
    assert {some_images.name for some_images in parts} == {"arrays", "these inputs"}


@pytest.mark.parametrize("in_memory", [True, False])
def test_some_of_them(in_memory: bool) -> None:
    data = dataclasses.replace(some().in_memory() if in_memory else some(), batch_size=3)
    whole, _ = joined(data)
    mask = torch.arange(11) > 7
    for rows in (torch.tensor([8, 9, 10]), mask):
        chosen = data.select(rows)
        x, y = joined(chosen)
        assert torch.equal(x, whole[8:])
        assert y.tolist() == [2, 0, 1]
        assert chosen.batch_size == 3


def test_nothing_yields_nothing() -> None:
    empty = torch.zeros(0, dtype=torch.long)
    assert list(Dataset(torch.zeros(0, 3), empty).batches()) == []
    assert list(some().select(empty).batches()) == []
    assert list(some(augmented=True).select(empty).batches()) == []
    assert list(Dataset(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long)).batches([])) == []


def test_features_that_are_mapped_from_a_file(tmp_path: Path) -> None:
    torch.arange(12.0).numpy().tofile(tmp_path / "features")
    mapped = torch.from_file(str(tmp_path / "features"), size=12).reshape(6, 2)
    data = Dataset(mapped, torch.arange(6) % 2, batch_size=4)
    assert torch.equal(joined(data)[0], torch.arange(12.0).reshape(6, 2))
    first = next(data.batches())
    assert first.inputs.data_ptr() == mapped.data_ptr()  # nothing is copied
    (batch,) = data.batches([torch.tensor([5, 0])])
    assert batch.inputs.tolist() == [[10.0, 11.0], [0.0, 1.0]]
    assert batch.labels is not None
    assert batch.labels.tolist() == [1, 0]
    assert data.holds_features
    assert not some().holds_features


def test_labels_of_any_kind_and_none() -> None:
    rows = np.arange(8.0).reshape(4, 2)
    for words in (["bee", "ant", "bee", "cat"], np.array(["bee", "ant", "bee", "cat"])):
        data = Dataset(rows, words)
        assert data.class_names == ("ant", "bee", "cat")
        assert data.labels.tolist() == [1, 0, 1, 2]
        assert data.label_names.tolist() == list(words)
        assert data.classes == [0, 1, 2]
    named = Dataset(rows, ["bee", "ant"] * 2, class_names=("dog", "bee", "ant"))
    assert named.labels.tolist() == [1, 2, 1, 2]
    assert named.relabelled().class_names == ("bee", "ant")
    numbers = Dataset(rows, np.array([7, 10**12, 7, -3], dtype=np.int64))
    assert numbers.labels.tolist() == [7, 10**12, 7, -3]
    assert numbers.label_names.tolist() == ["7", "1000000000000", "7", "-3"]
    assert numbers.relabelled().labels.tolist() == [1, 2, 1, 0]
    assert Dataset(rows, [("a", 1), ("b", 1)] * 2).labels.tolist() == [0, 1, 0, 1]
    unlabelled = Dataset(rows, batch_size=3)
    assert [batch.labels for batch in unlabelled.batches()] == [None, None]
    assert torch.equal(unlabelled[1], torch.tensor(rows[1]))


def test_the_same_contents_have_the_same_digests() -> None:
    images = some()
    assert shared(images.digests(), images.select([3, 4]).digests()) == 11 - 9
    rows = Dataset(torch.arange(6.0).reshape(3, 2))
    assert shared(rows.digests(), rows.select([2]).digests()) == 1
    assert len(set(rows.digests().tolist())) == 3


def test_ids_follow_the_inputs() -> None:
    data = Dataset(torch.zeros(4, 2), item_ids=["a", "b", "c", "d"], batch_size=3)
    assert data.select([3, 1]).ids == ("d", "b")
    assert [batch.ids for batch in data.batches()] == [["a", "b", "c"], ["d"]]
    assert some().ids[:2] == ("0", "1")
    assert some().in_memory().ids == some().ids


def test_small_pictures_are_of_images_only() -> None:
    assert some().thumbnails() is not None
    assert some().thumbnails(2).shape == (11, 2, 3)  # type: ignore[union-attr]
    assert Dataset(torch.zeros(4, 2)).thumbnails() is None
    assert some().in_memory().thumbnails() is None


def read_two(request: data.Request, value: int = 1) -> Dataset:
    return Dataset(torch.full((2, 1, 4, 4), value, dtype=torch.uint8), ["ant", "bee"])


def test_data_sets_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SOURCES", dict(registry._SOURCES))
    about = data.DataSetInfo("mine", "My images", "", "a page", "", "a licence", "a citation")
    data.register(about, read_two)
    data.register(about, read_two)
    assert data.names()[-1] == "mine"
    assert data.info("mine") is about
    loaded = data.load("mine", "test", value=7)
    assert (loaded.title, loaded.licence, loaded.class_names) == ("mine:test", "a licence", ("ant", "bee"))
    assert int(loaded.inputs.sum()) == 7 * 32
    with pytest.raises(ValueError, match="'mine'"):
        data.register(about, lambda request: read_two(request))


def test_selecting_keeps_rows_together() -> None:
    test = data.load("sample-mnist", split="test")
    part = test.select([5, 3])
    assert part.split is Split.TEST
    assert part.labels.tolist() == test.labels[[5, 3]].tolist()
    assert part.extras["original_index"].tolist() == test.extras["original_index"][[5, 3]].tolist()
    assert torch.equal(part[0][0], test[5][0])
    some = test.of_classes([7, "2"])
    assert some.classes == [2, 7]
    again = some.relabelled()
    assert again.classes == [0, 1]
    assert again.class_names == ("2", "7")
    assert torch.equal(again.labels == 1, some.labels == 7)


def test_own_arrays() -> None:
    pictures = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    own = data.from_arrays(pictures, [0, 1, 2, 0, 1, 2], split="train", class_names=["a", "b", "c"])
    assert own.of_classes(["b"]).indices.tolist() == [1, 4]
    assert torch.equal(own.floats(), pictures / 255)
    assert data.from_arrays(pictures, np.array([*"abcabc"]), split="train").class_names == ("a", "b", "c")
    assert data.from_arrays(pictures, split="train").labels is None


def loaded(**options: Any) -> Dataset:
    grey = torch.arange(2 * 12 * 8, dtype=torch.uint8).reshape(2, 12, 8)
    return data.from_arrays(grey, [0, 1], split="train", **options)


def test_preparation_changes_size_channels_and_scale() -> None:
    assert loaded(image_size=6).floats().shape == (2, 1, 6, 6)
    colour = loaded(channels=3)
    assert colour.floats().shape == (2, 3, 12, 8)
    assert torch.equal(colour.floats()[:, 0], colour.floats()[:, 2])
    normalised = loaded(channels=3, preprocessing="imagenet").floats()
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    deviation = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    torch.testing.assert_close(normalised * deviation + mean, colour.floats())
    grey = colour.prepared(Preparation(channels=1))
    assert torch.equal(grey.floats(), loaded().floats())


def test_colour_becomes_grey_as_pillow_makes_it() -> None:
    colour = torch.randint(
        0, 256, (1, 3, 9, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    own = data.from_arrays(colour, [0], split="train", channels=1)
    grey = np.array(Image.fromarray(colour[0].permute(1, 2, 0).numpy()).convert("L"))
    difference = (own.floats()[0, 0] * 255).numpy() - grey
    assert abs(difference).max() <= 1


def test_augmentation_is_for_items_only() -> None:
    own = loaded(augment=lambda image: image.flip(-1))
    assert torch.equal(own[0][0], loaded()[0][0].flip(-1))
    assert torch.equal(own.floats(), loaded().floats())


def test_scaling_agrees_with_pillow() -> None:
    image = torch.randint(
        0, 256, (1, 3, 40, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    own = data.from_arrays(image, [0], split="train", image_size=15).floats()[0] * 255
    scaled = Image.fromarray(image[0].permute(1, 2, 0).numpy()).resize((15, 20), Image.Resampling.BILINEAR)
    expected = np.array(scaled).transpose(2, 0, 1)[:, 2:17]
    assert abs(own.numpy() - expected).max() <= 1.01
