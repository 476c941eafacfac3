"""What `load` refuses, how data sets are registered, one's own arrays, and how images are prepared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from laplacian_metric import data
from laplacian_metric.data import Dataset, Preparation, Split, registry


def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(ValueError, match="did you mean 'sample-mnist'"):
        data.load("Sample_MNIST")
    with pytest.raises(ValueError, match=r"experiments\.sets"):
        data.load("imagenet")


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("sample-mnist", {"split": "train"}, "'train'"),
        ("sample-fashion-mnist", {"hold_out": 3}, "'held_out'"),
        ("sample-fashion-mnist", {"held_out": -1}, "held_out"),
        ("sample-fashion-mnist", {"image_size": 0}, "image_size"),
        ("sample-fashion-mnist", {"channels": 2}, "channels"),
        ("sample-fashion-mnist", {"preprocessing": "zero-one"}, "preprocessing"),
        ("folder", {}, "'path'"),
    ],
)
def test_wrong_splits_and_options_are_named(name: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        data.load(name, **options)


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
    for unknown in ("ten", 10):
        with pytest.raises(ValueError, match=f"{unknown!r}"):
            test.of_classes([unknown])
    with pytest.raises(IndexError, match="1000"):
        test[1000]


def test_own_arrays() -> None:
    pictures = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    own = data.from_arrays(pictures, [0, 1, 2, 0, 1, 2], split="train", class_names=["a", "b", "c"])
    assert own.of_classes(["b"]).indices.tolist() == [1, 4]
    assert torch.equal(own.floats(), pictures / 255)
    assert data.from_arrays(pictures, np.array([*"abcabc"]), split="train").class_names == ("a", "b", "c")
    assert data.from_arrays(pictures, split="train").labels is None


PIXELS = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"labels": [0, 1, 2, 0, 1]}, ValueError, "labels"),
        ({"labels": torch.zeros(6)}, TypeError, "labels"),
        ({"class_names": ["a", "b"]}, ValueError, "class names"),
        ({"images": PIXELS / 255}, ValueError, "images"),
        ({"images": torch.zeros(6, 8, 8, 3, dtype=torch.uint8)}, ValueError, "permute"),
        ({"split": "training"}, ValueError, "training"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    change: dict[str, Any], error: type[Exception], named: str
) -> None:
    usual = {"images": PIXELS, "labels": [0, 1, 2, 0, 1, 2], "split": "train"}
    with pytest.raises(error, match=named):
        data.from_arrays(**{**usual, **change})


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
    with pytest.raises(ValueError, match="channels"):
        loaded(preprocessing="imagenet").floats()


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
    with pytest.raises(ValueError, match="augment"):
        loaded(augment=lambda image: image / 255)[0]


def test_scaling_agrees_with_pillow() -> None:
    image = torch.randint(
        0, 256, (1, 3, 40, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    own = data.from_arrays(image, [0], split="train", image_size=15).floats()[0] * 255
    scaled = Image.fromarray(image[0].permute(1, 2, 0).numpy()).resize((15, 20), Image.Resampling.BILINEAR)
    expected = np.array(scaled).transpose(2, 0, 1)[:, 2:17]
    assert abs(own.numpy() - expected).max() <= 1.01
