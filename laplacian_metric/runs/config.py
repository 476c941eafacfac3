"""What a cell is: the settings of one run for each seed, and how two of them are compared.

A cell is one entry of a published table: one method on one data set. It is written as YAML (see `reading`), and what it
comes to with all defaults is kept beside its results.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, Field, field_validator, model_validator

from laplacian_metric import methods
from laplacian_metric.core.method import Start
from laplacian_metric.runs.sections import (
    DataSection,
    EvaluationSection,
    LossSection,
    MethodSection,
    NetworkSection,
    Section,
)
from laplacian_metric.training import TrainingOptions

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
    loss: LossSection = LossSection()
    training: TrainingOptions = TrainingOptions()
    method: MethodSection
    seeds: tuple[int, ...] = (0, 1, 2)
    members: int = Field(default=5, ge=2)
    evaluation: EvaluationSection = EvaluationSection()

    @field_validator("seeds")
    @classmethod
    def _seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise ValueError(f"seeds is {list(seeds)}: give different numbers from 0 on")
        return seeds

    @model_validator(mode="after")
    def _no_augmented_features(self) -> Cell:
        if self.network.frozen and self.data.augment is not None:
            raise ValueError(
                f"data.augment is {self.data.augment!r}, but network.frozen computes the features of every image once, "
                "so that there is nothing to augment: leave out one of them"
            )
        return self

    @model_validator(mode="after")
    def _known_galleries(self) -> Cell:
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
        kept["data"] = {
            key: kept["data"][key] for key in kept["data"] if key not in ("out", "in_memory", "tests")
        }
        kept["data"]["splits"] = {key: kept["data"]["splits"][key] for key in ("train", "validation")}
        if self.start is Start.NETWORKS:
            kept["members"] = self.members
        return kept


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON keeps of the values: words of enumerations, lists of tuples."""
    converted: dict[str, Any] = json.loads(json.dumps(values))
    return converted


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


def completed(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration with the defaults of options that were added since."""
    sections: dict[str, type[BaseModel]] = {"loss": LossSection, "evaluation": EvaluationSection}
    whole = dict(recorded)
    for key, section in sections.items():
        if isinstance(recorded.get(key), Mapping):
            whole[key] = {**section().model_dump(mode="json"), **recorded[key]}
    if isinstance(recorded.get("data"), Mapping) and "splits" in recorded["data"]:
        fields = DataSection(train=recorded["data"]["train"]).model_dump(mode="json")
        kept = {key: value for key, value in fields.items() if key not in ("out", "in_memory", "splits")}
        whole["data"] = {**kept, **recorded["data"]}
    if isinstance(recorded.get("training"), Mapping):
        whole["training"] = {**plain(asdict(TrainingOptions())), **recorded["training"]}
    if isinstance(recorded.get("method"), Mapping):
        try:
            defaults = plain(asdict(methods.make(recorded["method"]["name"])))  # type: ignore[call-overload]
            former = methods.find(recorded["method"]["name"]).former
        except (ValueError, TypeError):
            defaults, former = {}, {}
        gone = {
            key
            for key, value in former.items()
            if key not in defaults and recorded["method"].get(key) == value
        }
        whole["method"] = {
            **defaults,
            **{key: value for key, value in recorded["method"].items() if key not in gone},
        }
    if isinstance(recorded.get("base_config"), Mapping):
        whole["base_config"] = completed(recorded["base_config"])
    return whole
