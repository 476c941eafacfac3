"""Options that are one of a few words."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

T = TypeVar("T", bound="Choice")


class Choice(str, Enum):
    """An enumeration that is made from its words, with an error that lists them."""

    @classmethod
    def parse(cls: type[T], value: str | T, name: str | None = None) -> T:
        """The member with this value; ``name`` is what the error calls it, the class's name by default.

        Example:
            >>> class Colour(Choice):
            ...     RED = "red"
            ...     BLUE = "blue"
            >>> Colour.parse("red")
            <Colour.RED: 'red'>
            >>> Colour.parse("green")
            Traceback (most recent call last):
            ...
            ValueError: colour is 'green', one of 'red', 'blue' is needed
        """
        try:
            return cls(value)
        except ValueError:
            words = ", ".join(repr(member.value) for member in cls)
            raise ValueError(
                f"{name or cls.__name__.lower()} is {value!r}, one of {words} is needed"
            ) from None
