"""Settings and states of online LAM: checked, and compared as plain values before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.layer import Structure

PAPER_SHARE = 1e-4


def checked_memory(memory: float | str) -> tuple[float, bool]:
    """Return a, the share of a new batch, and whether batches are summed as in the paper instead of averaged."""
    if isinstance(memory, str):
        if memory != "paper":
            raise ValueError(f'memory is {memory!r}, a number in (0, 1] or "paper" is needed')
        return PAPER_SHARE, True
    if not 0 < memory <= 1:
        raise ValueError(
            f"memory is {memory}, the new batch's share in (0, 1] is needed: 0.005 covers 200 batches"
        )
    return float(memory), False


def checked_images(num_images: int | None, n_effective: float | None) -> int:
    """N; what n_effective says where it is not given."""
    if num_images is None and n_effective is None:
        raise ValueError(
            "num_images is missing: say how many images the training set has, e.g. num_images=len(dataset); the loss "
            "is an average and does not know"
        )
    return at_least("num_images", round(n_effective or 0) if num_images is None else num_images, 1)


def at_least(name: str, value: int, least: int) -> int:
    """A whole number that is not too small."""
    if int(value) != value or value < least:
        raise ValueError(f"{name} is {value}, a whole number of at least {least} is needed")
    return int(value)


def checked_optimizer(encoder: Encoder, optimizer: torch.optim.Optimizer) -> float | None:
    """The weight decay that the head has in an optimizer; one that does not train the head is refused."""
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


def check_structure(structure: str | Structure) -> None:
    """Refuse what cannot be kept up from batch to batch."""
    parsed = Structure.parse(structure)
    if parsed is not Structure.DIAGONAL:
        raise ValueError(
            f'structure is "{parsed.value}": online, only "diag" can be kept up. Factors and eigenvectors of a sum are '
            'not the sums of those of its batches, and the batches are gone. Train with "diag", and fit a LAM with '
            f'structure="{parsed.value}" afterwards'
        )


def checked_generator(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """On the head's device; a new one that starts at 0 where there is none."""
    if generator is None:
        return torch.Generator(device).manual_seed(0)
    if generator.device.type != device.type:
        raise ValueError(
            f"generator is on {generator.device}, the head's weights are on {device}: torch.Generator({str(device)!r})"
        )
    return generator


VERSION = 2
# How the running curvature is kept up; experiments.published has other ways, as in the published code.
SWITCHES = {
    "switches": "Switches",
    "switches.scale": "images",
    "switches.relu_per_batch": False,
    "switches.mined": None,
    "switches.memory": "average",
    "switches.start": None,
}


def plain(value: Any) -> Any:
    """Members of enumerations by their values.

    Example:
        >>> from hessians.approximations import Approximation
        >>> plain(Approximation.FIXED)
        'fixed'
    """
    return value.value if isinstance(value, Enum) else value


def described(name: str, thing: object) -> dict[str, Any]:
    """The fields of a data class after its name; of anything else the class's name alone.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> described("loss", ContrastiveLoss(margin=0.5))["loss.margin"]
        0.5
    """
    description: dict[str, Any] = {name: type(thing).__name__}
    if is_dataclass(thing):
        for field in fields(thing):
            value = plain(getattr(thing, field.name))
            description[f"{name}.{field.name}"] = (
                value if isinstance(value, int | float | str | None) else repr(value)
            )
    return description


def defaults(name: str, thing: object) -> dict[str, Any]:
    """The default of every field of a data class that has one: what a state from before the field had it stands for.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> defaults("loss", ContrastiveLoss(margin=0.5))["loss.distance"]
        'arccos'
    """
    known = fields(thing) if is_dataclass(thing) else ()
    return {f"{name}.{field.name}": plain(field.default) for field in known if field.default is not MISSING}


def check_settings(own: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse the state of a run with other settings, naming them."""
    wrong = [
        f"{name} is {own.get(name)!r} here and {stored.get(name)!r} there"
        for name in sorted({*own, *stored})
        if own.get(name) != stored.get(name)
    ]
    if wrong:
        raise ValueError(
            f"the state is of a run with other settings: {'; '.join(wrong)}. Make the OnlineLAM with those of the state"
        )


def check_architecture(own: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Refuse the weights of another architecture, naming the first that do not fit."""
    for name in sorted({*own, *stored}):
        here, stored_value = own.get(name), stored.get(name)
        if isinstance(here, Tensor) and isinstance(stored_value, Tensor):
            if here.shape != stored_value.shape or here.dtype != stored_value.dtype:
                raise ValueError(
                    f"the state is of another architecture: {name} is {tuple(here.shape)} of {here.dtype} here, "
                    f"{tuple(stored_value.shape)} of {stored_value.dtype} there"
                )
        elif (name in own) != (name in stored):
            where = "here but not there" if name in own else "there but not here"
            raise ValueError(f"the state is of another architecture: {name} is {where}")


def check_version(state: Mapping[str, Any]) -> None:
    """Refuse what `OnlineLAM.state_dict` did not make."""
    version = state.get("version")
    if version != VERSION:
        raise ValueError(
            f"this is no state of an OnlineLAM of version {VERSION} (its version is {version!r}): pass what "
            "state_dict() returned"
        )
