"""Files of tensors (safetensors) with notes, written whole or not at all; nothing in them is code.

`digest` is the digest of tensors that are in no file, such as those of a module.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplacian_metric.core.artifact import ArtifactError, MissingArtifactError
from laplacian_metric.core.files import atomic_write

ORDERS = "orders"  # the note of the dimensions' order in memory


def save(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None
) -> None:
    """Write tensors and texts into one file; what was there before stays until the new file is whole.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(Path(folder) / "a.safetensors", {"ones": torch.ones(2)}, {"by": "me"})
        ...     tensors, notes = load(Path(folder) / "a.safetensors")
        >>> tensors["ones"], notes["by"]
        (tensor([1., 1.]), 'me')
    """
    with atomic_write(path) as temporary:
        write(temporary, tensors, notes)


def write(
    path: Path,
    tensors: Mapping[str, Tensor],
    notes: Mapping[str, str] | None = None,
    *,
    keep_strides: bool = False,
) -> None:
    """Write a file of tensors in place.

    Args:
        path: of the file.
        tensors: by name; they may share memory.
        notes: texts by name.
        keep_strides: store the numbers in the order in which they lie in memory, which `load` restores. Other readers
            see transposed tensors then. A matrix product rounds differently where its factors lie differently.
    """
    from safetensors.torch import save_file

    packed, orders = {}, {}
    for name, tensor in tensors.items():
        order = list(range(tensor.ndim))
        if keep_strides:
            order.sort(key=tensor.stride, reverse=True)
        packed[name] = tensor.detach().permute(order).to("cpu").contiguous().clone()
        if order != list(range(tensor.ndim)):
            orders[name] = order
    written = dict(notes or {"format": "pt"})  # without notes and tensors safetensors does not read the file
    if orders:
        written[ORDERS] = json.dumps(orders)
    save_file(packed, path, written)


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file, on the CPU and in memory, and its notes.

    Raises:
        MissingArtifactError: there is no such file.
        ArtifactError: it is no whole safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder, a safetensors file is needed")
    if not file.is_file():
        raise MissingArtifactError(f"there is no file {file}")
    try:
        with safe_open(file, framework="pt", device="cpu") as reader:
            tensors = {name: reader.get_tensor(name).clone() for name in reader.keys()}  # noqa: SIM118
            notes: dict[str, str] = dict(reader.metadata() or {})
        for name, order in json.loads(notes.pop(ORDERS, "{}")).items():
            tensors[name] = tensors[name].permute([order.index(place) for place in range(len(order))])
    except (SafetensorError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise ArtifactError(
            f"{file.name} is no whole safetensors file ({error}): copy or download it again"
        ) from error
    return tensors, notes


def digest(source: nn.Module | Mapping[str, Tensor], settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 of names, shapes, dtypes and bytes of tensors, and of some settings; 64 hex digits.

    Args:
        source: the tensors by name, or a module, whose parameters and buffers they are.
        settings: as JSON has them.

    Example:
        >>> digest({"a": torch.zeros(2)}, {}) == digest({"b": torch.zeros(2)}, {})
        False
    """
    if isinstance(source, nn.Module):
        parameters = source.named_parameters(remove_duplicate=False)
        source = {**dict(parameters), **dict(source.named_buffers(remove_duplicate=False))}
    summed = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode())
    for name in sorted(source):
        tensor = source[name].detach()
        # Lengths first, so that no two lists of tensors give the same bytes.
        head = json.dumps([name, list(tensor.shape), str(tensor.dtype)]).encode()
        summed.update(len(head).to_bytes(8, "little") + head)
        summed.update(bytes_of(tensor))
    return summed.hexdigest()


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor's numbers, in its order.

    Example:
        >>> bytes_of(torch.ones(2, dtype=torch.bool)).tolist()
        [1, 1]
    """
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    numbers: memoryview = flat.view(torch.uint8).numpy().data  # through bytes: numpy has no bfloat16
    return numbers
