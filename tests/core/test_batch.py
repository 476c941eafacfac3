"""Batches of a loader on their way into a module."""

from __future__ import annotations

from collections import UserDict
from typing import NamedTuple

import torch
from torch import Tensor, nn

from laplacian_metric.core.batch import device_of, inputs_of, to_device


class Views(NamedTuple):
    left: Tensor
    right: Tensor


def test_inputs_are_taken_out_of_batches() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(2)
    words = {"ids": x, "mask": y}
    found = list(inputs_of([(x, y), [x, y], x, (words, y), words]))
    assert found[0] is found[1] is found[2] is x
    assert found[3] is found[4] is words


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
