"""Folders of images, images that do not decode, and files that are no images."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from laplacian_metric import data
from laplacian_metric.core.images import decode_image
from laplacian_metric.data import Role, TestDataError, UnreadableImageError
from tests.experiments.sets import miniatures


def test_a_flat_folder_is_divided_by_image(tmp_path: Path) -> None:
    root = miniatures.class_folders(tmp_path / "fruit")
    parts = {
        split: data.load("folder", split=split, path=root) for split in ("train", "validation", "test", "all")
    }
    assert [len(part) for part in parts.values()] == [32, 4, 4, 40]
    assert parts["validation"].ids == ("apple/004.jpg", "apple/014.jpg", "pear/004.jpg", "pear/014.jpg")
    assert parts["test"].ids[:2] == ("apple/009.jpg", "apple/019.jpg")
    assert parts["test"].labels.tolist() == [0, 0, 1, 1]
    assert parts["test"].class_names == ("apple", "pear")
    assert parts["train"][0][0].shape == (3, 224, 224)
    with pytest.raises(TestDataError):
        data.require_selectable(parts["all"])


def test_a_folder_is_a_data_set(tmp_path: Path) -> None:
    flat = miniatures.class_folders(tmp_path / "flat", count=3)
    for part in ("train", "test"):
        miniatures.class_folders(tmp_path / "split" / part, count=3)
    for root, count in ((flat, 6), (tmp_path / "split", 12)):
        images = data.folder(root, image_size=8)
        assert len(images) == count
        assert (images.name, images.split, images.class_names) == (root.name, None, ("apple", "pear"))
        image, label = images[0]
        assert image.shape == (3, 8, 8)
        assert label == 0
        assert images.labels.bincount().tolist() == [count // 2] * 2
        floats = images.floats()
        assert floats.shape == (count, 3, 8, 8)
        assert float(floats.min()) >= 0
        assert float(floats.max()) <= 1
    assert data.folder(flat)[0][0].shape == (3, 10, 12)
    assert data.folder(tmp_path / "split", split="test").role is Role.EVALUATION


def test_images_without_labels_lie_anywhere_below_the_folder(tmp_path: Path) -> None:
    root = miniatures.class_folders(tmp_path / "fruit")
    shutil.copy(root / "apple" / "000.jpg", root / "alone.jpg")
    parts = {
        split: data.load("folder", split=split, path=root, labels=False)
        for split in ("train", "validation", "test", "all")
    }
    assert [len(part) for part in parts.values()] == [33, 4, 4, 41]
    assert "alone.jpg" in parts["all"].ids
    assert parts["train"].labels is None
    assert parts["train"][0].shape == (3, 224, 224)
    with pytest.raises(ValueError, match="folder for each class"):
        parts["train"].known_labels()
    with pytest.raises(ValueError, match="labels is False"):
        data.load("folder", split="all", path=root, labels=False, divide="classes")
    split = miniatures.class_folders(tmp_path / "split" / "train")
    shutil.copytree(split, tmp_path / "split" / "val")
    assert len(data.load("folder", split="validation", path=tmp_path / "split", labels=False)) == 40
    with pytest.raises(ValueError, match="labels=False"):
        data.load("folder", split="all", path=root / "apple")


def test_folders_for_splits_are_used(tmp_path: Path) -> None:
    miniatures.class_folders(tmp_path / "train", ("a", "b", "c"), 3)
    miniatures.class_folders(tmp_path / "val", ("a", "b"), 2)
    miniatures.class_folders(tmp_path / "test", ("b", "c"), 1)
    sizes = {"train": 9, "validation": 4, "train+validation": 13, "test": 2, "all": 15}
    for split, size in sizes.items():
        loaded = data.load("folder", split=split, path=tmp_path)
        assert len(loaded) == size
        assert loaded.class_names == ("a", "b", "c")
    assert data.load("folder", split="test", path=tmp_path).labels.tolist() == [1, 2]
    both = data.load("folder", split="train+validation", path=tmp_path)
    assert [name.split("/")[1] for name in both.ids] == [both.class_names[label] for label in both.labels]


def make_folder(root: Path, how: str) -> None:
    """A folder of two classes of images with something wrong."""
    count = {"few": 3}.get(how, 12)
    places = [root / "train", root / "test"] if how == "split" else [root]
    for place in places if how != "empty" else ():
        miniatures.class_folders(place, ("apple", "pear"), count)
    root.mkdir(exist_ok=True)
    if how == "plum":
        (root / "plum").mkdir()
    if how == "notes":
        (root / "apple" / "notes.txt").write_text("ripe")


@pytest.mark.parametrize(
    ("how", "options", "error", "named"),
    [
        ("split", {"split": "validation"}, ValueError, "'validation'"),
        ("few", {"split": "test"}, ValueError, "'test'"),
        ("plum", {}, ValueError, "plum"),
        ("empty", {}, ValueError, "labels=False"),
        ("notes", {}, UnreadableImageError, r"notes\.txt.*skip_unreadable=True"),
        ("good", {"divide": "random"}, ValueError, "divide"),
        ("good", {"path": "vegetables"}, FileNotFoundError, "path"),
    ],
)
def test_folders_that_cannot_be_loaded(
    how: str, options: dict[str, Any], error: type[Exception], named: str, tmp_path: Path
) -> None:
    make_folder(tmp_path / "fruit", how)
    with pytest.raises(error, match=named):
        data.load("folder", **{"split": "all", "path": "fruit", "data_dir": tmp_path, **options})


def test_a_class_may_be_called_test(tmp_path: Path) -> None:
    root = miniatures.class_folders(tmp_path, ("blood", "test"))
    assert data.load("folder", split="all", path=root).class_names == ("blood", "test")


def test_a_file_that_is_no_image(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = miniatures.class_folders(tmp_path / "fruit")
    (root / "apple" / "notes.txt").write_text("ripe")
    with caplog.at_level(logging.WARNING):
        loaded = data.load("folder", split="all", path=root, skip_unreadable=True)
    assert loaded.skipped == ("apple/notes.txt",)
    assert len(loaded) == 40
    assert "notes.txt is no image and is skipped" in caplog.text


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    root = miniatures.class_folders(tmp_path / "fruit")
    for name in (".DS_Store", "Thumbs.db"):
        (root / "apple" / name).write_bytes(b"x")
    (root / ".cache").mkdir()
    miniatures.write_image(root / "pear" / "deeper" / "021.JPG", 3)
    loaded = data.load("folder", split="all", path=root)
    assert len(loaded) == 41
    assert loaded.ids[-1] == "pear/deeper/021.JPG"


def test_one_class_is_legal_but_said(tmp_path: Path) -> None:
    root = miniatures.class_folders(tmp_path, ("apple",))
    with pytest.warns(UserWarning, match="all 20 images of folder, all are of the class 'apple'"):
        loaded = data.load("folder", split="all", path=root)
    assert loaded.classes == [0]


def test_images_that_do_not_decode_are_named_and_counted(tmp_path: Path) -> None:
    root = miniatures.class_folders(tmp_path / "fruit")
    broken = root / "apple" / "002.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    (root / "pear" / "001.jpg").write_bytes(b"no image")
    (root / "pear" / "003.jpg").write_bytes(b"")
    loaded = data.load("folder", split="all", path=root)
    with pytest.raises(UnreadableImageError, match=r"002\.jpg"):
        loaded[2]
    whole = data.load("folder", split="all", path=root, skip_unreadable=True)
    assert len(whole) == 37
    assert whole.skipped == ("apple/002.jpg", "pear/001.jpg", "pear/003.jpg")
    assert whole.floats().shape == (37, 3, 224, 224)
    assert whole.labels.tolist() == [0] * 19 + [1] * 18


def test_the_limit_on_pixels_stays_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = data.load("folder", split="all", path=miniatures.class_folders(tmp_path))
    (tmp_path / "apple" / "001.jpg").unlink()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    for number in (0, 1):
        with pytest.raises(UnreadableImageError, match=rf"00{number}\.jpg"):
            loaded[number]


def test_the_orientation_of_a_camera_is_applied(tmp_path: Path) -> None:
    root = miniatures.class_folders(tmp_path)
    picture = Image.new("RGB", (12, 8))
    picture.paste((255, 255, 255), (0, 0, 6, 8))
    exif = picture.getexif()
    exif[0x0112] = 6  # to be turned by a quarter clockwise
    picture.save(root / "apple" / "000.png", exif=exif)
    loaded = data.load("folder", split="all", path=root, image_size=None, preprocessing="unit")
    image = loaded[loaded.ids.index("apple/000.png")][0]
    assert image.shape == (3, 12, 8)
    assert bool((image[:, :6] == 1).all())
    assert bool((image[:, 6:] == 0).all())


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_images_of_any_mode_become_three_channels(mode: str, tmp_path: Path) -> None:
    root = miniatures.class_folders(tmp_path)
    suffix = "tif" if mode == "CMYK" else "png"
    Image.new("RGB", (6, 4), (255, 255, 255)).convert(mode).save(root / "apple" / f"000.{suffix}")
    loaded = data.load("folder", split="all", path=root, image_size=None, preprocessing="unit")
    image = loaded[loaded.ids.index(f"apple/000.{suffix}")][0]
    assert torch.equal(image, torch.ones(3, 4, 6))


def test_images_of_different_sizes_need_a_size_to_be_stacked(tmp_path: Path) -> None:
    root = miniatures.class_folders(tmp_path)
    miniatures.write_image(root / "pear" / "100.jpg", 1, size=(30, 20))
    with pytest.raises(ValueError, match="image_size"):
        data.load("folder", split="all", path=root, image_size=None).floats()
    assert data.load("folder", split="all", path=root, image_size=9).floats().shape == (41, 3, 9, 9)


def test_folders_for_splits_are_taken_together_to_be_divided_by_class(tmp_path: Path) -> None:
    miniatures.class_folders(tmp_path / "train", tuple("abcdefgh"), 2)
    miniatures.class_folders(tmp_path / "val", tuple("aceg"), 1)
    miniatures.class_folders(tmp_path / "test", tuple("bdfh"), 3)
    loaded = {
        split: data.load("folder", split=split, path=tmp_path, divide="classes", validation_share=0.5)
        for split in ("train", "validation", "test", "all")
    }
    assert {split: part.classes for split, part in loaded.items()} == {
        "train": [0, 2],
        "validation": [1, 3],
        "test": [4, 5, 6, 7],
        "all": list(range(8)),
    }
    assert [len(part) for part in loaded.values()] == [6, 10, 16, 32]
    seen = {name.split("/")[0] for name in loaded["test"].ids}
    assert seen == {"train", "val", "test"}
    for part in loaded.values():
        assert [name.split("/")[1] for name in part.ids] == [part.class_names[label] for label in part.labels]
    everything = [name for split in ("train", "validation", "test") for name in loaded[split].ids]
    assert sorted(everything) == sorted(loaded["all"].ids)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "PA"])
def test_what_is_transparent_is_laid_on_white(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    icon = Image.new("RGBA", (3, 1), (0, 0, 0, 0))  # black, below nothing
    icon.putpixel((1, 0), (0, 0, 0, 255))
    icon.putpixel((2, 0), (0, 0, 0, 128))
    path = tmp_path / ("icon.tiff" if mode == "PA" else "icon.png")
    if mode == "P":
        flat = Image.new("P", (3, 1), 0)
        flat.putpalette([0, 0, 0, 0, 0, 0])
        flat.putpixel((1, 0), 1)
        flat.save(path, transparency=0)
    elif mode == "PA":
        icon.convert("PA").convert("RGBA").save(path)
    else:
        icon.convert(mode).save(path)
    with caplog.at_level("INFO"):
        pixels = decode_image(path)
    assert pixels.shape == (3, 1, 3)
    assert pixels[:, 0, :2].tolist() == [[255, 0]] * 3
    if mode != "P":
        assert abs(int(pixels[0, 0, 2]) - 127) <= 1
    assert f"{path} is transparent" in caplog.text
    opaque = tmp_path / "opaque.png"
    Image.new("RGBA", (3, 1), (0, 0, 0, 255)).save(opaque)
    assert not decode_image(opaque).any()


def test_a_pipe_or_a_device_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    root = miniatures.class_folders(tmp_path / "fruit")
    pipe = root / "apple" / "pipe.png"
    os.mkfifo(pipe)
    (root / "apple" / "device.png").symlink_to("/dev/zero")
    with pytest.raises(UnreadableImageError, match=r"device\.png"):
        data.load("folder", split="all", path=root)
    loaded = data.load("folder", split="all", path=root, skip_unreadable=True)
    assert not {"apple/pipe.png", "apple/device.png"} & set(loaded.ids)
    for path in (pipe, root / "apple" / "device.png", root / "apple"):
        with pytest.raises(UnreadableImageError, match="is no file"):
            decode_image(path)
