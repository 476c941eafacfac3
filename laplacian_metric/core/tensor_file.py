"""Files of tensors (safetensors) with notes and a digest, written whole or not at all; nothing in them is code.

`digest` is the digest of tensors that are in no file, such as those of a module.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from laplacian_metric.core.checked import DamagedArtifactError, MissingArtifactError
from laplacian_metric.core.files import atomic_write

DIGEST = "sha256"
DTYPES = {
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


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
    notes = notes or {}
    header: dict[str, Any] = {"__metadata__": {**notes, DIGEST: _file_digest(tensors, notes)}}
    offset, names = 0, sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} is of {tensor.dtype}, which these files do not have")
        end = offset + tensor.numel() * tensor.element_size()
        entry = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        header[name], offset = entry, end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_write(path, exclusive=True) as temporary, temporary.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            stream.write(bytes_of(tensors[name]))


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file, on the CPU and in memory, and its notes.

    Raises:
        MissingArtifactError: there is no such file.
        DamagedArtifactError: it is no safetensors file, or not as it was written.
    """
    with opened(path) as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        notes: dict[str, str] = dict(file.metadata() or {})
    if notes.pop(DIGEST, None) not in (None, _file_digest(tensors, notes)):
        raise DamagedArtifactError(
            f"{Path(path).name} is damaged: it is not as it was written. Copy it again"
        )
    return tensors, notes


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a file as safetensors' ``safe_open`` does: its notes and the tensors' shapes are read, no numbers."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError("files of tensors are read by safetensors: pip install safetensors") from error
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder, a safetensors file is needed")
    if not file.is_file():
        raise MissingArtifactError(f"there is no file {file}")
    try:
        with safe_open(file, framework="pt", device="cpu") as reader:
            yield reader
    except SafetensorError as error:
        raise DamagedArtifactError(
            f"{file.name} is no whole safetensors file ({error}): copy or download it again"
        ) from error


def _file_digest(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    """Return the SHA-256 of the notes and of the names, dtypes, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256(json.dumps(dict(notes), sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest()


def digest(source: nn.Module | Mapping[str, Tensor], settings: Mapping[str, Any]) -> str:
    """SHA-256 of names, shapes, dtypes and bytes of tensors, and of some settings; 64 hex digits.

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
