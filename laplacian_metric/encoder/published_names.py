"""The names that published files of weights use, where they are not those of the library whose module takes them."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
