"""Batches of a loader, and the one pass in which everything is read of them."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from laplacian_metric.core.batch import (
    Batch,
    as_batch,
    device_of,
    is_single,
    map_batches,
    read,
    repeatable,
    to_device,
)

X, Y = torch.arange(6.0).reshape(2, 3), torch.tensor([4, 7])


class Views(NamedTuple):
    left: Tensor
    right: Tensor


@pytest.mark.parametrize("item", [X, (X,), [X], (X, Y), [X, Y], (X, Y, "more"), Batch(X, Y)])
def test_inputs_are_taken_out_of_whatever_a_loader_yields(item: Any) -> None:
    batch = as_batch(item)
    assert batch.inputs is X
    assert batch.labels is None
    assert len(batch) == 2


@pytest.mark.parametrize(
    "labels", [Y, Y.int(), Y.numpy(), [4, 7], (4, 7), np.array([4, 7], dtype=np.uint16), [np.int64(4), 7]]
)
def test_labels_come_with_the_inputs_where_they_are_needed(labels: Any) -> None:
    words = {"words": X}
    for item in ((X, labels), [X, labels], Batch(X, labels)):
        assert as_batch(item, labelled=True).labels.tolist() == [4, 7]  # type: ignore[union-attr]
    batch = as_batch({**words, "labels": labels}, labelled=True)
    assert batch.inputs == words
    assert batch.labels is not None
    assert batch.labels.dtype == torch.int64
    assert as_batch({**words, "labels": labels}).inputs == words


def test_one_batch_a_data_set_and_loaders_are_told_apart() -> None:
    for single in (X, X.numpy(), (X, X), {"words": X}, UserDict(words=X), Batch(X)):
        assert is_single(single)
        assert len(list(read(single))) == 1
    for loader in ([X, X], iter([X, X]), DataLoader(TensorDataset(X, Y), batch_size=1)):
        assert not is_single(loader)
        assert len(list(read(loader))) == 2


def test_a_loader_is_read_once_in_evaluation_mode_and_without_gradients() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
    passes = []

    class Counted:
        def __iter__(self) -> Any:
            passes.append(1)
            return iter([(X, Y), (X + 1, Y)])

    def function(batch: Batch) -> Tensor:
        assert not module.training
        assert not torch.is_grad_enabled()
        u: Tensor = module(batch.inputs)
        return u

    parts = map_batches(function, Counted(), module)
    assert passes == [1]
    assert module.training
    torch.testing.assert_close(torch.cat(parts), module[0](torch.cat([X, X + 1])).detach())
    labels = map_batches(lambda batch: batch.labels, [(X, Y), (X, ["ant", "bee"])], module, labelled=True)
    assert [len(part) for part in labels if part is not None] == [2, 2]


def test_what_is_read_once_only_is_kept_to_be_read_again() -> None:
    kept = repeatable(iter([X, X + 1]))
    assert [batch.inputs.sum() for batch in kept] == [batch.inputs.sum() for batch in kept]
    listed = [X]
    assert repeatable(listed) is listed
    assert repeatable(X) is X


@pytest.mark.parametrize("inputs", [X, X.numpy(), (1.0, X), {"a": "word", "b": X}, ["one", "two"], ("ab",)])
def test_inputs_are_counted(inputs: Any) -> None:
    assert len(Batch(inputs)) == 2


def test_the_last_parameter_says_where() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    assert device_of(module).type == "meta"
    assert device_of(module[:1]).type == "cpu"
    assert device_of(nn.ReLU()).type == "cpu"


def test_inputs_of_any_make_are_moved() -> None:
    module, x = nn.Linear(1, 1, device="meta"), torch.zeros(2)
    moved = to_device({"views": Views(x, x), "list": [x, (x, 3)], "word": "a"}, module)
    views, (first, (second, number)) = moved["views"], moved["list"]
    assert isinstance(views, Views)
    assert {t.device.type for t in (views.left, views.right, first, second)} == {"meta"}
    assert (number, moved["word"]) == (3, "a")
    assert x.device.type == "cpu"
    assert to_device(UserDict(x=x), module)["x"].device.type == "meta"
    assert to_device(x, nn.ReLU()) is x
    batch = Batch(x, Y, views=(x, Views(x, x))).to(module)
    assert batch.inputs.device.type == batch.views[0].device.type == batch.views[1].left.device.type == "meta"
    assert batch.labels is Y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arrays_take_the_dtype_of_the_module(dtype: torch.dtype) -> None:
    module = nn.Linear(3, 2, dtype=dtype)
    for array in (X.numpy(), X.double().numpy()):
        assert to_device(array, module).dtype == dtype
    assert to_device(Y.numpy(), module).dtype == torch.int64
    assert to_device(X.double(), module).dtype == torch.float64


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize("progress", [None, False])
def test_a_stream_without_a_length_is_read(progress: bool | None) -> None:
    loader = DataLoader(Stream(), batch_size=2)
    (batch,) = read(loader, labelled=True, progress=progress)
    assert torch.equal(batch.inputs, X)


BATCHES: list[tuple[Any, str]] = [
    (X, "batch 3 of the loader"),
    ((X, Y, Y), "batch 3 of the loader"),
    ((), "batch 3 of the loader"),
    ({"words": X}, "batch 3 of the loader"),
    ((X, 4), "entry 3 of the loader"),
    ((X, "ant"), "entry 3 of the loader"),
    ((X, Y.float()), "batch 3 of the loader: labels"),
    ((X, Y[:, None]), "batch 3 of the loader: labels"),
    ((X, [[1], [2]]), "batch 3 of the loader: labels"),
    ((X, [[], {}]), "batch 3 of the loader: labels"),
    ((3.0, Y), "inputs of batch 3 of the loader"),
    ((torch.zeros(3, 1), Y), "batch 3 of the loader has 2 labels"),
]
LOADERS: list[tuple[Any, str]] = [
    ((X, Y), "loader"),
    (TensorDataset(X, Y), "DataLoader"),
    (0.5, "loader"),
    ([], "loader is empty"),
    (iter([]), "loader is empty"),
    (DataLoader(TensorDataset(X[:0], Y[:0])), "loader is empty"),
]


@pytest.mark.parametrize(
    ("use", "named"),
    [
        *((partial(as_batch, item, 3, labelled=True), named) for item, named in BATCHES),
        *((partial(map_batches, len, item, nn.Identity(), labelled=True), named) for item, named in LOADERS),
        (partial(as_batch, ()), "tuple"),
    ],
)
def test_what_is_no_batch_or_no_loader_is_refused(use: Any, named: str) -> None:
    with pytest.raises((TypeError, ValueError), match=named):
        use()
