"""JSON and YAML, checked as they are read, with errors that name the file, the entry and the remedy.

Numbers and arrays are NaN in Python and null in a file where they are not defined.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import numpy as np
import numpy.typing as npt
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
)

from laplacian_metric.core.arguments import hint

Model = TypeVar("Model", bound=BaseModel)
Options = TypeVar("Options")
# What pydantic puts behind the name of a field that may be of several kinds.
KIND = re.compile(r"constrained-\w+|(literal|list|dict|tuple)\[.*\]|float|int|str|bool")
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ValueError: it is not whole, no JSON, has NaN or an infinite number, or holds no object; the message ends with
            the remedy.
    """
    try:
        content = json.loads(path.read_bytes(), parse_constant=_refuse)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{path} is not whole or no JSON ({problem}): {remedy}") from problem
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no object: {remedy}")
    return content


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def validated(model: type[Model], content: Any, place: object, remedy: str = "") -> Model:
    """Return the content of a file, or of a part of one, as a pydantic model.

    Raises:
        ValueError: it does not fit; the message names the place, the first entry that does not, and the remedy.
    """
    try:
        return model.model_validate(content)
    except ValidationError as problem:
        end = f"; {remedy}" if remedy else ""
        raise ValueError(f"{place}: {complaint(problem, model)}{end}") from problem


def checked(kind: Callable[..., Options], **values: Any) -> Options:
    """Return a pydantic dataclass of these values.

    Raises:
        ValueError: one of them does not fit; the message names it.
    """
    try:
        return kind(**values)
    except ValidationError as problem:
        raise ValueError(complaint(problem, kind)) from problem


def complaint(error: ValidationError, model: Any = None, section: str = "") -> str:
    """Return the first of pydantic's complaints in words: the entry, and what is wrong with it.

    Keys that are not known come first; with the model (a class of pydantic's, or a dataclass) the nearest known one is
    named.

    Example:
        >>> class Point(BaseModel, extra="forbid"):
        ...     x: float = 0.0
        ...     height: float = 0.0
        >>> for content in ({"x": "far"}, {"hight": 1.0}):
        ...     try:
        ...         Point.model_validate(content)
        ...     except ValidationError as error:
        ...         complaint(error, Point)
        "x is 'far': input should be a valid number, unable to parse string as a number"
        "there is no key 'hight'; did you mean 'height'?"
    """
    errors = error.errors()
    first = next((one for one in errors if one["type"] in UNKNOWN), errors[0])
    places = [place for place in first["loc"] if not KIND.fullmatch(str(place))] or [""]
    *path, last = places
    key = _entry((section, *places))
    if first["type"] in UNKNOWN:
        where = _entry((section, *path))
        names = _fields(model, path)
        hint = f"; {near(str(last), names)}" if names else ""
        return f"{f'{where} has' if where else 'there is'} no key {last!r}{hint}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"{key} is missing"
    if first["type"] == "value_error":
        return f"{key} {message}" if message.startswith(("is ", "has ")) else f"{key}: {message}".lstrip(": ")
    shown = repr(first["input"])
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return f"{key} is {shown}: {message[:1].lower()}{message[1:]}"


def _entry(path: Iterable[object]) -> str:
    return "".join(
        f"[{place}]" if isinstance(place, int) else f".{place}" for place in path if place != ""
    ).lstrip(".")


def _fields(model: Any, path: Iterable[object]) -> list[str]:
    """The names of the fields at a place in a model; none where it holds no model."""
    for place in path:
        if not isinstance(place, int):
            field = getattr(model, "model_fields", {}).get(place)
            kinds = () if field is None else (field.annotation, *get_args(field.annotation))
            model = next(
                (kind for kind in kinds if hasattr(kind, "model_fields") or is_dataclass(kind)), None
            )
    names: Any = getattr(model, "model_fields", getattr(model, "__dataclass_fields__", ()))
    return list(names)


def near(name: str, known: Iterable[str]) -> str:
    """Return a hint for a name that is not known: the nearest one, or all of them.

    Example:
        >>> near("AUROK", ["ECE", "AUROC"]), near("x", ["ECE", "AUROC"])
        ("did you mean 'AUROC'?", 'there are: ECE, AUROC')
    """
    names = list(known)
    return hint(name, names).rstrip() or f"there are: {', '.join(names)}"


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


class Strict(BaseModel):
    """Values of JSON, of exactly these names and types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def finite(values: Any) -> Any:
    """Return plain values for JSON, which has no word for infinity and NaN: they become None.

    Example:
        >>> finite({"kappa": float("inf"), "ids": ("a",)})
        {'kappa': None, 'ids': ['a']}
    """
    if isinstance(values, Mapping):
        return {str(key): finite(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [finite(value) for value in values]
    if isinstance(values, Path):
        return str(values)
    return None if isinstance(values, float) and not math.isfinite(values) else values


def _array(value: Any) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("is not a list of numbers, or its rows differ in length") from None


def _vector(value: Any) -> npt.NDArray[np.float64]:
    array = _array(value)
    if array.ndim != 1:
        raise ValueError(f"has {array.ndim} dimensions, not 1")
    return array


def _labels(value: Any) -> npt.NDArray[np.int64]:
    numbers = _vector(value)
    if not np.isfinite(numbers).all():
        raise ValueError("has an entry that is no number")
    return numbers.astype(np.int64)


def _listed(values: npt.NDArray[Any]) -> list[Any]:
    plain = values.astype(object)
    plain[~np.isfinite(values)] = None
    return plain.tolist()  # type: ignore[no-any-return]


Number = Annotated[
    float,
    Field(strict=True),
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(finite, when_used="json"),
]
Array = Annotated[npt.NDArray[np.float64], PlainValidator(_array), PlainSerializer(_listed)]
Vector = Annotated[npt.NDArray[np.float64], PlainValidator(_vector), PlainSerializer(_listed)]
Labels = Annotated[npt.NDArray[np.int64], PlainValidator(_labels), PlainSerializer(_listed)]
# What is left out or null in a file has no entries.
OrEmpty = BeforeValidator(lambda value: value or {})
Numbers = Annotated[dict[str, Number], OrEmpty]
