"""Files whose content is checked as it is read, with errors that name the file, the entry and the remedy."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ValueError: it is not whole, no JSON, or holds no object; the message ends with the remedy.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not whole or no JSON ({error}): {remedy}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no object: {remedy}")
    return content


def validated(model: type[Model], content: Any, path: Path, remedy: str) -> Model:
    """Return the content of a file as a pydantic model.

    Raises:
        ValueError: it does not fit; the message names the file and the first entry that does not.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ValueError(f"{path}: {complaint(error)}; {remedy}") from error


def complaint(error: ValidationError, section: str = "") -> str:
    """Return the first of pydantic's complaints in words: the entry, and what is wrong with it.

    Example:
        >>> class Point(BaseModel):
        ...     x: float
        >>> try:
        ...     Point.model_validate({"x": "far"})
        ... except ValidationError as error:
        ...     complaint(error)
        "x is 'far': input should be a valid number, unable to parse string as a number"
    """
    first = error.errors()[0]
    places = [f"[{place}]" if isinstance(place, int) else f".{place}" for place in first["loc"]]
    key = (section + "".join(places)).removeprefix(".")
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"{key} is missing"
    if first["type"] == "value_error":
        return f"{key} {message}" if message.startswith(("is ", "has ")) else f"{key}: {message}".lstrip(": ")
    shown = repr(first["input"])
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return f"{key} is {shown}: {message[:1].lower()}{message[1:]}"


def near(name: str, known: Iterable[str]) -> str:
    """Return a hint for a name that is not known: the nearest one, or all of them.

    Example:
        >>> near("AUROK", ["ECE", "AUROC"]), near("x", ["ECE", "AUROC"])
        ("did you mean 'AUROC'?", 'there are: ECE, AUROC')
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}"


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, in which 1e-3 is a number.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no YAML, no mapping, or has a key twice, of which YAML would silently keep the last.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "a.yaml").write_text("a: [1, 2e-3]")
        ...     read_yaml(Path(folder) / "a.yaml")
        {'a': [1, 0.002]}
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    import yaml  # imported here, because importing the package stays light

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            twice = next((number for number, key in enumerate(keys) if key in keys[:number]), None)
            if twice is not None:
                mark = node.value[twice][0].start_mark
                raise yaml.constructor.ConstructorError(None, None, f"{keys[twice]!r} is there twice", mark)
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
        list("-+0123456789"),
    )
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no mapping: it needs 'name: ...' lines")
    return content
