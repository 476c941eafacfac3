"""The embedded sample, and that it is what the script cuts out of the full data."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import cut_sample
from laplacian_metric.data import load
from experiments.sets.readers import read_idx

SPLITS = [("fashion-mnist", "train", 300), ("fashion-mnist", "test", 100), ("mnist", "test", 100)]


@pytest.mark.parametrize(("name", "split", "per_class"), SPLITS)
def test_shapes_and_balance(name: str, split: str, per_class: int) -> None:
    sample = embedded_sample(name, split)
    assert len(sample) == 10 * per_class
    assert sample.images.shape == (len(sample), 1, 28, 28)
    assert sample.images.dtype == torch.uint8
    assert sample.labels.dtype == torch.int64
    assert torch.bincount(sample.labels).tolist() == [per_class] * 10
    assert bool((sample.indices[1:] > sample.indices[:-1]).all())
    assert len(sample.class_names) == 10
    assert sample.licence
    assert sample.citation


def test_floats_are_the_images_between_zero_and_one() -> None:
    sample = load("sample-fashion-mnist", "test")
    floats = sample.floats()
    assert floats.shape == (1000, 1, 28, 28)
    assert floats.dtype == torch.float32
    assert floats.min() == 0
    assert floats.max() == 1
    assert torch.equal((floats * 255).round().to(torch.uint8), sample.images)


def test_images_of_one_class_are_alike() -> None:
    sample = load("sample-fashion-mnist", "train+validation")
    means = torch.stack(
        [sample.floats()[sample.labels == label].mean(dim=0).flatten() for label in range(10)]
    )
    test = load("sample-fashion-mnist", "test")
    nearest = torch.cdist(test.floats().flatten(1), means).argmin(dim=1)
    assert float((nearest == test.labels).float().mean()) > 0.6


def test_no_image_is_there_twice() -> None:
    for name, split, _ in SPLITS:
        images = embedded_sample(name, split).images.flatten(1)
        assert len(torch.unique(images, dim=0)) == len(images)


def test_unknown_name_and_split_say_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"'cifar'.*fashion-mnist, mnist"):
        embedded_sample("cifar", "test")
    with pytest.raises(ValueError, match="mnist has no split 'train'; there is: test"):
        embedded_sample("mnist", "train")


def write_idx(path: Path, values: np.ndarray, zipped: bool = False) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    content = header + values.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    if zipped:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def miniature(root: Path, zipped: bool = False) -> Path:
    """The layout of the full data with just enough images of each class."""
    rng = np.random.default_rng(0)
    for plan in cut_sample.CUTS:
        labels = rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), plan.per_class + 5))
        images = rng.integers(0, 256, (labels.size, 28, 28), dtype=np.uint8)
        raw = root / plan.folder / "raw"
        write_idx(raw / f"{plan.prefix}-images-idx3-ubyte", images, zipped)
        write_idx(raw / f"{plan.prefix}-labels-idx1-ubyte", labels, zipped)
    return root


@pytest.mark.parametrize("zipped", [False, True])
def test_cutting_twice_gives_the_same_bytes(
    tmp_path: Path, zipped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    data = miniature(tmp_path / "data", zipped)
    first, second = tmp_path / "first", tmp_path / "second"
    assert cut_sample.main([str(data), "--out", str(first)]) == 0
    assert cut_sample.main([str(data), "--out", str(second)]) == 0
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(f"{plan.name}.npz" for plan in cut_sample.CUTS)
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)
    assert "3000 images" in capsys.readouterr().out


def test_what_is_cut_is_what_stands_at_the_indices(tmp_path: Path) -> None:
    data = miniature(tmp_path)
    plan = cut_sample.CUTS[2]
    arrays = cut_sample.cut(data, plan)
    images = read_idx(data / plan.folder / "raw" / f"{plan.prefix}-images-idx3-ubyte")
    assert np.array_equal(arrays["images"], images[arrays["indices"]])


def test_cutting_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cut_sample.main([str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 1
    assert "train-images-idx3-ubyte" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="class 1 has 0 images, 1 are needed"):
        cut_sample.choose(np.zeros(3, dtype=np.uint8), per_class=1)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        cut_sample.write(path, {"labels": np.zeros(1)})
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]
    assert path.read_bytes() == b"old"


def test_the_embedded_sample_is_what_the_script_cuts() -> None:
    folder = os.environ.get("LAPLACIAN_METRIC_DATA")
    if not folder:
        pytest.skip("needs the full FashionMNIST and MNIST; say where with LAPLACIAN_METRIC_DATA")
    for plan in cut_sample.CUTS:
        name, split = plan.name.rsplit("-", 1)
        sample, arrays = embedded_sample(name, split), cut_sample.cut(Path(folder), plan)
        assert np.array_equal(sample.images[:, 0].numpy(), arrays["images"])
        assert np.array_equal(sample.labels.numpy(), arrays["labels"])
        assert np.array_equal(sample.indices.numpy(), arrays["indices"])
