"""Reading a file of weights without running anything in it, and the names that published files use."""

from __future__ import annotations

import json
import os
import pickle
import re
import zipfile
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
STATE_DICT_REMEDY = "torch.save(model.state_dict(), path)"


def read_weights(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file by name, on the CPU, and the notes (metadata) that a safetensors file has."""
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder, a file of weights is needed")
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    with file.open("rb") as opened:
        start = opened.read(64)
    if len(start) > 8 and start[8:9] == b"{":
        return tensor_file.load(file)
    if start.startswith(b"version https://git-lfs"):
        raise ValueError(
            f"{file.name} is a pointer to a large file, not the file: fetch it with git lfs pull"
        )
    if zipfile.is_zipfile(file):
        _refuse_programs(file)
    elif file.suffix == ".safetensors":
        raise ValueError(f"{file.name} is no safetensors file: it is damaged or something else")
    return _state_dict(_load(file), file.name), {}


def _refuse_programs(file: Path) -> None:
    """Refuse archives of torch that hold code, by what they contain."""
    with zipfile.ZipFile(file) as archive:
        inside = [name.partition("/")[2] for name in archive.namelist()]
    if any(name == "constants.pkl" or name.startswith("code/") for name in inside):
        raise ValueError(
            f"{file.name} is a TorchScript archive, which holds code: save its weights instead, "
            f"model = torch.jit.load(path), {STATE_DICT_REMEDY}, where you trust it"
        )
    if "data.pkl" not in inside:
        raise ValueError(
            f"{file.name} is an archive, but not one of weights that torch.save or safetensors made: export those of "
            f"the Python module, {STATE_DICT_REMEDY}"
        )


def _load(file: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "GLOBAL" in str(error) or "global" in str(error) or "Unsupported class" in str(error):
            raise ValueError(
                f"{file.name} holds more than weights, a pickled module or other objects, and reading it would run "
                f"their code: where you trust it, load it in the project that it comes from, {STATE_DICT_REMEDY} "
                f"there, and use that file. torch says: {_first_line(error)}"
            ) from error
        raise ValueError(
            f"{file.name} is no file of weights or a damaged one: {_first_line(error)}"
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError, IndexError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file.name} is no file of weights or a damaged one: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines_of_interest = [line for line in lines if "GLOBAL" in line or "Unsupported" in line]
    return (lines_of_interest or lines or [type(error).__name__])[0][:300]


def _state_dict(content: Any, name: str) -> dict[str, Tensor]:
    """The state dictionary in what a torch file holds, out of its usual wrappings."""
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


def notes_of(metadata: Mapping[str, str], name: str) -> dict[str, Any]:
    """What `save_encoder` wrote about the encoder; empty for other files."""
    if "encoder" not in metadata:
        return {}
    try:
        notes = json.loads(metadata["encoder"])
    except json.JSONDecodeError as error:
        raise ValueError(f"the notes about the encoder in {name} cannot be read: {error}") from error
    if not isinstance(notes, dict):
        raise ValueError(f"the notes about the encoder in {name} are a {type(notes).__name__}, no dictionary")
    return notes
