"""Settings and states of online LAM, compared as plain values before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.storage import plain_fields


def weight_decay_of(encoder: Encoder, optimizer: torch.optim.Optimizer) -> float | None:
    """Return the weight decay of the head in an optimizer; one that does not train the head is refused."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "optimizer is an LBFGS, which evaluates a batch many times in a step, and always the same: take one that "
            "evaluates it once"
        )
    head = encoder.head.weight
    if not head.requires_grad:
        raise ValueError("encoder.head.weight requires no gradient: head.requires_grad_() makes it trainable")
    for group in optimizer.param_groups:
        if any(parameter is head for parameter in group["params"]):
            return group.get("weight_decay")
    raise ValueError(
        "the optimizer does not train encoder.head.weight: make it with encoder.parameters(), after the encoder was "
        "moved or copied"
    )


def described(name: str, thing: object) -> dict[str, Any]:
    """Return the name of a thing's class, and its fields where they are plain.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> described("loss", ContrastiveLoss(margin=0.5))["loss.margin"]
        0.5
    """
    fields = plain_fields(thing) or {}
    return {name: type(thing).__name__, **{f"{name}.{field}": value for field, value in fields.items()}}


def check_same(what: str, own: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse a state that differs, naming what is other."""
    wrong = [
        f"{name} is {own.get(name)!r} here and {stored.get(name)!r} there"
        for name in sorted({*own, *stored})
        if own.get(name) != stored.get(name)
    ]
    if wrong:
        raise ValueError(
            f"the state is of a run with other {what}: {'; '.join(wrong)}. Make the OnlineLAM with those of the state"
        )


def forms(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Return the shape and the dtype of every tensor."""
    return {
        name: f"{tuple(tensor.shape)} of {tensor.dtype}"
        for name, tensor in tensors.items()
        if isinstance(tensor, Tensor)
    }
