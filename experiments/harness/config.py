"""What a cell is: the settings of one run for each seed, how it is read from YAML, and how two of them are compared.

A cell is one entry of a published table: one method on one data set. ``inherit: NAME`` takes over every setting of
another cell; ``base: NAME`` starts from its trained networks, and takes over its data, network, loss, training and
evaluation. What the file has itself comes on top, key by key; a method of another name starts from its own defaults.
What a cell comes to with all defaults is kept beside its results.
"""

from __future__ import annotations

import copy
import fnmatch
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from experiments.harness.sections import (
    DataSection,
    EvaluationSection,
    LossSection,
    MethodSection,
    NetworkSection,
    Section,
)
from laplacian_metric import methods
from laplacian_metric.core.checked import complaint, near, read_yaml
from laplacian_metric.core.method import Start
from laplacian_metric.training import TrainingOptions
from laplacian_metric.training.checks import plain

# What says nothing about the numbers, and may be changed at any time.
FREE = ("title", "notes", "seeds", "inherit", "data.in_memory")


class Cell(Section):
    """One entry of a table.

    Attributes:
        name: its file's path below the folder of cells, without the suffix.
        title: what tables call it.
        notes: where its settings come from.
        base: the cell whose trained networks it starts from.
        inherit: the cell whose settings it takes over.
        data, network, loss, training, method, evaluation: see the sections.
        seeds: it is run with each.
        members: how many networks of the base make one of its own, where the method takes several.
    """

    name: str
    title: str = ""
    notes: str = ""
    base: str | None = None
    inherit: str | None = None
    data: DataSection
    network: NetworkSection
    loss: LossSection = Field(default_factory=LossSection)
    training: TrainingOptions = Field(default_factory=TrainingOptions)
    method: MethodSection
    seeds: tuple[int, ...] = (0, 1, 2)
    members: int = Field(default=5, ge=2)
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection)

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise ValueError(f"seeds is {list(seeds)}: give different numbers from 0 on")
        return seeds

    @model_validator(mode="after")
    def _fits_together(self) -> Cell:
        if self.network.frozen and self.data.augment is not None:
            raise ValueError(
                f"data.augment is {self.data.augment!r}, but network.frozen computes the features of every image once, "
                "so that there is nothing to augment: leave out one of them"
            )
        verification, tests = self.evaluation.verification, ("test", *self.data.tests)
        for name in () if verification is None else sum(verification.galleries.items(), ()):
            if name not in tests:
                raise ValueError(
                    f"evaluation.verification.galleries names {name!r}, which is no test set; there are: "
                    f"{', '.join(tests)}"
                )
        return self

    @property
    def start(self) -> Start:
        """What the method starts from."""
        return self.method.kind.start

    @property
    def needs_features(self) -> bool:
        """Whether it goes by features that are computed once."""
        return self.network.frozen or (self.start is Start.FROZEN and self.base is not None)

    def features_at(self, seed: int) -> tuple[str, int]:
        """The name and the seed under which features are kept that it may go by.

        They are those of its base's network, or of its own. A frozen backbone's are the same for all cells and seeds
        that have it and the same images, whatever their heads.
        """
        if not self.network.frozen:
            return self.base or self.name, seed
        network = self.network.model_dump(mode="json", exclude={"head", "dim"})
        data = self.data.model_dump(mode="json", exclude={"out", "in_memory", "workers", "tests"})
        text = json.dumps([network, data], sort_keys=True)
        return f"frozen/{hashlib.sha256(text.encode()).hexdigest()[:12]}", 0

    def base_seeds(self, seed: int) -> list[int]:
        """The seeds of the base's networks that are needed for one of its own.

        The members of several networks do not overlap, and the first have the seeds of the base's own.
        """
        if self.base is None:
            return []
        if self.start is Start.NETWORKS:
            return list(range(self.members * seed, self.members * (seed + 1)))
        return [seed]

    def resolved(self, base: Cell | None = None) -> dict[str, Any]:
        """Everything with its defaults, as plain values."""
        settings: dict[str, Any] = self.model_dump(mode="json", exclude={"method", "training"})
        settings["training"] = plain(asdict(self.training))
        settings["method"] = {"name": self.method.name, **plain(asdict(self.method.make()))}  # type: ignore[call-overload]
        if base is not None:
            settings["base_config"] = base.trained_with()
        return settings

    def trained_with(self, base: Cell | None = None) -> dict[str, Any]:
        """What the weights depend on, besides the seed."""
        whole = self.resolved(base)
        kept: dict[str, Any] = {
            key: whole[key]
            for key in ("data", "network", "loss", "training", "method", "base", "base_config")
            if key in whole
        }
        kept["data"] = {key: kept["data"][key] for key in kept["data"] if key not in DataSection.TESTED}
        kept["data"]["splits"] = {key: kept["data"]["splits"][key] for key in ("train", "validation")}
        if self.start is Start.NETWORKS:
            kept["members"] = self.members
        return kept


def differences(recorded: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The keys in which two configurations differ, with their values; what is free to change is passed over.

    Example:
        >>> differences({"loss": {"margin": 0.5}}, {"loss": {"margin": 0.7}, "title": "new"})
        ['loss.margin was 0.5 and is now 0.7']
    """
    lines: list[str] = []
    for key in dict.fromkeys([*wanted, *recorded]):
        if prefix + key in FREE:
            continue
        before, after = recorded.get(key), wanted.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key} was {before!r} and is now {after!r}")
    return lines


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
        paths = [path.relative_to(self.folder).with_suffix("") for path in self.folder.rglob("*.yaml")]
        return sorted(path.as_posix() for path in paths)

    def matching(self, patterns: Iterable[str]) -> list[str]:
        """The names that the patterns stand for, such as "fashion_mnist/*", each once, in the patterns' order."""
        names, matches = self.names(), []
        for pattern in patterns:
            some = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
            if not some:
                raise ConfigError(f"no cell is called {pattern!r} in {self.folder}; {near(pattern, names)}")
            matches += some
        return list(dict.fromkeys(matches))

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

    def _read(self, name: str, asked_by: str | None = None) -> dict[str, Any]:
        path = self.folder / f"{name}.yaml"
        if not path.is_file():
            by = "" if asked_by is None else f"{self.folder / asked_by}.yaml: "
            raise ConfigError(f"{by}there is no cell {name!r} in {self.folder}; {near(name, self.names())}")
        try:
            content = read_yaml(path)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if content.get("name") != name:
            raise ConfigError(f"{path}: name is {content.get('name')!r}, but the file's place says {name!r}")
        # A method by its name alone, and a miner's options by name, as the models have them.
        if isinstance(content.get("method"), str):
            content["method"] = {"name": content["method"]}
        training = content.get("training")
        if isinstance(training, dict) and isinstance(training.get("miner_options"), dict):
            training["miner_options"] = list(map(list, training["miner_options"].items()))
        return content

    def _resolved(self, name: str, below: tuple[str, ...]) -> dict[str, Any]:
        """What a file has, on top of what it takes over."""
        if name in below:
            raise ConfigError(
                f"{self.folder / name}.yaml takes over from itself: {' -> '.join((*below, name))}"
            )
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
        whole = merged(whole, own)
        self._raw[name] = whole
        return copy.deepcopy(whole)

    def _checked(self, name: str, whole: dict[str, Any]) -> Cell:
        path = str(self.folder / f"{name}.yaml")
        _check_method(whole, path)
        try:
            cell = Cell.model_validate_json(json.dumps(whole), strict=True)
        except ValidationError as error:
            for parent in (whole.get("base"), whole.get("inherit")):
                if isinstance(parent, str):
                    self[parent]  # where the mistake is in its file, its file is named
            raise ConfigError(f"{path}: {complaint(error, Cell)}") from error
        except TypeError as error:
            raise ConfigError(f"{path}: {error}: take plain numbers, words and lists") from error
        try:
            cell.method.make()
        except ValidationError as error:
            raise ConfigError(f"{path}: {complaint(error, section='method')}") from error
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
        changes = [
            line
            for key in ("data", "network")
            for line in differences(
                {k: v for k, v in theirs[key].items() if k not in free},
                {k: v for k, v in mine[key].items() if k not in free},
                f"{key}.",
            )
        ]
        if changes:
            raise ConfigError(
                f"{path}: its networks are those of {base.name}, so the settings must be too: {changes[0]}"
            )


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of both, key by key; the second wins, and a method of another name starts from its own.

    Example:
        >>> merged({"training": {"epochs": 3, "batch_size": 9}}, {"training": {"epochs": 5}})
        {'training': {'epochs': 5, 'batch_size': 9}}
    """
    whole = dict(below)
    for key, value in above.items():
        before: Any = whole.get(key)
        both = isinstance(before, dict) and isinstance(value, dict)
        if both and key == "method":
            both = value.get("name", before["name"]) == before["name"]
        whole[key] = merged(before, value) if both else value
    return whole


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
    options = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in method:
        if key not in ("name", *options):
            raise ConfigError(
                f"{path}: method ({method['name']}) has no key {key!r}; {near(str(key), options)}"
            )
