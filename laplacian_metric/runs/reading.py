"""Cells as YAML files, and what they take over from each other.

``inherit: NAME`` takes over every setting of another cell; ``base: NAME`` starts from its trained networks, and takes
over its data, network, loss, training and evaluation. What the file has itself comes on top, key by key; a method of
another name starts from its own defaults.
"""

from __future__ import annotations

import copy
import difflib
import fnmatch
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from laplacian_metric import methods
from laplacian_metric.core.method import Start
from laplacian_metric.runs.config import Cell, differences
from laplacian_metric.runs.sections import (
    DataSection,
    EvaluationSection,
    LossSection,
    NetworkSection,
    OutSet,
    Splits,
)
from laplacian_metric.training import TrainingOptions

SECTIONS: dict[str, type[BaseModel]] = {
    "data": DataSection,
    "network": NetworkSection,
    "loss": LossSection,
    "evaluation": EvaluationSection,
}
OF_BASE = ("data", "network", "loss", "training", "evaluation", "seeds", "members")
OWN = ("name", "title", "notes", "inherit")
STARTS_FROM_BASE = (Start.NETWORK, Start.FROZEN, Start.NETWORKS)


class ConfigError(ValueError):
    """A cell is not what it should be; the message names the file, the key and the remedy."""


class Cells:
    """The cells below a folder, read when they are asked for.

    Args:
        folder: of the YAML files.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError(f"there is no folder of cells {folder}")
        self.folder = folder
        self._raw: dict[str, dict[str, Any]] = {}
        self._cells: dict[str, Cell] = {}

    def names(self) -> list[str]:
        """All there are, in order."""
        found = [path.relative_to(self.folder).with_suffix("") for path in self.folder.rglob("*.yaml")]
        return sorted(path.as_posix() for path in found)

    def matching(self, patterns: Iterable[str]) -> list[str]:
        """The names that the patterns stand for, such as "fashion_mnist/*", each once, in the patterns' order."""
        known, found = self.names(), []
        for pattern in patterns:
            some = [name for name in known if fnmatch.fnmatchcase(name, pattern)]
            if not some:
                raise ConfigError(f"no cell is called {pattern!r} in {self.folder}{_near(pattern, known)}")
            found += some
        return list(dict.fromkeys(found))

    def __getitem__(self, name: str) -> Cell:
        if name not in self._cells:
            self._cells[name] = self._checked(name, self._resolved(name, ()))
        return self._cells[name]

    def base_of(self, cell: Cell) -> Cell | None:
        """The cell whose networks it starts from."""
        return None if cell.base is None else self[cell.base]

    def config(self, name: str) -> dict[str, Any]:
        """Everything that a cell's results depend on, as plain values."""
        return self[name].resolved(self.base_of(self[name]))

    # --- from files ---

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    def _read(self, name: str, asked_by: str | None = None) -> dict[str, Any]:
        path = self._file(name)
        if not path.is_file():
            by = "" if asked_by is None else f"{self._file(asked_by)}: "
            raise ConfigError(f"{by}there is no cell {name!r} in {self.folder}{_near(name, self.names())}")
        try:
            found = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
        if not isinstance(found, dict):
            raise ConfigError(f"{path} holds no keys: a cell has at least a name and a method")
        _check_keys(found, str(path))
        if found.get("name") != name:
            raise ConfigError(f"{path}: name is {found.get('name')!r}, but the file's place says {name!r}")
        return found

    def _resolved(self, name: str, below: tuple[str, ...]) -> dict[str, Any]:
        """What a file has, on top of what it takes over."""
        if name in below:
            raise ConfigError(f"{self._file(name)} takes over from itself: {' -> '.join((*below, name))}")
        if name in self._raw:
            return copy.deepcopy(self._raw[name])
        own = self._read(name, below[-1] if below else None)
        whole: dict[str, Any] = {}
        base, parent = own.get("base"), own.get("inherit")
        if isinstance(base, str):
            taken = self._resolved(base, (*below, name))
            whole = {key: taken[key] for key in OF_BASE if key in taken}
        if isinstance(parent, str):
            taken = self._resolved(parent, (*below, name))
            whole = {key: value for key, value in taken.items() if key not in OWN}
        whole = _merged(whole, own)
        self._raw[name] = whole
        return copy.deepcopy(whole)

    def _checked(self, name: str, whole: dict[str, Any]) -> Cell:
        path = str(self._file(name))
        _check_method(whole, path)
        try:
            cell = Cell.model_validate_json(json.dumps(whole), strict=True)
        except ValidationError as error:
            raise ConfigError(_said(path, error)) from error
        except TypeError as error:
            raise ConfigError(f"{path}: {error}: take plain numbers, words and lists") from error
        try:
            cell.method.make()
        except ValidationError as error:
            raise ConfigError(_said(path, error, "method")) from error
        except (ValueError, ImportError) as error:
            raise ConfigError(f"{path}: method: {error}") from error
        self._check_base(cell, path)
        return cell

    def _check_base(self, cell: Cell, path: str) -> None:
        """A method that starts from networks needs those of a base, which has the same images and architecture."""
        if cell.base is None:
            if cell.start in STARTS_FROM_BASE:
                raise ConfigError(
                    f"{path}: {cell.method.name} starts from trained networks: name the cell that trains them as base"
                )
            return
        if cell.start is Start.SCRATCH:
            raise ConfigError(
                f"{path}: {cell.method.name} trains its own network and takes no base: use inherit for the settings "
                f"of {cell.base}"
            )
        base = self[cell.base]
        if base.start is not Start.SCRATCH:
            raise ConfigError(
                f"{path}: base {base.name} has no networks of its own, its method is {base.method.name}: name the cell "
                "that trained them"
            )
        mine, theirs = cell.trained_with(), base.trained_with()
        free = ("augment", "workers")
        said = [
            line
            for key in ("data", "network")
            for line in differences(
                {k: v for k, v in theirs[key].items() if k not in free},
                {k: v for k, v in mine[key].items() if k not in free},
                f"{key}.",
            )
        ]
        if said:
            raise ConfigError(
                f"{path}: its networks are those of {base.name}, so the settings must be too: {said[0]}"
            )


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number and no key may occur twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", node.value[number][0].start_mark
                )
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """What the second has, on top of the first, key by key."""
    whole = dict(below)
    for key, value in above.items():
        before: Any = whole.get(key)
        both = isinstance(before, dict) and isinstance(value, dict)
        if both and key == "method":
            both = value.get("name", before["name"]) == before["name"]
        whole[key] = _merged(before, value) if both else value
    return whole


def _check_keys(found: Mapping[str, Any], path: str) -> None:
    """Refuse keys that nothing knows, and those that are no section."""
    _known(found, Cell.model_fields, "", path)
    for key, section in SECTIONS.items():
        if key in found:
            _known(_mapping(found[key], key, path), section.model_fields, key, path)
    if "training" in found:
        training = _mapping(found["training"], "training", path)
        _known(training, [field.name for field in fields(TrainingOptions)], "training", path)
        options = training.get("miner_options")
        if isinstance(options, dict):
            training["miner_options"] = [[name, value] for name, value in options.items()]
    if "method" in found:
        if isinstance(found["method"], str):
            found["method"] = {"name": found["method"]}  # type: ignore[index]
        _mapping(found["method"], "method", path)
    data = found.get("data") or {}
    if "splits" in data:
        _known(_mapping(data["splits"], "data.splits", path), Splits.model_fields, "data.splits", path)
    for out in data.get("out") or () if isinstance(data.get("out"), list) else ():
        if isinstance(out, dict):
            _known(out, OutSet.model_fields, "data.out", path)


def _check_method(whole: Mapping[str, Any], path: str) -> None:
    """Refuse a method that is not there and options that it has not."""
    method = whole.get("method")
    if not isinstance(method, dict) or "name" not in method:
        raise ConfigError(
            f"{path}: there is no method: write method: {{name: ...}}, one of {', '.join(methods.names())}"
        )
    try:
        kind = methods.find(method["name"])
    except (ValueError, ImportError) as error:
        raise ConfigError(f"{path}: method.name: {error}") from error
    options = ["name", *(field.name for field in fields(kind))]  # type: ignore[arg-type]
    _known(method, options, f"method ({method['name']})", path)


def _mapping(value: Any, key: str, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {key} is {value!r}: keys with values are needed below it")
    return value


def _known(found: Mapping[str, Any], known: Iterable[str], where: str, path: str) -> None:
    names = list(known)
    for key in found:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
            raise ConfigError(f"{path}: {where or 'a cell'} has no key {key!r}; {hint}")


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _said(path: str, error: ValidationError, section: str = "") -> str:
    """The first of pydantic's complaints, by the key's name."""
    first = error.errors()[0]
    places = [section, *map(str, first["loc"])]
    key = ".".join(place for place in places if place)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"{path}: {key} is missing"
    if first["type"] == "value_error":
        return f"{path}: {key}: {message}" if key else f"{path}: {message}"
    return f"{path}: {key} is {first['input']!r}: {message[:1].lower()}{message[1:]}"
