"""Settings and states of online LAM, as plain values that are compared before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

from torch import Tensor

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
