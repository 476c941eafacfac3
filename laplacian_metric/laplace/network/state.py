"""What an interrupted fit leaves behind: the sums over the batches so far, in a file that is whole or not there."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplacian_metric.core import tensor_file
from laplacian_metric.core.parallel import own_folder
from laplacian_metric.laplace.network.layers import Groups

LOGGER = logging.getLogger(__name__)


PARTS = ("diagonal", "positive", "negative")


@dataclass
class Sums:
    """Sums over the first ``done`` batches, in float64; nothing is clamped yet.

    Attributes:
        about: what was summed up: encoder, loss, parameters and what was divided by.
        tensors: "diagonal/NAME" of the curvature, and "positive/NAME" and "negative/NAME", the gradients of the loss's
            two averages, for every parameter.
        digest: of the inputs and labels of these batches; "" unless there is a file to be written.
        value: of the loss.
        active: negative pairs inside of the margin.
    """

    about: str
    tensors: dict[str, Tensor]
    value: float = 0.0
    active: float = 0.0
    done: int = 0
    digest: str = ""

    @classmethod
    def start(cls, about: str, parameters: dict[str, Any], groups: Groups) -> Sums:
        """Return zeros for the parameters of some layers."""
        names = [name for group in groups.values() for name in group]
        tensors = {
            f"{part}/{name}": torch.zeros_like(parameters[name], dtype=torch.float64, requires_grad=False)
            for part in PARTS
            for name in names
        }
        return cls(about, tensors)

    def fits(self, other: Sums) -> bool:
        """Whether these are sums of the same parameters."""
        shapes = [{name: x.shape for name, x in sums.tensors.items()} for sums in (self, other)]
        return shapes[0] == shapes[1]

    def reduce(self, reduce: Callable[[Tensor], Tensor]) -> None:
        """Add up over processes."""
        self.tensors = {name: reduce(tensor) for name, tensor in self.tensors.items()}
        device = next(iter(self.tensors.values())).device
        numbers = torch.tensor([self.value, self.active, self.done], dtype=torch.float64, device=device)
        self.value, self.active, done = reduce(numbers).tolist()
        self.done = round(done)


class BatchDigest:
    """SHA-256 of the inputs and labels of all batches so far.

    Example:
        >>> one, other = BatchDigest(), BatchDigest()
        >>> one.add(torch.zeros(2, 3), torch.tensor([0, 1]))
        >>> other.add(torch.zeros(2, 3), torch.tensor([1, 0]))
        >>> str(one) == str(other), len(str(one))
        (False, 64)
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, inputs: Any, labels: Tensor) -> None:
        """Take in a batch."""
        self._add(inputs)
        self._add(labels.long())

    def _add(self, entry: Any) -> None:
        if isinstance(entry, Tensor):
            self._hash.update(f"{tuple(entry.shape)} {entry.dtype};".encode())
            self._hash.update(tensor_file.bytes_of(entry))
        elif isinstance(entry, dict):
            for name, value in entry.items():
                self._hash.update(f"{name}:".encode())
                self._add(value)
        elif isinstance(entry, tuple | list):
            for value in entry:
                self._add(value)
        else:
            self._hash.update(repr(entry).encode())

    def __str__(self) -> str:
        return self._hash.hexdigest()


class StateFile:
    """The file of the sums in a folder; each of many processes has a folder of its own in it."""

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder) / own_folder()
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "curvature.safetensors"

    def read(self) -> Sums | None:
        """What an earlier fit left; None where there is nothing, or nothing that can be read."""
        if not self.path.exists():
            return None
        try:
            tensors, notes = tensor_file.load(self.path)
            return Sums(tensors=tensors, **json.loads(notes["note"]))
        except (KeyError, TypeError, ValueError) as error:
            LOGGER.warning("%s cannot be read (%s): the fit starts again", self.path.name, error)
            return None

    def write(self, sums: Sums) -> None:
        """Replace the file in one step."""
        note = {name: value for name, value in vars(sums).items() if name != "tensors"}
        tensor_file.save(self.path, sums.tensors, {"note": json.dumps(note)})
