"""What `load` answers to what it cannot do, where it looks, and what a data set offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from laplacian_metric import data
from laplacian_metric.data import Dataset, MissingDataError, Preparation, Split
from tests.experiments.sets import miniatures


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data anywhere: not in the environment's folder and not in the cache's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LAPLACIAN_METRIC_DATA", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("fashon-mnist", "fashion-mnist"),
        ("CUB_200_2011", "cub-200-2011"),
        ("cifar10", "cifar-10"),
        ("LFW", "lfw"),
    ],
)
def test_the_nearest_name_is_suggested(wrong: str, right: str) -> None:
    with pytest.raises(
        ValueError, match=f"no data set is called {wrong!r}; did you mean {right!r}\\? there are: cars"
    ):
        data.load(wrong)


def test_an_unknown_split_or_option_says_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"sample-mnist has no split 'train'; there is: test"):
        data.load("sample-mnist", split="train")
    with pytest.raises(
        ValueError, match=r"mnist has no split 'dev'; there is: train, validation, train\+validation"
    ):
        data.load("mnist", split="dev")
    with pytest.raises(
        ValueError, match=r"sample-fashion-mnist has no option 'hold_out'; did you mean 'held_out'"
    ):
        data.load("sample-fashion-mnist", hold_out=3)
    with pytest.raises(ValueError, match="sample-mnist has no option 'seed'; it has none"):
        data.load("sample-mnist", split="test", seed=3)
    with pytest.raises(ValueError, match="folder needs the option 'path'"):
        data.load("folder")


@pytest.mark.parametrize(
    "name", sorted(set(data.names()) - {"folder", "sample-mnist", "sample-fashion-mnist"})
)
def test_missing_data_say_where_they_come_from(name: str, nowhere: Path) -> None:
    with pytest.raises(MissingDataError) as caught:
        data.load(name, split="test", data_dir=nowhere / "empty")
    message = str(caught.value)
    info = data.info(name)
    for part in (str(nowhere / "empty"), info.page, info.obtain, info.layout, "LAPLACIAN_METRIC_DATA"):
        assert part in message


@pytest.mark.parametrize("name", ["cars-196", "lfw", "msls", "quickdraw"])
def test_what_cannot_be_downloaded_says_so(name: str, nowhere: Path) -> None:
    with pytest.raises(MissingDataError, match="it cannot be downloaded automatically"):
        data.load(name, split="test", data_dir=nowhere, download=True)
    with pytest.raises(MissingDataError, match=r"^(?!.*download=True)"):
        data.load(name, split="test", data_dir=nowhere)


def test_what_can_be_downloaded_is_not_unless_asked_for(nowhere: Path) -> None:
    with pytest.raises(MissingDataError, match=r"data.load\('mnist', download=True\) fetches it"):
        data.load("mnist", split="test")
    assert not (nowhere / "cache").exists()


def test_a_part_that_is_missing_is_named(nowhere: Path) -> None:
    miniatures.fashion_mnist(nowhere)
    (nowhere / "FashionMNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(MissingDataError, match=r"FashionMNIST/raw has no t10k-labels-idx1-ubyte"):
        data.load("fashion-mnist", split="test", data_dir=nowhere)


def test_the_order_of_folders(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = data.cache_folder()
    assert cache.name == "data"
    assert cache.parent.name == "laplacian-metric"
    assert data.data_folders() == (cache,)
    monkeypatch.setenv("LAPLACIAN_METRIC_DATA", str(nowhere / "mine"))
    assert data.data_folders() == (nowhere / "mine", cache)
    assert data.data_folders(nowhere / "other") == (nowhere / "other",)
    miniatures.fashion_mnist(nowhere / "mine")
    assert len(data.load("fashion-mnist", split="test")) == 30
    with pytest.raises(MissingDataError):
        data.load("fashion-mnist", split="test", data_dir=nowhere / "other")
    miniatures.mnist(cache)
    assert len(data.load("mnist", split="test")) == 30


@pytest.mark.parametrize(
    ("platform", "part"), [("win32", "Local"), ("darwin", "Caches"), ("linux", ".cache")]
)
def test_the_cache_of_every_platform(platform: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr("sys.platform", platform)
    assert part in data.cache_folder().parts


def test_the_sample_has_its_splits() -> None:
    train, validation, both, test = (
        data.load("sample-fashion-mnist", split=split)
        for split in ("train", "val", "train+validation", "test")
    )
    assert [len(part) for part in (train, validation, both, test)] == [2500, 500, 3000, 1000]
    assert torch.bincount(validation.labels).tolist() == [50] * 10
    sample = data.load("sample-fashion-mnist", "train+validation")
    assert isinstance(both.images, torch.Tensor)
    assert torch.equal(both.images, sample.images)
    assert torch.equal(both.extras["original_index"], sample.indices)
    assert torch.equal(both.floats(), sample.floats())


def test_the_sample_is_loaded_without_heavy_imports(root: Path) -> None:
    code = (
        "import sys\n"
        "from laplacian_metric import data\n"
        "data.load('sample-mnist', split='test').floats()\n"
        "print(sorted({'torchvision', 'scipy', 'pandas', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_workers_of_a_loader_get_the_same_items(tmp_path: Path) -> None:
    miniatures.cub(tmp_path)
    test = data.load("cub-200-2011", split="test", data_dir=tmp_path, image_size=16)
    alone, together = (DataLoader(test, batch_size=8, num_workers=workers) for workers in (0, 2))
    for (images, labels), (same, also) in zip(alone, together, strict=True):
        assert torch.equal(images, same)
        assert torch.equal(labels, also)


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
    with pytest.raises(ValueError, match="sample-mnist has no class 'ten'"):
        test.of_classes(["ten"])
    with pytest.raises(ValueError, match="sample-mnist has no class 10"):
        test.of_classes([10])
    with pytest.raises(IndexError, match="has 1000 images, no image 1000"):
        test[1000]


def test_own_arrays() -> None:
    pictures = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    own = data.from_arrays(pictures, [0, 1, 2, 0, 1, 2], split="train", class_names=["a", "b", "c"])
    assert own.of_classes(["b"]).indices.tolist() == [1, 4]
    assert torch.equal(own.floats(), pictures / 255)
    with pytest.raises(ValueError, match="labels has 5 entries for 6 images"):
        data.from_arrays(pictures, [0, 1, 2, 0, 1], split="train")
    with pytest.raises(ValueError, match=r"images must be uint8 of shape \(N, C, H, W\), not torch.float32"):
        data.from_arrays(pictures / 255, [0] * 6, split="train")
    with pytest.raises(ValueError, match="labels go from 0 to 2, but there are 2 class names"):
        data.from_arrays(pictures, [0, 1, 2, 0, 1, 2], split="train", class_names=["a", "b"])
    with pytest.raises(TypeError, match=r"labels has dtype torch\.float32"):
        data.from_arrays(pictures, torch.zeros(6), split="train")
    with pytest.raises(ValueError, match=r"looks like \(N, H, W, C\): .*permute\(0, 3, 1, 2\)"):
        data.from_arrays(torch.zeros(6, 8, 8, 3, dtype=torch.uint8), [0] * 6, split="train")
    assert data.from_arrays(pictures, np.array([*"abcabc"]), split="train").class_names == ("a", "b", "c")
    assert data.from_arrays(pictures, split="train").labels is None
    with pytest.raises(ValueError, match="has no split 'training'"):
        data.from_arrays(pictures, [0] * 6, split="training")


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
    with pytest.raises(ValueError, match=r"for 3 channels, these images have 1; pass channels=3 too"):
        loaded(preprocessing="imagenet").floats()
    with pytest.raises(ValueError, match="it must be 'unit' or 'imagenet'"):
        loaded(preprocessing="zero-one")
    with pytest.raises(ValueError, match="channels is 2"):
        loaded(channels=2)
    with pytest.raises(ValueError, match="image_size is 0"):
        loaded(image_size=0)


def test_colour_becomes_grey_as_pillow_makes_it() -> None:
    import numpy as np
    from PIL import Image

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
    with pytest.raises(ValueError, match="must return a uint8 image"):
        loaded(augment=lambda image: image / 255)[0]


def test_scaling_agrees_with_pillow() -> None:
    import numpy as np
    from PIL import Image

    image = torch.randint(
        0, 256, (1, 3, 40, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    own = data.from_arrays(image, [0], split="train", image_size=15).floats()[0] * 255
    scaled = Image.fromarray(image[0].permute(1, 2, 0).numpy()).resize((15, 20), Image.Resampling.BILINEAR)
    expected = np.array(scaled).transpose(2, 0, 1)[:, 2:17]
    assert abs(own.numpy() - expected).max() <= 1.01
