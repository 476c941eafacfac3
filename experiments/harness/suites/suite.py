"""What a suite is: tracks with their sets of images, and entries with the settings that are chosen among."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from importlib.resources import as_file, files
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from experiments.corruptions import KINDS
from experiments.harness.config import merged
from experiments.harness.sections import LossSection, MethodSection, NetworkSection, Section
from laplacian_metric import methods
from laplacian_metric.core.checked import complaint, near, read_yaml
from laplacian_metric.core.method import Start
from laplacian_metric.core.splits import Role, parse_split
from laplacian_metric.data import registry
from laplacian_metric.training import TrainingOptions

FOLDER = "experiments.harness.suites"
SUFFIX = ".yaml"


class SetOf(Section):
    """Some images of a data set.

    Attributes:
        data: the name of the data set.
        title: what tables call it.
        split: of it.
        options: those that the data set has.
        classes: their labels; None takes all.
        per_class: so many images of each class at most, at even steps; None takes all.
        held_out: True takes every tenth image of each class and counts as test data whatever the split, False takes the
            others; None takes all.
    """

    data: str
    title: str = ""
    split: str = "test"
    options: dict[str, Any] = Field(default_factory=dict)
    classes: tuple[int, ...] | None = None
    per_class: int | None = Field(default=None, ge=2)
    held_out: bool | None = None

    @field_validator("data")
    @classmethod
    def _known(cls, name: str) -> str:
        registry.info(name)
        return name

    @property
    def role(self) -> Role:
        """What the images may be used for."""
        return Role.EVALUATION if self.held_out else parse_split(self.split).role


class Track(Section):
    """Networks of one kind, what they are trained on, and the unseen classes that they are judged by.

    Attributes:
        title: what pages call it.
        image_size, channels: of the images as the network takes them.
        network: see `NetworkSection`; a frozen one's features are computed once.
        package: an installed package that has the weights of a frozen network, where the data folder has none.
        loss, training: of every entry, unless it has its own.
        train: what is trained on.
        validation: other classes, by which choice V1 is made and what needs a calibration is calibrated.
        choice: further sets by name, by which choice V2 is made beside those of the validation.
        unseen: sets of unseen classes by name; the first is the main one.
        seen: test images of the training classes, or None.
        people: images with labels by many people, or None.
        changed: so many images of each class of the main set are cropped and corrupted.
        corruptions: of these images, by kind.
        strengths: of the corruptions.
    """

    title: str
    image_size: int
    channels: Literal[1, 3]
    network: NetworkSection
    package: str = ""
    loss: LossSection = LossSection()
    training: dict[str, Any] = Field(default_factory=dict)
    train: SetOf
    validation: SetOf
    choice: dict[str, SetOf] = Field(default_factory=dict)
    unseen: dict[str, SetOf]
    seen: SetOf | None = None
    people: SetOf | None = None
    changed: int = Field(default=10, ge=2)
    corruptions: tuple[str, ...] = ("blur", "occlusion", "noise")
    strengths: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)

    @model_validator(mode="after")
    def _chosen_without_test_images(self) -> Track:
        for name, images in {"train": self.train, "validation": self.validation, **self.choice}.items():
            if images.role is Role.EVALUATION:
                raise ValueError(
                    f"{name} is the split {images.split!r} of {images.data}: test images choose nothing, take others"
                )
        for name, images in self.unseen.items():
            if images.role is not Role.EVALUATION:
                raise ValueError(
                    f"unseen.{name} is the split {images.split!r} of {images.data}: take test images"
                )
        unknown = [kind for kind in self.corruptions if kind not in KINDS]
        if unknown:
            raise ValueError(f"corruptions has {unknown[0]!r}; {near(unknown[0], KINDS)}")
        return self

    @property
    def main(self) -> str:
        """The name of the main set of unseen classes."""
        return next(iter(self.unseen))


class Entry(Section):
    """A method with the settings that are chosen among.

    Attributes:
        title: what tables call it.
        tracks: on which it runs.
        method: its name and the options that all settings share.
        base: the entry whose networks it starts from.
        members: how many networks of the base, where the method takes several.
        score: which of its scores is its uncertainty.
        training, network: options that all settings share.
        settings: each may have "method", "training" and "network".
        slow: whether one run takes so long that one seed is enough.
    """

    title: str
    tracks: tuple[str, ...]
    method: MethodSection
    base: str | None = None
    members: int = Field(default=5, ge=2)
    score: str = "own"
    training: dict[str, Any] = Field(default_factory=dict)
    network: dict[str, Any] = Field(default_factory=dict)
    settings: tuple[dict[str, dict[str, Any]], ...] = ({},)
    slow: bool = False

    @field_validator("settings")
    @classmethod
    def _sections(
        cls, settings: tuple[dict[str, dict[str, Any]], ...]
    ) -> tuple[dict[str, dict[str, Any]], ...]:
        for setting in settings:
            for key in setting:
                if key not in ("method", "training", "network"):
                    raise ValueError(f"has {key!r}; {near(key, ('method', 'training', 'network'))}")
        if not settings:
            raise ValueError("is empty: give at least one, which may be {}")
        return settings

    @property
    def start(self) -> Start:
        """What the method starts from."""
        return self.method.kind.start


class Options(Section):
    """Everything that one network of an entry depends on, beside the seed and the images."""

    method: MethodSection
    network: NetworkSection
    loss: LossSection
    training: dict[str, Any]

    def training_options(self) -> TrainingOptions:
        """The options of the training, checked."""
        options: TrainingOptions = TypeAdapter(TrainingOptions).validate_json(
            json.dumps(self.training), strict=True
        )
        return options

    def plain(self) -> dict[str, Any]:
        """Everything with its defaults, as plain values."""
        options: dict[str, Any] = asdict(self.method.make())  # type: ignore[call-overload]
        content = {
            "method": {"name": self.method.name, **options},
            "network": self.network.model_dump(mode="json"),
            "loss": self.loss.model_dump(mode="json"),
            "training": asdict(self.training_options()),
        }
        values: dict[str, Any] = json.loads(json.dumps(content))
        return values


class Suite(Section):
    """Tracks, entries and seeds; ``version`` changes whenever a number could.

    Attributes:
        name: of its file.
        version: of what is measured.
        title: what pages call it.
        seeds: the first of them chooses the settings.
        resamples: of the intervals.
        least_recall: choice V1 takes settings whose recall@1 is at least this share of the reference's.
        reference: the entry that this recall@1 is of.
        tracks, entries: by name, in the order in which they run.
    """

    name: str
    version: int
    title: str
    seeds: tuple[int, ...] = (0, 1, 2)
    resamples: int = Field(default=200, ge=0)
    least_recall: float = Field(default=0.9, ge=0, le=1)
    reference: str
    tracks: dict[str, Track]
    entries: dict[str, Entry]

    @model_validator(mode="after")
    def _complete(self) -> Suite:
        for name, entry in self.entries.items():
            for track in entry.tracks:
                if track not in self.tracks:
                    raise ValueError(f"entries.{name}.tracks has {track!r}; {near(track, self.tracks)}")
            starts_from_base = entry.start is not Start.SCRATCH
            if starts_from_base != (entry.base is not None):
                need = "needs a base" if starts_from_base else "takes no base"
                raise ValueError(f"entries.{name}: {entry.method.name} {need}")
            if entry.base is not None and entry.base not in self.entries:
                raise ValueError(f"entries.{name}.base: {near(entry.base, self.entries)}")
        if self.reference not in self.entries:
            raise ValueError(f"reference is {self.reference!r}; {near(self.reference, self.entries)}")
        return self

    def entry(self, name: str) -> Entry:
        """Return an entry by its name."""
        if name not in self.entries:
            raise ValueError(f"the suite {self.name} has no entry {name!r}; {near(name, self.entries)}")
        return self.entries[name]

    def of_track(self, track: str) -> list[str]:
        """Return the names of a track's entries, in the order in which they run."""
        return [name for name, entry in self.entries.items() if track in entry.tracks]

    def options(self, track: str, entry: str, setting: int) -> Options:
        """Return everything that a network depends on.

        Example:
            >>> load("quick").options("sample", "deterministic", 0).method.name
            'deterministic'
        """
        one, place = self.entry(entry), self.tracks[track]
        chosen = one.settings[setting]
        method = {**one.method.model_dump(), **chosen.get("method", {})}
        network = merged(place.network.model_dump(), merged(one.network, chosen.get("network", {})))
        training = merged(place.training, merged(one.training, chosen.get("training", {})))
        options = {
            "method": method,
            "network": network,
            "loss": place.loss.model_dump(),
            "training": training,
        }
        try:
            return Options.model_validate_json(json.dumps(options), strict=True)
        except ValidationError as error:
            raise ValueError(
                f"{self.name}: {entry}, setting {setting}: {complaint(error, Options)}"
            ) from error


def names() -> tuple[str, ...]:
    """Return the names of the suites that are installed with the package.

    Example:
        >>> names()
        ('quick', 'url-small')
    """
    places = files(FOLDER).iterdir()
    return tuple(sorted(place.name.removesuffix(SUFFIX) for place in places if place.name.endswith(SUFFIX)))


def load(name: str) -> Suite:
    """Return a suite by its name.

    Example:
        >>> load("url-small").seeds
        (0, 1, 2)
    """
    if name not in names():
        raise ValueError(f"no suite is called {name!r}; {near(name, names())}")
    with as_file(files(FOLDER) / f"{name}{SUFFIX}") as path:
        return parse(read_yaml(path), f"the suite {name}")


def parse(content: Any, place: str) -> Suite:
    """Return a suite from plain values; methods that this version does not have are refused.

    Example:
        >>> parse({"name": "mine"}, "mine.yaml")
        Traceback (most recent call last):
        ...
        ValueError: mine.yaml: version is missing
    """
    try:
        suite = Suite.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        raise ValueError(f"{place}: {complaint(error, Suite)}") from error
    for name, entry in suite.entries.items():
        option_names = [field.name for field in fields(methods.find(entry.method.name))]  # type: ignore[arg-type]
        for number, setting in enumerate(entry.settings):
            for key in setting.get("method", {}):
                if key not in option_names:
                    raise ValueError(f"{place}: entries.{name}.settings[{number}]: {near(key, option_names)}")
    return suite
