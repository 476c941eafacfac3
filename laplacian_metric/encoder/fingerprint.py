"""A digest of everything in a module that is a tensor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from laplacian_metric.core.tensor_file import bytes_of


def digest(module: nn.Module, settings: Mapping[str, Any]) -> str:
    """SHA-256 of names, shapes, dtypes and bytes of all parameters and buffers, and of some settings; 64 hex digits.

    Example:
        >>> digest(nn.Linear(2, 2), {}) == digest(nn.Linear(2, 2), {})
        False
    """
    tensors = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    return digest_tensors(tensors, settings)


def digest_tensors(tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> str:
    """SHA-256 of names, shapes, dtypes and bytes of tensors, and of some settings; 64 hex digits.

    Example:
        >>> import torch
        >>> digest_tensors({"a": torch.zeros(2)}, {}) == digest_tensors({"b": torch.zeros(2)}, {})
        False
    """
    digest = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        # Lengths first, so that no two lists of tensors give the same bytes.
        head = json.dumps([name, list(tensor.shape), str(tensor.dtype)]).encode()
        digest.update(len(head).to_bytes(8, "little") + head)
        digest.update(bytes_of(tensor))
    return digest.hexdigest()
