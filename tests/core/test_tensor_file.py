"""Files of tensors: what safetensors reads and writes, with notes, whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from laplacian_metric.core.artifact import ArtifactError, MissingArtifactError
from laplacian_metric.core.tensor_file import load, save

DTYPES = [
    torch.complex64, torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def some() -> dict[str, Tensor]:
    """Every dtype, tensors that share memory, views, and the smallest ones."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(6, 5, generator=generator, dtype=torch.float64) * 10
    every = {str(dtype): numbers.to(dtype) for dtype in DTYPES}
    views = {"transposed": numbers.T, "part": numbers[::2, 1:], "same": numbers, "tied": numbers.view(-1)}
    small = {"empty": torch.empty(0, 3), "number": torch.tensor(3.5), "ä": torch.ones(1, dtype=torch.int8)}
    return {**every, **views, **small, "parameter": torch.nn.Parameter(torch.ones(2))}


def test_what_is_written_is_read_by_safetensors_and_here(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save(path, some(), {"note": "ü"})
    ours, notes = load(path)
    theirs = load_file(path)
    assert notes == {"note": "ü"}
    assert set(ours) == set(theirs) == set(some())
    for name, tensor in some().items():
        for again in (ours[name], theirs[name]):
            assert torch.equal(again, tensor.detach())
            assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_what_safetensors_writes_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "a")
    tensors, notes = load(tmp_path / "a")
    assert tensors["a"].tolist() == [1, 1, 1]
    assert notes == {}


def test_files_that_are_none(tmp_path: Path) -> None:
    save(tmp_path / "whole", {"a": torch.ones(4)})
    whole = (tmp_path / "whole").read_bytes()
    entry = {"a": {"dtype": "F32", "shape": [23 << 28], "data_offsets": [0, 23 << 30]}}
    header = json.dumps(entry).encode()
    for content in (
        b"", whole[:7], whole[:-1], whole + b"0", b"{" * 100, (23 << 30).to_bytes(8, "little") + b"{}",
        len(header).to_bytes(8, "little") + header + bytes(64),
    ):  # fmt: skip
        (tmp_path / "part").write_bytes(content)
        with pytest.raises(ArtifactError, match="part"):
            load(tmp_path / "part")
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "nothing"):
        with pytest.raises(MissingArtifactError, match=name):
            load(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        load(tmp_path)
