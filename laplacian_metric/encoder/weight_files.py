"""Reading a file of weights without running anything in it, and the names that published files use."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplacian_metric.core import tensor_file

# Of EfficientNets that were converted from the original TensorFlow files: timm's names and those of the files.
_OUTSIDE = {
    "conv_stem": "_conv_stem",
    "bn1": "_bn0",
    "conv_head": "_conv_head",
    "bn2": "_bn1",
    "classifier": "_fc",
}
_BLOCK = {"conv_dw": "_depthwise_conv", "se.conv_reduce": "_se_reduce", "se.conv_expand": "_se_expand"}
# A block that expands its channels first, and one that does not.
_EXPANDING = {
    **_BLOCK,
    "conv_pw": "_expand_conv",
    "bn1": "_bn0",
    "bn2": "_bn1",
    "conv_pwl": "_project_conv",
    "bn3": "_bn2",
}
_PLAIN = {**_BLOCK, "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}


def efficientnet_names(own: Iterable[str]) -> dict[str, str]:
    """For each parameter and buffer of timm's ``tf_efficientnet_*``, its name in files of efficientnet_pytorch's form.

    These files count all blocks through, where timm counts them within stages. Forks such as
    efficientnet_lite_pytorch have kept the names. Empty where the names are those of another kind of network.

    Args:
        own: the names in the state dictionary of timm's model, in their order.

    Example:
        >>> names = ["bn1.weight", "blocks.0.0.bn1.weight", "blocks.1.0.bn1.weight", "blocks.1.0.conv_pwl.weight"]
        >>> efficientnet_names(names)["blocks.1.0.bn1.weight"]
        '_blocks.1._bn0.weight'
    """
    names = list(own)
    parsed = {name: re.fullmatch(r"(blocks\.\d+\.\d+)\.(.+)\.(\w+)", name) for name in names}
    blocks = list(dict.fromkeys(match[1] for match in parsed.values() if match))
    expanding = {match[1] for match in parsed.values() if match and match[2] == "conv_pwl"}
    renamed = {}
    for name in names:
        if (match := parsed[name]) is not None:
            block, layer, entry = match.groups()
            known = _EXPANDING if block in expanding else _PLAIN
            start = f"_blocks.{blocks.index(block)}."
        else:
            layer, _, entry = name.rpartition(".")
            known, start = _OUTSIDE, ""
        if layer not in known:
            return {}
        renamed[name] = f"{start}{known[layer]}.{entry}"
    return renamed


# Where training scripts put the state dictionary beside the optimizer's, the most telling name first.
WRAPPINGS = (
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "module",
    "net",
    "network",
    "encoder",
    "weights",
)
# What torch raises for a file that is cut off or something else.
DAMAGED = (RuntimeError, EOFError, ValueError, KeyError, IndexError, OSError)
STATE_DICT_REMEDY = "torch.save(model.state_dict(), path)"


def read_weights(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file by name, on the CPU, and what `save_encoder` wrote about the encoder, if it did.

    Files that would have to run code to be read (pickled modules, TorchScript) are refused.
    """
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder, a file of weights is needed")
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    with file.open("rb") as opened:
        start = opened.read(9)
    if start[8:] == b"{" or file.suffix == ".safetensors":
        tensors, notes = tensor_file.load(file)
        return tensors, json.loads(notes.get("encoder", "{}"))
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, *DAMAGED) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise ValueError(
            f"{file.name} holds no plain weights, but code, something else, or a part of them ({lines[0][:200]}): "
            f"where you trust it, {STATE_DICT_REMEDY} in the project that it comes from, and use that file"
        ) from error
    return _state_dict(content, file.name), {}


def _state_dict(content: Any, name: str) -> dict[str, Tensor]:
    """Return the state dictionary in what a torch file holds, out of its usual wrappings."""
    for _ in range(3):
        if not isinstance(content, Mapping):
            break
        tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
        wrapped = next((key for key in WRAPPINGS if isinstance(content.get(key), Mapping)), None)
        if wrapped is None:
            if tensors:
                return tensors
            break
        content = content[wrapped]
    listed = (
        f" with the entries {', '.join(map(str, list(content)[:8]))}" if isinstance(content, Mapping) else ""
    )
    raise ValueError(
        f"{name} holds a {type(content).__name__}{listed} where a state dictionary is needed: {STATE_DICT_REMEDY}"
    )
