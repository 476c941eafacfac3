"""Train one network with any method from plain settings, and keep what can be kept: what `lam train` does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import Field, TypeAdapter, ValidationError
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric import data, methods
from laplacian_metric.core.artifact import check_target
from laplacian_metric.core.checked import Strict, complaint
from laplacian_metric.core.dataset import Dataset, at_even_steps
from laplacian_metric.core.files import output_folder
from laplacian_metric.core.method import Embedder, FitData, Learner, Method, PointEmbedder, Setup, Start
from laplacian_metric.core.registry import check_options
from laplacian_metric.encoder import Encoder, save_encoder
from laplacian_metric.encoder.zoo import check_name, preparation_for
from laplacian_metric.laplace.frozen_features import features_of
from laplacian_metric.laplace.model_folder import ModelFolder, ModelManifest
from laplacian_metric.laplace.model_folder import check_options as check_network_options
from laplacian_metric.methods.laplace.embedder import LAMEmbedder
from laplacian_metric.training.checkpoint import load_best
from laplacian_metric.training.checks import plain
from laplacian_metric.training.loop import Trained, train
from laplacian_metric.training.options import TrainingOptions, pair_choice

MEMBERS = 5  # networks of an ensemble
BATCH = 500  # images that are embedded at a time
SETTINGS, LOCK = "settings.json", "lock"
LOSS = {"margin": 0.7, "negatives": "active"}  # unless the settings say otherwise


class DataSettings(Strict):
    """Which images are trained on.

    Attributes:
        train: a data set's name, or a folder of images.
        options: those that the data set has, such as held_out.
        image_size: of the square that images are cut to; None takes the network's, or else the data set's.
        skip_unreadable: whether images that do not decode are left out.
        in_memory: whether images are made ready for the network once and kept; False reads files as they are needed.
        workers: processes that read files.
        limit: so many images of each split, at even steps, for a trial; None takes all.
    """

    train: str
    options: dict[str, Any] = Field(default_factory=dict)
    image_size: int | None = Field(default=None, ge=1)
    skip_unreadable: bool = False
    in_memory: bool = True
    workers: int = Field(default=0, ge=0)
    limit: int | None = Field(default=None, ge=2)


class NetworkSettings(Strict):
    """Which network, as `Encoder.from_name` takes it."""

    name: str
    dim: int | None = Field(default=None, ge=2)
    pretrained: bool = False
    options: dict[str, Any] = Field(default_factory=dict)


class Settings(Strict):
    """Everything that a training depends on besides its seed.

    Attributes:
        data: which images.
        network: which network.
        method: the name of a method, and its options beside it.
        loss: of pairs of deterministic embeddings.
        training: see `TrainingOptions`.
    """

    data: DataSettings
    network: NetworkSettings
    method: dict[str, Any]
    loss: ContrastiveLoss
    training: TrainingOptions = Field(default_factory=TrainingOptions)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Settings:
        """Return settings out of plain values; an error names the first that does not fit."""
        content = {**content, "loss": {**LOSS, **content.get("loss", {})}}
        try:
            settings = cls.model_validate_json(json.dumps(content))
        except ValidationError as error:
            raise ValueError(complaint(error, cls)) from error
        check_name(settings.network.name)
        check_network_options(settings.network.options)
        if ":" in settings.network.name and settings.network.dim is None:
            raise ValueError(
                f"network.dim is missing: without it {settings.network.name} would embed in the logits of its "
                "classifier, which retrieve worse than its features; pass 64, say"
            )
        settings.make_method()
        return settings

    def make_method(self) -> Method:
        """Return the method with its options, whose types are checked."""
        options = dict(self.method)
        kind = methods.find(str(options.pop("name", "")))
        check_options(kind.name, options, [field.name for field in fields(kind)])  # type: ignore[arg-type]
        try:
            method: Method = TypeAdapter(kind).validate_json(json.dumps(options), strict=True)
        except ValidationError as error:
            raise ValueError(complaint(error, kind, "method")) from error
        return method

    def plain(self) -> dict[str, Any]:
        """Return everything with its defaults, as plain values."""
        method = self.make_method()
        content = {
            "data": self.data.model_dump(),
            "network": self.network.model_dump(),
            "loss": asdict(self.loss),
            "training": asdict(self.training),
            "method": {"name": method.name, **asdict(method)},  # type: ignore[call-overload]
        }
        return plain(content)

    def identity(self) -> dict[str, Any]:
        """Return what a network's weights depend on besides the training's options, by dotted names."""
        content = self.plain()
        return {
            f"{section}.{name}": value
            for section in ("data", "network", "loss", "method")
            for name, value in content[section].items()
            if name not in ("in_memory", "workers")
        }

    def images(self, split: str, data_dir: Path | None = None) -> Dataset:
        """Return the training or validation images, as the network takes them."""
        section, prepared = self.data, preparation_for(self.network.name)
        given: dict[str, Any] = {
            "split": split,
            "channels": prepared.channels,
            "preprocessing": prepared.preprocessing,
            "skip_unreadable": section.skip_unreadable,
            **section.options,
        }
        size = section.image_size or prepared.image_size
        place = Path(section.train).expanduser()
        if section.train not in data.names() and place.is_dir():
            images = data.folder(place, size or 224, data_dir=data_dir, **given)
        else:
            images = data.load(section.train, image_size=size or "default", data_dir=data_dir, **given)
        if section.limit is not None:
            images = images.select(at_even_steps(len(images), section.limit))
        return replace(images, batch_size=BATCH, workers=section.workers)


@dataclass(frozen=True)
class Fitted:
    """What a training leads to.

    Attributes:
        embedder: of the method.
        train, validation: the images, as they were loaded.
        carrier: the frozen network whose features the embedder takes; None where it takes images.
        training: of the method itself; None where it trains nothing.
    """

    embedder: Embedder
    train: Dataset
    validation: Dataset
    carrier: Encoder | None
    training: Trained | None


def fitted(
    settings: Settings,
    work: Path,
    *,
    seed: int = 0,
    data_dir: Path | None = None,
    device: str = "cpu",
    progress: bool | None = None,
) -> Fitted:
    """Train, go on with, or read the networks in a folder, and return what embeds.

    Args:
        settings: see `Settings`.
        work: the folder of the checkpoints; a training that is complete there is not repeated.
        seed: of all random choices.
        data_dir: the folder of the data sets.
        device: where networks compute.
        progress: whether to show bars; None asks the terminal.
    """
    method = settings.make_method()
    images = {name: settings.images(name, data_dir) for name in ("train", "validation")}
    for split in images.values():
        if method.needs_labels:
            split.require_classes("a training")
    ready = {name: split.in_memory() if settings.data.in_memory else split for name, split in images.items()}
    labels = images["train"].labels

    def setup(number: int) -> Setup:
        return Setup(
            loss=settings.loss,
            num_images=len(images["train"]),
            num_classes=None if labels is None else int(labels.max()) + 1,
            weight_decay=settings.training.weight_decay,
            seed=number,
            pairs=pair_choice(settings.training),
        )

    def trained(learner: Learner, inputs: Mapping[str, Dataset], name: str, number: int) -> Trained:
        learner.module.to(device)
        outcome = train(
            learner,
            inputs["train"],
            inputs["validation"],
            settings.training,
            work / name,
            seed=number,
            identity=settings.identity(),
            progress=progress,
        )
        load_best(learner, work / name)
        return outcome

    def network(number: int) -> Encoder:
        section = settings.network
        encoder = Encoder.from_name(
            section.name, dim=section.dim, pretrained=section.pretrained, seed=number, **section.options
        ).to(device)
        if method.start is not Start.SCRATCH:
            learner = methods.make("deterministic").learner([encoder], setup(number))
            trained(learner, ready, f"network{number}", number)
        return encoder

    members = MEMBERS if method.start is Start.NETWORKS else 1
    numbers = range(members * seed, members * (seed + 1))
    encoders = [network(number) for number in numbers]
    carrier = encoders[0] if method.start is Start.FROZEN and method.trains else None
    if carrier is not None:
        ready = {
            name: features_of(carrier.eval(), split, work / "features" / name, progress)
            for name, split in ready.items()
        }
        encoders = [Encoder(nn.Identity(), carrier.head, normalize=carrier.normalize)]
    learner = method.learner(encoders, setup(seed))
    outcome = trained(learner, ready, "method", seed) if method.trains else None
    kept = work / "features" if method.start is Start.FROZEN and carrier is None else None
    embedder = learner.embedder(FitData(ready["train"], ready["validation"], kept))
    return Fitted(embedder, images["train"], images["validation"], carrier, outcome)


@dataclass(frozen=True)
class Kept:
    """The output of a training.

    Attributes:
        kind: "model", a model folder; "encoder", a file of weights; "training", the folder of the training itself.
        folder: the output.
        model: of the first kind.
        validation: what was measured on validation images after the kept epoch; empty where nothing was trained.
    """

    kind: str
    folder: Path
    model: ModelFolder | None = None
    validation: Mapping[str, float] = field(default_factory=dict)


def train_single(
    settings: Settings, out: Path, *, seed: int = 0, force: bool = False, fresh: bool = False, **place: Any
) -> Kept:
    """Train, or resume an interrupted training, and write the output.

    Checkpoints are kept in a folder beside ``out``, whose name ends with ``.training``, until the end.

    Args:
        settings: see `Settings`.
        out: the folder that is made.
        seed: of all random choices.
        force: replace an existing model.
        fresh: discard a training that was begun with other settings.
        place: further arguments of `fitted`.
    """
    check_target(out, ModelManifest, overwrite=force)  # before hours of training
    work = work_of(out)
    if fresh and work.exists():
        shutil.rmtree(work)
    with _alone(work):
        result = fitted(settings, work, seed=seed, **place)
        (work / SETTINGS).write_text(json.dumps(settings.plain(), indent=1) + "\n", encoding="utf-8")
        kept = replace(_keep(result, settings, out, seed, force), validation=_validation(result.training))
    if kept.kind == "training":
        if out.exists():
            if any(out.iterdir()):
                raise FileExistsError(f"{out} exists: the training is in {work}, name another folder")
            out.rmdir()
        (work / LOCK).unlink(missing_ok=True)
        work.rename(out)
    else:
        shutil.rmtree(work, ignore_errors=True)
    return kept


def work_of(out: Path) -> Path:
    """Return the folder in which a training keeps its checkpoints until ``out`` is made."""
    return out.with_name(out.name + ".training")


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Keep other processes out of a training; remove what one leaves that ends before its first checkpoint."""
    work.mkdir(parents=True, exist_ok=True)
    lock = FileLock(work / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"another process is training in {work}: wait for it, or name another folder"
        ) from None
    try:
        yield
    except BaseException:
        if not any(work.rglob("*.safetensors")):
            shutil.rmtree(work, ignore_errors=True)
        raise
    finally:
        lock.release()


def _keep(result: Fitted, settings: Settings, out: Path, seed: int, force: bool) -> Kept:
    """Write what can be embedded with alone; other methods keep the folder of their training."""
    name = settings.network.name
    if isinstance(result.embedder, LAMEmbedder):
        model = _model(result, result.embedder, settings, seed)
        model.save(out, overwrite=force)
        return Kept("model", out, model)
    if isinstance(result.embedder, PointEmbedder) and result.carrier is None:
        encoder = result.embedder.encoder.eval()
        if not settings.network.options:
            encoder.recipe = {"name": name, "dim": encoder.dim}
        with output_folder(out, force) as folder:
            save_encoder(encoder, folder / "encoder.safetensors")
        return Kept("encoder", out)
    return Kept("training", out)


def _model(result: Fitted, embedder: LAMEmbedder, settings: Settings, seed: int) -> ModelFolder:
    lam, train, validation = embedder.lam, result.train, result.validation
    lam.encoder.recipe = {"name": settings.network.name, "dim": lam.encoder.dim}
    content, outcome = settings.plain(), result.training
    about = {
        "data": {
            "train": train.title,
            "images": len(train),
            "classes": len(train.classes),
            "validation": validation.title,
            "validation_images": len(validation),
        },
        "settings": {
            "seed": seed,
            **{key: content[key] for key in ("network", "loss", "training", "method")},
        },
        "training": None
        if outcome is None
        else {"best_epoch": outcome.best_epoch, "seconds": outcome.seconds},
        "diagnostics": lam.diagnostics().to_dict(),
    }
    seen = {"train": train.digests(), "validation": validation.digests()}
    return ModelFolder(lam, train.preparation, settings.network.options, train.class_names, about, seen)


def _validation(outcome: Trained | None) -> dict[str, float]:
    """Return mAP and its like on validation images after the kept epoch, by name."""
    if outcome is None or not outcome.history:
        return {}
    epoch = outcome.history[outcome.best_epoch - 1]
    return {name: value for name, value in epoch.items() if "@" in name}
