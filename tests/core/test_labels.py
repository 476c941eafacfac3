"""Labels of any kind: equal ones have equal numbers, wherever and whenever they are numbered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric import LAM, Encoder, OnlineLAM, metrics
from laplacian_metric.core.labels import as_labels


class Column:
    """What a table's column is to numpy: an array behind `__array__`, whose own positions mean something else."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values if dtype is None else self.values.astype(dtype)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __getitem__(self, position: int) -> Any:
        raise KeyError(position)


class Colour(Enum):
    RED = 1
    BLUE = 2


NUMBERS = (
    [3, 0, 3],
    (3, 0, 3),
    range(3),
    torch.tensor([3, 0, -3], dtype=torch.int16),
    np.array([3, 0, 2**40]),
    np.array([3, 0, 3], dtype=np.uint32),
    np.array([3, 0, 3], dtype=object),
    Column([3, 0, 3]),
    [True, False],
    [],
)


@pytest.mark.parametrize("labels", NUMBERS)
def test_whole_numbers_stay_what_they_are(labels: Any) -> None:
    actual = as_labels("labels", labels)
    assert actual.dtype == torch.int64
    assert actual.tolist() == [int(label) for label in labels]


KINDS = st.one_of(st.text(), st.binary(), st.integers(), st.booleans(), st.sampled_from(Colour), st.dates())
HASHABLE = st.one_of(KINDS, st.tuples(KINDS, KINDS), st.frozensets(st.text(max_size=2)))


@given(st.lists(HASHABLE, min_size=1, max_size=8))
def test_equal_labels_have_equal_numbers_and_others_have_others(labels: list[Any]) -> None:
    numbers = as_labels("labels", [*labels, "one more"]).tolist()[:-1]
    for one, first in zip(labels, numbers, strict=True):
        # In another call, beside other labels.
        assert as_labels("labels", ["x", one]).tolist()[1] == first
        for other, second in zip(labels, numbers, strict=True):
            assert (one == other) == (first == second)


@pytest.mark.parametrize("make", [np.array, list, tuple, Column])
def test_text_is_text_in_whatever_it_comes(make: Any) -> None:
    words = ["ant", "bee", "ant"]
    assert as_labels("labels", make(words)).tolist() == as_labels("labels", words).tolist()


def test_numbers_are_the_same_in_another_process(root: Path) -> None:
    labels: list[Any] = ["ant", (1, "bee"), date(2020, 1, 2), frozenset("abc")]
    code = (
        "from datetime import date\nfrom laplacian_metric.core.labels import as_labels\n"
        f"print(*as_labels('labels', {labels!r}).tolist())"
    ).replace("datetime.date", "date")
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert list(map(int, done.stdout.split())) == as_labels("labels", labels).tolist()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.5, 1.0], "labels has dtype torch.float32"),
        (["ant", 0.5], r"labels has at 1 0.5, which is no label: whole numbers or text are needed"),
        (["ant", None], "labels has at 1 None"),
        (["ant", []], "labels has at 1 .*unhashable"),
        ([object(), "ant"], "labels has at 0 .*a object has no text of its own"),
        ("ant", "labels is a str, a sequence"),
        (iter("ant"), "labels is a str_"),
        (np.array(["ant", None]), "labels has at 1 None"),
        (torch.tensor([1 + 1j]), "labels has dtype torch.complex64"),
        (torch.zeros(2, 1).long(), "labels"),
        ([[1, 2]], "labels"),
        (np.array([["a", "b"]]), "labels"),
        (3, "labels"),
    ],
)
def test_what_names_no_class_is_refused(labels: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        as_labels("labels", labels)


CLASSES = np.arange(60) % 3
FEATURES = (np.eye(6)[CLASSES] + 0.2 * np.random.default_rng(0).normal(size=(60, 6))).astype(np.float32)
NAMES = np.array(["cat", "dog", "eel"])[CLASSES]


def fitted(features: Any, labels: Any) -> LAM:
    torch.manual_seed(0)
    return LAM(Encoder(nn.Identity(), nn.Linear(6, 3)), ContrastiveLoss()).fit_features(
        features, labels, check_mode=False
    )


def online(labels: Any) -> float:
    torch.manual_seed(0)
    encoder = Encoder(nn.Identity(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0)
    trained = OnlineLAM(encoder, optimizer, ContrastiveLoss(), num_images=60, generator=generator)
    return trained.step(torch.from_numpy(FEATURES), labels)


USES: dict[str, Callable[[Any], float]] = {
    "pairs": lambda labels: float(Pairs.from_labels(labels).num_positives),
    "fit": lambda labels: fitted(FEATURES, labels).log_marginal_likelihood(),
    "embed": lambda labels: float(fitted(FEATURES, labels).embed_features(FEATURES).kappa.sum()),
    "online": online,
    "recall": lambda labels: metrics.recall_at_k(
        FEATURES / np.linalg.norm(FEATURES, axis=1, keepdims=True), labels
    ),
}


@pytest.mark.parametrize("use", USES)
def test_text_and_arrays_give_what_numbers_in_tensors_give(use: str) -> None:
    expected = USES[use](torch.from_numpy(CLASSES))
    for labels in (CLASSES, NAMES, NAMES.tolist()):
        assert USES[use](labels) == pytest.approx(expected)
