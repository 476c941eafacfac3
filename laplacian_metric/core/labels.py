"""Labels of any kind as whole numbers: the same number for the same label, in every batch, call and process."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Labels = Tensor | NDArray[Any] | Sequence[Hashable]


def as_labels(name: str, labels: Any) -> Tensor:
    """Return labels as whole numbers (N,), int64.

    Whole numbers stay what they are. Text, and whatever else is hashable, is numbered by a digest of 63 bits, so that
    it needs no list of all classes and labels of several calls (batches, queries and gallery, processes) agree.

    Args:
        name: of the argument, for errors.
        labels: a tensor, an array or a sequence, of shape (N,).

    Example:
        >>> as_labels("labels", [0, 0, 7]).tolist()
        [0, 0, 7]
        >>> ant, bee, again = as_labels("labels", np.array(["ant", "bee", "ant"]))
        >>> bool(ant == again), bool(ant == bee), bool(ant == as_labels("labels", ["ant"])[0])
        (True, False, True)
    """
    if not isinstance(labels, Tensor) and hasattr(labels, "__array__"):
        labels = np.asarray(labels)
        if labels.dtype.kind in "iub":
            labels = labels.astype(np.int64)
        elif labels.dtype.kind in "OUSM" and labels.ndim == 1:
            labels = labels.tolist()
    try:
        tensor = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        tensor = _by_digest(name, labels)
    if tensor.ndim != 1:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, one label for each image is needed, shape (N,)"
        )
    if len(tensor) and (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(
            f"{name} has dtype {tensor.dtype}, whole numbers or text are needed: number the classes"
        )
    return tensor.long()


def numbered(labels: Any, class_names: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels of any kind as whole numbers (N,), and the names of their classes.

    Whole numbers stay, with the names given; others become the position of their name, by default among sorted names.

    Example:
        >>> numbered(["bee", "ant"], ())
        (tensor([1, 0]), ('ant', 'bee'))
    """
    numbers = as_labels("labels", labels)
    if isinstance(labels, Tensor) or not len(numbers) or np.asarray(labels).dtype.kind in "iub":
        return numbers, class_names
    entries = {number: str(label) for number, label in zip(numbers.tolist(), labels, strict=True)}
    names = class_names or tuple(sorted(entries.values()))
    unknown = sorted(set(entries.values()) - set(names))
    if unknown:
        raise ValueError(f"labels has {unknown[0]!r}, which is not among the {len(names)} class_names")
    if len(set(entries.values())) < len(entries):
        raise ValueError("labels has two classes of one name: give text or whole numbers, not both")
    place = {number: names.index(name) for number, name in entries.items()}
    return torch.tensor([place[number] for number in numbers.tolist()]), names


def _by_digest(name: str, labels: Any) -> Tensor:
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Sequence):
        raise TypeError(
            f"{name} is a {type(labels).__name__}, a sequence with one label for each image is needed"
        )
    numbers: dict[Hashable, int] = {}
    for row, label in enumerate(labels):
        try:
            if label not in numbers:
                numbers[label] = _number(label)
        except TypeError as error:
            raise TypeError(f"{name} has at {row} {label!r}, which is no label: {error}") from None
    return torch.tensor([numbers[label] for label in labels], dtype=torch.int64)


def _number(label: Any) -> int:
    """The number of one label."""
    if isinstance(label, Tensor | np.generic):
        label = label.item()
    if isinstance(label, int) and -(2**63) <= label < 2**63:
        return int(label)
    if label is None or isinstance(label, float):
        raise TypeError("whole numbers or text are needed")
    kind, text_of = type(label).__name__, cast(Any, type(label).__repr__)
    if isinstance(label, str):
        kind, text = "str", str.__str__(label)
    elif isinstance(label, (tuple, frozenset)):
        numbers = [_number(part) for part in label]
        text = ",".join(map(str, sorted(numbers) if isinstance(label, frozenset) else numbers))
    elif text_of is object.__repr__:
        raise TypeError(f"a {kind} has no text of its own to be known by: give text instead")
    else:
        text = repr(label)
    digest = hashlib.blake2b(f"{kind}:{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
