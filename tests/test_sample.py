"""The embedded sample, and that it is what the script cuts out of the full data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import MNIST

from experiments import cut_sample
from laplacian_metric.data import arrays, load
from tests.experiments.sets.miniatures import idx_set

SPLITS = [
    ("sample-fashion-mnist", "train+validation", 300),
    ("sample-fashion-mnist", "test", 100),
    ("sample-mnist", "test", 100),
]


@pytest.mark.parametrize(("name", "split", "per_class"), SPLITS)
def test_shapes_and_balance(name: str, split: str, per_class: int) -> None:
    sample = load(name, split)
    assert sample.inputs.shape == (10 * per_class, 1, 28, 28)
    assert sample.inputs.dtype == torch.uint8
    assert sample.labels.dtype == torch.int64
    assert torch.bincount(sample.labels).tolist() == [per_class] * 10
    original = sample.extras["original_index"]
    assert bool((original[1:] > original[:-1]).all())
    assert len(sample.class_names) == 10
    assert sample.licence
    assert sample.citation
    assert len(torch.unique(sample.inputs.flatten(1), dim=0)) == len(sample)


def test_validation_is_a_part_of_training() -> None:
    train, validation, both = (
        load("sample-fashion-mnist", split) for split in ("train", "val", "train+validation")
    )
    assert (len(train), len(validation)) == (2500, 500)
    assert torch.bincount(validation.labels).tolist() == [50] * 10
    for part in (train, validation):
        assert torch.equal(part.inputs, both.inputs[part.indices])


@pytest.mark.parametrize("split", ["train", "validation", "train+validation", "test"])
def test_arrays_are_the_images_and_labels(split: str) -> None:
    images, labels = arrays("sample-fashion-mnist", split)
    sample = load("sample-fashion-mnist", split)
    assert np.array_equal(images, sample.inputs[:, 0].numpy())
    assert np.array_equal(labels, sample.labels.numpy())


def test_arrays_need_numpy_alone(root: Path) -> None:
    code = (
        "import sys\nfrom laplacian_metric import data\ndata.arrays('sample-mnist', 'test')\n"
        "print(sorted({'torch', 'scipy', 'pandas', 'PIL'} & set(sys.modules)))\n"
        "data.load('sample-mnist', 'test').floats()\n"
        "print(sorted({'torchvision', 'scipy', 'pandas', 'PIL', 'experiments'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_unknown_names_and_splits_are_refused() -> None:
    for read in (load, arrays):
        with pytest.raises(ValueError, match="'sample-cifar'"):
            read("sample-cifar", "test")
        with pytest.raises(ValueError, match="'train'"):
            read("sample-mnist", "train")


def miniature(root: Path) -> Path:
    """The layout of the full data with just enough images of each class."""
    for source in ("FashionMNIST", "MNIST"):
        idx_set(root / source / "raw", per_class=305, num_test=1050)
    return root


def test_cutting_twice_gives_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = miniature(tmp_path / "data")
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
    cut = cut_sample.cut(data, plan)
    images = MNIST(data, train=False).data.numpy()
    assert np.array_equal(cut["images"], images[cut["indices"]])


def test_cutting_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cut_sample.main([str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 1
    assert "not found" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="class 1 "):
        cut_sample.choose(np.zeros(3, dtype=np.uint8), per_class=1)


def test_the_embedded_sample_is_what_the_script_cuts() -> None:
    folder = os.environ.get("LAPLACIAN_METRIC_DATA")
    if not folder:
        pytest.skip("needs the full FashionMNIST and MNIST; say where with LAPLACIAN_METRIC_DATA")
    for plan in cut_sample.CUTS:
        name, part = plan.name.rsplit("-", 1)
        sample = load(f"sample-{name}", "train+validation" if part == "train" else "test")
        cut = cut_sample.cut(Path(folder), plan)
        assert np.array_equal(sample.inputs[:, 0].numpy(), cut["images"])
        assert np.array_equal(sample.labels.numpy(), cut["labels"])
        assert np.array_equal(sample.extras["original_index"].numpy(), cut["indices"])
