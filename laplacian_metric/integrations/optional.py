"""Libraries that may not be installed, and errors that say how to get them."""

from __future__ import annotations

import importlib
from typing import Any, NoReturn


def require(module: str, needed_by: str, install: str) -> Any:
    """Import a module of an optional library.

    Args:
        module: its full name.
        needed_by: what the user asked for.
        install: what pip has to be given.

    Example:
        >>> require("json", "this example", "nothing").loads("[1]")
        [1]
        >>> require("no_such_library", "LaplaceEmbedding", "laplacian-metric[sklearn]")
        Traceback (most recent call last):
        ...
        ImportError: LaplaceEmbedding needs no_such_library: pip install "laplacian-metric[sklearn]"
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        refuse(module, needed_by, install, error)


def base_class(module: str, name: str, install: str) -> Any:
    """A class of an optional library to derive from; without the library, deriving works and making objects does not.

    Example:
        >>> class Mine(base_class("no_such_library", "Base", "laplacian-metric[sklearn]")):
        ...     pass
        >>> Mine()
        Traceback (most recent call last):
        ...
        ImportError: Mine needs no_such_library: pip install "laplacian-metric[sklearn]"
    """
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        reason = error

    class Missing:
        """Stands in for a class whose library is not installed."""

        def __new__(cls, *_: Any, **__: Any) -> Missing:
            refuse(module, cls.__name__, install, reason)

    return Missing


def class_decorator(module: str, name: str, install: str) -> Any:
    """A class decorator of an optional library; without the library, the decorated class can be named and not made.

    Example:
        >>> @class_decorator("no_such_library", "component", "laplacian-metric[haystack]")
        ... class Mine:
        ...     pass
        >>> Mine()
        Traceback (most recent call last):
        ...
        ImportError: Mine needs no_such_library: pip install "laplacian-metric[haystack]"
    """
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        missing = base_class(module, name, install)
        return lambda cls: type(
            cls.__name__, (missing, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__}
        )


def refuse(module: str, needed_by: str, install: str, error: ImportError) -> NoReturn:
    """Say what to install, and why the import failed where the library is there but broken."""
    library = module.split(".")[0]
    absent = isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == library
    why = "" if absent else f" (it is there, but cannot be imported: {error})"
    raise ImportError(f'{needed_by} needs {library}{why}: pip install "{install}"') from error
