"""Classes and modules by name: those of the library, imported when they are used, and registered ones."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar

from laplacian_metric.core.arguments import check_known, hint
from laplacian_metric.core.checked import checked

T = TypeVar("T")


class Registry(Generic[T]):
    """Frozen dataclasses of options, or modules, by name.

    Args:
        noun: what one of them is called in errors.
        places: of the library's own, as "module:class" or "module".

    Example:
        >>> losses = Registry("loss", {"contrastive": "hessians:ContrastiveLoss"})
        >>> losses.make("contrastive", margin=1.0).margin
        1.0
        >>> losses.find("contrastiv")
        Traceback (most recent call last):
        ...
        ValueError: no loss is called 'contrastiv'; did you mean 'contrastive'? there are: contrastive
    """

    def __init__(self, noun: str, places: Mapping[str, str]) -> None:
        self.noun = noun
        self._places = dict(places)
        self._registered: dict[str, type[T]] = {}

    def names(self) -> tuple[str, ...]:
        """Return all names, the library's first."""
        return tuple(dict.fromkeys([*self._places, *self._registered]))

    def register(self, name: str, kind: type[T], *, replace: bool = False) -> None:
        """Make a class known by a name, in this process; another class of that name is refused or replaced."""
        taken = name in self._places or self._registered.get(name, kind) is not kind
        if taken and not replace:
            raise ValueError(f"there is another {self.noun} called {name!r}: choose another name")
        self._registered[name] = kind

    def find(self, name: str) -> type[T]:
        """Return the class or the module of a name."""
        if name in self._registered:
            return self._registered[name]
        check_known(self.noun, name, self.names())
        module, _, attribute = self._places[name].partition(":")
        imported = importlib.import_module(module)
        kind: Any = getattr(imported, attribute) if attribute else imported
        return kind  # type: ignore[no-any-return]

    def make(self, name: str, **options: Any) -> T:
        """Return one with its options; an option that it does not have is refused."""
        kind = self.find(name)
        check_options(name, options, [field.name for field in fields(kind)])  # type: ignore[arg-type]
        return checked(kind, **options)


def check_options(name: str, options: Iterable[str], known: Sequence[str]) -> None:
    """Refuse an option that something of this name does not have.

    Example:
        >>> check_options("folder", ["paht"], ["path"])
        Traceback (most recent call last):
        ...
        ValueError: folder has no option 'paht'; did you mean 'path'? it has: path
    """
    for option in options:
        if option not in known:
            has = f"it has: {', '.join(known)}" if known else "it has none"
            raise ValueError(f"{name} has no option {option!r}; {hint(option, known)}{has}")
