"""Inputs with labels: the same from memory and from files, with the split that says what they may be used for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from laplacian_metric.data import LabelledImages, Role, Split, from_arrays, load
from laplacian_metric.data.labelled import LabelledInputs


def doubled(image: Tensor) -> Tensor:
    return 255 - image


def some(split: str = "train", augmented: bool = False) -> LabelledImages:
    pixels = torch.arange(11 * 6).reshape(11, 1, 2, 3).to(torch.uint8)
    return from_arrays(pixels, torch.arange(11) % 3, split=split, augment=doubled if augmented else None)


def joined(data: LabelledInputs) -> tuple[Tensor, Tensor]:
    batches = list(data)
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


@pytest.mark.parametrize("workers", [0, 2])
def test_from_memory_and_from_images_the_same(workers: int) -> None:
    images = some(augmented=True)
    lazily = LabelledInputs(images, batch_size=4, workers=workers)
    at_once = LabelledInputs.in_memory(images, batch_size=4)
    for data in (lazily, at_once):
        x, y = joined(data)
        # Embedding sees no augmentation.
        assert torch.equal(x, images.floats())
        assert torch.equal(y, images.labels)
        assert [len(labels) for _, labels in data] == [4, 4, 3]
        assert len(data) == 11
    rows = [torch.tensor([3, 1]), torch.tensor([10, 0, 0])]
    for (x, y), (other, label), chosen in zip(lazily.batches(rows), at_once.batches(rows), rows, strict=True):
        # Training sees it, where it is not held in memory.
        expected = torch.stack([images[int(row)][0] for row in chosen])
        assert torch.equal(x, expected)
        assert torch.equal(other, images.floats()[chosen])
        assert torch.equal(y, images.labels[chosen])
        assert torch.equal(label, y)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_generator_decides_what_workers_draw(workers: int) -> None:
    def noisy(image: Tensor) -> Tensor:
        return torch.randint(256, image.shape, dtype=torch.uint8)

    images = some()
    images = images.prepared(dataclasses.replace(images.preparation, augment=noisy))
    data, rows = LabelledInputs(images, workers=workers), list(torch.arange(11).split(3))

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.cat([x for x, _ in data.batches(rows, torch.Generator().manual_seed(seed))])

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    before = torch.get_rng_state()
    if workers:
        list(data.batches(rows, torch.Generator().manual_seed(1)))
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("split", ["train", "validation", "test", "all"])
def test_the_split_is_kept(split: str) -> None:
    images = some(split)
    found = [LabelledInputs(images), LabelledInputs.in_memory(images)]
    found += [data.select(torch.arange(4)) for data in found]
    found += [LabelledInputs(images.floats(), images.labels, split=split).select(torch.arange(3))]
    for data in found:
        assert data.split is Split(split)
        assert data.role is Split(split).role
    assert {data.name for data in found} == {"arrays", "these inputs"}


def test_who_does_not_say_the_split_has_none() -> None:
    data = LabelledInputs(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
    assert data.split is None
    assert data.role is None
    assert LabelledInputs(load("sample-fashion-mnist", "test")).role is Role.EVALUATION


@pytest.mark.parametrize("in_memory", [True, False])
def test_some_of_them(in_memory: bool) -> None:
    data = (
        LabelledInputs.in_memory(some(), batch_size=3) if in_memory else LabelledInputs(some(), batch_size=3)
    )
    whole, _ = joined(data)
    mask = torch.arange(11) > 7
    for rows in (torch.tensor([8, 9, 10]), mask):
        chosen = data.select(rows)
        x, y = joined(chosen)
        assert torch.equal(x, whole[8:])
        assert y.tolist() == [2, 0, 1]
        assert chosen.batch_size == 3
    with pytest.raises(ValueError, match="rows is a mask of 10 entries for 11 inputs"):
        data.select(mask[:10])


def test_nothing_yields_nothing() -> None:
    empty = torch.zeros(0, dtype=torch.long)
    assert list(LabelledInputs(torch.zeros(0, 3), empty)) == []
    assert list(LabelledInputs(some()).select(empty)) == []
    assert list(LabelledInputs(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long)).batches([])) == []


def test_features_that_are_mapped_from_a_file(tmp_path: Path) -> None:
    torch.arange(12.0).numpy().tofile(tmp_path / "features")
    mapped = torch.from_file(str(tmp_path / "features"), size=12).reshape(6, 2)
    data = LabelledInputs(mapped, torch.arange(6) % 2, batch_size=4)
    assert torch.equal(joined(data)[0], torch.arange(12.0).reshape(6, 2))
    (x, y), *_ = data.batches([torch.tensor([5, 0])])
    assert x.tolist() == [[10.0, 11.0], [0.0, 1.0]]
    assert y.tolist() == [1, 0]


def test_what_does_not_fit_is_refused() -> None:
    labels = torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match="labels are missing"):
        LabelledInputs(torch.zeros(4, 2))
    with pytest.raises(TypeError, match="inputs is a TensorDataset: a tensor of all inputs is needed"):
        LabelledInputs(torch.utils.data.TensorDataset(torch.zeros(4, 2)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="labels has 4 entries for 3 inputs"):
        LabelledInputs(torch.zeros(3, 2), labels)
    with pytest.raises(ValueError, match="arrays has labels of its own"):
        LabelledInputs(some(), labels)
    with pytest.raises(
        ValueError, match=r"labels must be integers of shape \(N,\), not torch.float32 of shape \(4,\)"
    ):
        LabelledInputs(torch.zeros(4, 2), labels.float())
    with pytest.raises(ValueError, match=r"not torch.int64 of shape \(4, 1\)"):
        LabelledInputs(torch.zeros(4, 2), labels[:, None])
    with pytest.raises(ValueError, match="batch_size is 0"):
        LabelledInputs(torch.zeros(4, 2), labels, batch_size=0)
    with pytest.raises(ValueError, match="workers is -1"):
        LabelledInputs(some(), workers=-1)
    with pytest.raises(
        ValueError, match="arrays is the split 'test' and not 'validation': leave `split` out"
    ):
        LabelledInputs(some("test"), split="validation")
    with pytest.raises(ValueError, match="no split 'tset'"):
        LabelledInputs(torch.zeros(4, 2), labels, split="tset")
