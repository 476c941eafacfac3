"""Checks of arguments and options: an error names the argument, its value and what is needed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Draws = Annotated[int, Field(ge=2)]  # of fewer no spread is known
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Real = Annotated[float, Field(allow_inf_nan=False)]
Variance = Annotated[
    float, Field(gt=1e-6, le=1e12)
]  # that a network may start from: softplus has a floor of 1e-6
Probability = Annotated[float, Field(ge=0, lt=1)]  # that an entry is dropped


def positive(name: str, value: float | None) -> float | None:
    """Return a finite number above 0, or None.

    Example:
        >>> positive("temperature", 2)
        2.0
    """
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}, a positive number is needed")
    return None if value is None else float(value)


def at_least(least: float, **values: float | None) -> None:
    """Refuse values below a number; None passes.

    Example:
        >>> at_least(1, samples=0)
        Traceback (most recent call last):
        ...
        ValueError: samples is 0, at least 1 is needed
    """
    for name, value in values.items():
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}, at least {least} is needed")


def not_negative(**values: float) -> None:
    """Refuse values below 0, infinite ones and NaN.

    Example:
        >>> not_negative(margin=-1.0)
        Traceback (most recent call last):
        ...
        ValueError: margin is -1.0, a finite number from 0 on is needed
    """
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value}, a finite number from 0 on is needed")


def one_of(choices: Iterable[object], **values: object) -> None:
    """Refuse values that are not among the choices.

    Example:
        >>> one_of(("a", "b"), kind="c")
        Traceback (most recent call last):
        ...
        ValueError: kind is 'c', one of 'a', 'b' is needed
    """
    known = tuple(choices)
    for name, value in values.items():
        if value not in known:
            raise ValueError(f"{name} is {value!r}, one of {', '.join(map(repr, known))} is needed")


def hint(name: str, known: Iterable[str]) -> str:
    """Return the question that names the nearest of the known names, with a space behind it; nothing without one.

    Example:
        >>> hint("resnet5", ["resnet50", "vit"])
        "did you mean 'resnet50'? "
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}? " if near else ""


def check_known(noun: str, name: str, known: Iterable[str], also: str = "") -> None:
    """Refuse a name that is not known; the error lists those that are, and what else there is.

    Example:
        >>> check_known("network", "resnet5", ["resnet50"], ", timm:NAME")
        Traceback (most recent call last):
        ...
        ValueError: no network is called 'resnet5'; did you mean 'resnet50'? there are: resnet50, timm:NAME
    """
    names = list(known)
    if name not in names:
        nearest = hint(str(name).lower().replace("_", "-"), names) or hint(str(name), names)
        raise ValueError(f"no {noun} is called {name!r}; {nearest}there are: {', '.join(names)}{also}")


def parse_choices(options: Any) -> None:
    """Put the member of its `Choice` in place of the word in every such field of a dataclass; None stays.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> loss = ContrastiveLoss()
        >>> object.__setattr__(loss, "distance", "euclidean")
        >>> parse_choices(loss)
        >>> loss.distance
        <Distance.EUCLIDEAN: 'euclidean'>
    """
    from hessians.checks import Choice  # with torch, which checks of names do without

    hints = get_type_hints(type(options))
    for field in fields(options):
        value, hint = getattr(options, field.name), hints[field.name]
        kinds = [one for one in (hint, *get_args(hint)) if isinstance(one, type) and issubclass(one, Choice)]
        if kinds and value is not None:
            object.__setattr__(options, field.name, kinds[0].parse(value, field.name))
