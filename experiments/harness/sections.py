"""The parts of a cell: data, network, loss, method and evaluation, each with its options and their defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    field_validator,
    model_validator,
)

import experiments.networks  # noqa: F401 (makes them known by name)
from experiments.losses import LOSSES
from experiments.sets.lookup import MissingDataError, data_folders
from hessians.pair_loss import PairLoss
from laplacian_metric import methods
from laplacian_metric.core.method import Method
from laplacian_metric.core.splits import Role, parse_split
from laplacian_metric.data import registry
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.zoo import check_name


def _known_data_set(name: str) -> str:
    registry.info(name)
    return name


DataSetName = Annotated[str, AfterValidator(_known_data_set)]


class Section(BaseModel):
    """A part of a cell; it knows its keys, and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class VerificationSection(Section):
    """How pairs of images of the test set, and of every one of `data.tests`, are verified, as in the HIB paper.

    Attributes:
        pairs: whose average precision is measured; half of them match.
        random_pairs: any two images, whose average precision is compared with their uncertainty.
        neighbours: that vote for an image's class.
        bins: of equal size, from the lowest to the highest uncertainty.
        samples: K of each image, where a method has distributions.
        repeats: how often what is drawn is drawn anew; what is measured of pairs, and what uncertainty tells, are
            means over that. Neighbours are looked for with the first draws.
        seed: of the pairs and the draws.
        galleries: for some of `data.tests` another test set of the same images in the same order, among which
            neighbours are looked for too; an image's twin there is passed over.
        drawn: so many images of each set, taken at random, are kept for pictures, where spaces have two or three
            dimensions.
    """

    pairs: int = Field(default=10_000, ge=2, multiple_of=2)
    random_pairs: int = Field(default=200_000, ge=2)
    neighbours: int = Field(default=5, ge=1)
    bins: int = Field(default=20, ge=2)
    samples: int = Field(default=8, ge=1)
    repeats: int = Field(default=10, ge=1)
    seed: int = Field(default=0, ge=0)
    galleries: dict[str, str] = Field(default_factory=dict)
    drawn: int = Field(default=200, ge=0)


class OutSet(Section):
    """A data set whose images are out of the distribution.

    Attributes:
        name: of the data set.
        label: what results call it, its name by default.
        split: of it.
        options: those that the data set has.
        limit: so many images of it, at even steps; None takes all.
    """

    name: DataSetName
    label: str = ""
    split: str = "test"
    options: dict[str, Any] = Field(default_factory=dict)
    limit: int | None = Field(default=None, ge=2)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, content: Any) -> Any:
        if isinstance(content, str):
            content = {"name": content}
        return (
            {"label": content["name"], **content}
            if isinstance(content, dict) and "name" in content
            else content
        )


class Splits(Section):
    """Which splits of the data set are what."""

    train: str = "train"
    validation: str = "validation"
    test: str = "test"

    @model_validator(mode="after")
    def _selectable(self) -> Splits:
        for key in ("train", "validation"):
            if parse_split(getattr(self, key)).role is Role.EVALUATION:
                raise ValueError(
                    f"{key} is {getattr(self, key)!r}: test images are never trained on, and choose nothing; "
                    'take "train" and "validation"'
                )
        return self


class DataSection(Section):
    """Which images.

    Attributes:
        train: the data set.
        splits: which of its splits are trained on, chosen by and tested on.
        options: those that the data set has, such as held_out.
        split_options: more of them for "train", "validation" or "test" alone, such as the cities.
        tests: more test sets by name, each with the options that it has beside those of the test split.
        out: data sets of OOD images; they are given the size and the channels of the data set's images.
        image_size, channels, preprocessing: as `data.load` takes them.
        augment: "crop-flip" trains on random windows of images, every other one mirrored; "cover-digits", for
            N-digit MNIST with "clean" training images, covers a fifth of the digits anew in every epoch.
        corrupted_share: so large a share of the training images, drawn once, is blurred, partly covered or noisy; see
            `corrupt_some`.
        in_memory: whether images are made ready for the network once and kept; False reads files as they are needed.
        workers: processes that read files.
        limit: so many images of every split, at even steps, for a trial; None takes all.
    """

    TESTED: ClassVar[tuple[str, ...]] = ("out", "in_memory", "tests")  # no network depends on these

    train: DataSetName
    splits: Splits = Field(default_factory=Splits)
    options: dict[str, Any] = Field(default_factory=dict)
    split_options: dict[Literal["train", "validation", "test"], dict[str, Any]] = Field(default_factory=dict)
    tests: dict[str, dict[str, Any]] = Field(default_factory=dict)
    out: tuple[OutSet, ...] = ()
    image_size: int | Literal["default"] | None = "default"
    channels: Literal[1, 3] | None = None
    preprocessing: Literal["unit", "imagenet"] | None = None
    augment: Literal["crop-flip", "cover-digits"] | None = None
    corrupted_share: float = Field(default=0.0, ge=0, le=1)
    in_memory: bool = True
    workers: int = Field(default=0, ge=0)
    limit: int | None = Field(default=None, ge=2)

    @model_validator(mode="after")
    def _fits_together(self) -> DataSection:
        if self.corrupted_share and self.augment is not None:
            raise ValueError(
                f"corrupted_share is {self.corrupted_share:g} and augment {self.augment!r}: images are corrupted once, "
                "before training, and augmented anew in every epoch; leave out one of them"
            )
        labels = [out.label for out in self.out]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"out names {twice[0]!r} twice: give one of them another label")
        if "test" in self.tests:
            raise ValueError("tests has a set 'test', which is the test split itself: give it another name")
        return self


class NetworkSection(Section):
    """Which network.

    Attributes:
        name: as `Encoder.from_name` takes it.
        dim: Z; None takes what the network is known with.
        pretrained: with published weights, which are downloaded.
        weights: a file of weights for the backbone, below the data folder.
        options: of timm's and torchvision's models.
        frozen: whether the backbone stays as it is: its features are computed once, and only the head is trained, on
            them. Without weights the backbone has the same random ones for every seed.
        head: what the head of a frozen backbone begins with: "random" weights, "identity", which keeps the features'
            directions, "principal", which centres training features and keeps their largest principal components, or
            "whitening", which gives these components unit variance too.
    """

    name: str
    dim: int | None = Field(default=None, ge=2)
    pretrained: bool = False
    weights: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    frozen: bool = False
    head: Literal["random", "identity", "principal", "whitening"] = "random"

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        check_name(name)
        return name

    @field_validator("weights")
    @classmethod
    def _below_data(cls, weights: str | None) -> str | None:
        if weights is not None and (Path(weights).is_absolute() or ".." in Path(weights).parts):
            raise ValueError(f"weights is {weights!r}: give the file's place below the data folder")
        return weights

    @model_validator(mode="after")
    def _one_source(self) -> NetworkSection:
        if self.pretrained and self.weights is not None:
            raise ValueError("pretrained is true and weights names a file: take one of them")
        if self.head != "random" and not self.frozen:
            raise ValueError(
                f"head is {self.head!r}, which is made from the features of a frozen backbone: set frozen to true, or "
                "leave head out"
            )
        return self

    def make(self, seed: int, data_dir: Path | None = None) -> Encoder:
        """The encoder with its initial weights."""
        if self.weights is None:
            return Encoder.from_name(
                self.name, dim=self.dim, pretrained=self.pretrained, seed=seed, **self.options
            )
        places = [folder / self.weights for folder in data_folders(data_dir)]
        weights = next((place for place in places if place.is_file()), None)
        if weights is None:
            raise MissingDataError(
                f"network.weights: there is no file {' nor '.join(map(str, places))}: put the weights of {self.name} "
                "there"
            )
        return Encoder.from_checkpoint(
            weights, self.name, part="backbone", dim=self.dim, seed=seed, **self.options
        )


class LossSection(Section):
    """The loss of deterministic embeddings; see `ContrastiveLoss`, and `experiments.losses` for others.

    Attributes:
        kind: the name of a loss; those but "contrastive" take what of the following they have.
        options: further ones of a loss that was registered.
        published: whether it is the published code's, with all of its errors, or with those that are switched by name.
    """

    kind: str = "contrastive"
    options: dict[str, Any] = Field(default_factory=dict)
    margin: float = 0.7
    distance: Literal["arccos", "euclidean"] = "arccos"
    negatives: Literal["active", "all"] = "active"
    negative_weight: float = 0.5
    normalize: bool = True
    power: Literal[1, 2] = 2
    published: bool | dict[str, bool] = False

    @model_validator(mode="after")
    def _valid(self) -> LossSection:
        self.make()
        return self

    def make(self) -> PairLoss:
        """The loss itself."""
        own: dict[str, Any] = self.model_dump(exclude={"kind", "options", "published"})
        if self.kind != "contrastive":
            wanted = self.model_fields_set | ({"margin"} & LOSSES.find(self.kind).__annotations__.keys())
            own = {name: value for name, value in own.items() if name in wanted}
        switches = self.published if isinstance(self.published, dict) else {}
        kind = self.kind if self.published is False else "published"
        return LOSSES.make(kind, **{**own, **switches, **self.options})


class EvaluationSection(Section):
    """What is measured, and how.

    Attributes:
        ks: of recall@k and mAP@k.
        samples: joint samples for the calibration error; 0 leaves it out.
        seed: of these samples.
        corrupted: whether corrupted validation images are compared with clean ones.
        trivial: whether scores that need no method are measured; None does so where the method has no uncertainty.
        crop_test: whether test images are compared with windows of them.
        label_entropy: whether uncertainty is compared with the entropy of people's labels (CIFAR-10H).
        resamples: of the bootstrap intervals; 0 leaves these out.
        batch_size: how many images are embedded at a time.
        verification: how pairs of test images are verified; None leaves it out.
    """

    ks: tuple[int, ...] = (1, 5, 10)
    samples: int = Field(default=100, ge=0)
    seed: int = Field(default=0, ge=0)
    corrupted: bool = True
    trivial: bool | None = None
    crop_test: bool = False
    label_entropy: bool = False
    resamples: int = Field(default=0, ge=0)
    batch_size: int = Field(default=500, ge=1)
    verification: VerificationSection | None = None

    @field_validator("ks")
    @classmethod
    def _positive(cls, ks: tuple[int, ...]) -> tuple[int, ...]:
        if not ks or min(ks) < 1:
            raise ValueError(f"ks is {list(ks)}: give at least one number from 1 on")
        return ks


class MethodSection(BaseModel):
    """The method by name, and its own options beside that."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def kind(self) -> type[Method]:
        """The method's class."""
        return methods.find(self.name)

    def make(self) -> Method:
        """The method with its options, whose types are checked."""
        options = self.model_extra or {}
        method: Method = TypeAdapter(self.kind).validate_json(json.dumps(options), strict=True)
        return method
