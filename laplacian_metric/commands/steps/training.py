"""One network with any method, trained as a cell of a table is, and what of it can be kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from laplacian_metric import methods, runs
from laplacian_metric.commands.steps.sources import Source, last_part
from laplacian_metric.data import registry
from laplacian_metric.data.dataset import LabelledImages
from laplacian_metric.encoder import Encoder, save_encoder
from laplacian_metric.files import atomic_write
from laplacian_metric.laplace.embedder import LAMEmbedder
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.method import Start
from laplacian_metric.model_folder import ModelFolder, check_options, check_target, preparation_for
from laplacian_metric.report.folder import output_folder
from laplacian_metric.runs.config import Cell
from laplacian_metric.runs.features import FeatureSets
from laplacian_metric.runs.fitting import Fitted
from laplacian_metric.runs.images import TRAIN, VALIDATION, ImageSets
from laplacian_metric.runs.work import ChangedError

NAME, BASE = "model", "network"
OF_NETWORK = ("data", "network", "loss", "training", "seeds")
BUILDS_ON_OTHERS = ("base", "inherit", "members")


@dataclass(frozen=True)
class Kept:
    """What a training left.

    Attributes:
        kind: "model", a model folder; "encoder", a file of weights; "training", the folder of the training itself.
        folder: where it is.
        words: what can be done with it, in a sentence or two.
        model: of the first kind.
    """

    kind: str
    folder: Path
    words: str
    model: ModelFolder | None = None


def assigned(pairs: Iterable[str]) -> dict[str, Any]:
    """Settings of the form KEY=VALUE, with dots in the keys, as nested values.

    Example:
        >>> assigned(["training.epochs=3", "loss.margin=0.5", "method.score=confidence"])
        {'training': {'epochs': 3}, 'loss': {'margin': 0.5}, 'method': {'score': 'confidence'}}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{pair!r} is no setting: write KEY=VALUE, such as training.epochs=3")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"the value of {key} is no YAML: {text!r}") from error
        if isinstance(value, str):
            value = _number(value)
        place, last = found, key.split(".")
        for part in last[:-1]:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ValueError(f"{pair!r}: {part} has a value already")
        place[last[-1]] = value
    return found


def _number(text: str) -> str | float:
    """1e-3 is text to YAML."""
    try:
        return float(text)
    except ValueError:
        return text


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """What the second has on top of the first, key by key."""
    whole = dict(below)
    for key, value in above.items():
        before = whole.get(key)
        whole[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return whole


def settings_of_data(place: str) -> dict[str, Any]:
    """The section of a cell that names a data set or a folder of images."""
    path = Path(place).expanduser()
    if path.is_dir() and place not in registry.names():
        return {"train": "folder", "options": {"path": str(path.resolve())}}
    return {"train": place}


def write_cells(settings: Mapping[str, Any], folder: Path, seed: int) -> None:
    """The cells of one training: the method's, and where it starts from a trained network that one's.

    Raises:
        ValueError: a part is missing, or the cell builds on others.
    """
    for key in BUILDS_ON_OTHERS:
        if key in settings:
            raise ValueError(
                f"the configuration has {key!r}, it builds on other cells: run it with `lam experiment run --cells-dir`"
            )
    whole = merged(
        {"loss": {"margin": 0.7}, "training": {}, "evaluation": {"samples": 0}},
        {key: value for key, value in settings.items() if key not in ("name", "title", "notes", "seeds")},
    )
    for key, remedy in (
        ("data", "--data NAME or FOLDER"),
        ("method", "--method NAME"),
        ("network", "--encoder NAME"),
    ):
        if key not in whole:
            raise ValueError(f"{key} is missing: pass {remedy}, or a configuration that has it")
    method = whole["method"]
    whole["method"] = {"name": method} if isinstance(method, str) else method
    whole["seeds"] = [seed]
    whole["data"] = _data(whole)
    folder.mkdir(parents=True, exist_ok=True)
    start = methods.find(str(whole["method"].get("name"))).start
    if start is Start.SCRATCH:
        _write(folder, NAME, whole)
        return
    network = {key: whole[key] for key in OF_NETWORK if key in whole}
    _write(folder, BASE, {**network, "method": {"name": "deterministic"}, "evaluation": {"samples": 0}})
    _write(folder, NAME, {**whole, "base": BASE})


def _data(whole: dict[str, Any]) -> dict[str, Any]:
    """Images as the network takes them; no test images are read."""
    data, network = whole["data"], whole["network"]
    if not isinstance(data, dict) or not isinstance(network, dict):
        return data  # type: ignore[no-any-return]
    prepared = preparation_for(str(network.get("name")))
    own = {"channels": prepared.channels, "preprocessing": prepared.preprocessing}
    if prepared.image_size is not None:
        own["image_size"] = prepared.image_size
    return merged({**own, "splits": {"test": "validation"}}, data)


def _write(folder: Path, name: str, content: dict[str, Any]) -> None:
    with atomic_write(folder / f"{name}.yaml") as temporary:
        temporary.write_text(yaml.safe_dump({"name": name, **content}, sort_keys=False), encoding="utf-8")


def train(
    settings: Mapping[str, Any],
    out: Path,
    *,
    seed: int = 0,
    data_dir: Path | None = None,
    device: str = "cpu",
    force: bool = False,
    fresh: bool = False,
    progress: bool | None = None,
) -> Kept:
    """Train, or go on with a training that was interrupted, and keep what can be kept.

    Checkpoints are in a folder beside ``out``, whose name ends with ``.training``, until all is done.

    Args:
        settings: as a cell has them, see `write_cells`.
        out: the folder that is made.
        seed: of everything random.
        data_dir: the folder of the data sets.
        device: where networks compute.
        force: replace a model that is there.
        fresh: begin anew what was begun with other settings.
        progress: whether to show bars.
    """
    check_target(out, force)  # before hours of training
    work = out.with_name(out.name + ".training")
    cells_dir = work / "cells"
    if fresh and work.exists():
        shutil.rmtree(work)
    work.parent.mkdir(parents=True, exist_ok=True)
    was_there = work.exists()
    try:
        write_cells(settings, cells_dir, seed)
        cell = runs.Cells(cells_dir)[NAME]
        check_options(cell.network.options)
    except BaseException:
        if not was_there:
            shutil.rmtree(work, ignore_errors=True)
        raise
    try:
        found = runs.fitted(
            NAME, seed, cells_dir=cells_dir, work=work, data_dir=data_dir, device=device, progress=progress
        )
    except ChangedError as error:
        raise ValueError(f"{error}; give the settings back, or begin anew with --fresh") from error
    except FileNotFoundError:
        if not was_there:  # nothing was trained yet
            shutil.rmtree(work, ignore_errors=True)
        raise
    kept = _kept(found, cell, out, work, data_dir, seed, force)
    if kept.kind != "training":
        shutil.rmtree(work, ignore_errors=True)
    return kept


def _kept(
    found: Fitted, cell: Cell, out: Path, work: Path, data_dir: Path | None, seed: int, force: bool
) -> Kept:
    if isinstance(found.embedder, LAMEmbedder):
        model = _model(found, found.embedder.lam, cell, data_dir, seed)
        model.save(out, overwrite=force)
        return Kept("model", out, "a model folder, for embed, index, evaluate and report", model)
    if cell.method.name == "deterministic" and found.encoder is not None:
        encoder = _named(found.encoder, cell)
        with output_folder(out, force) as folder:
            save_encoder(encoder, folder / "encoder.safetensors")
        return Kept(
            "encoder",
            out,
            f"an encoder without a posterior: `lam fit --encoder {cell.network.name} --weights "
            f"{out / 'encoder.safetensors'}` with the same --data gives it one",
        )
    if out.exists():
        if any(out.iterdir()):
            raise FileExistsError(f"{out} is there already: the training is in {work}, name another folder")
        out.rmdir()
    work.rename(out)
    return Kept(
        "training",
        out,
        f"{cell.method.name} has no posterior over a last layer, so that a model folder cannot hold it. Its training "
        f"is kept: in Python, found = laplacian_metric.runs.fitted({NAME!r}, {seed}, "
        f"cells_dir=Path({str(out / 'cells')!r}), work=Path({str(out)!r})) has found.embedder for found.sets",
    )


def _named(encoder: Encoder, cell: Cell) -> Encoder:
    """The encoder with the name that it is made again by, where options do not stand against it."""
    if not cell.network.options:
        encoder.recipe = {"name": cell.network.name, "dim": encoder.dim}
    return encoder.eval()


def _model(found: Fitted, lam: LAM, cell: Cell, data_dir: Path | None, seed: int) -> ModelFolder:
    if isinstance(found.sets, FeatureSets):
        carrier = found.sets.encoder
        whole = Encoder(carrier.backbone, lam.encoder.head, normalize=lam.encoder.normalize)
        lam = bound_to(lam, whole.eval())
    lam.encoder.recipe = {"name": cell.network.name, "dim": lam.encoder.dim}
    images = ImageSets(cell.data, data_dir)
    train, validation = (images.loaded(name) for name in (TRAIN, VALIDATION))
    config = cell.resolved()
    training = found.training
    return ModelFolder(
        lam,
        replace(train.preparation, augment=None),
        cell.network.options,
        train.class_names,
        {
            "data": {
                "train": _title(cell, train),
                "images": len(train),
                "classes": len(train.classes),
                "validation": _title(cell, validation),
                "validation_images": len(validation),
            },
            "settings": {
                "seed": seed,
                **{key: config[key] for key in ("network", "loss", "training", "method")},
            },
            "training": None
            if training is None
            else {key: training[key] for key in ("best_epoch", "seconds")},
            "diagnostics": lam.diagnostics().to_dict(),
        },
        {"train": _digests(train), "validation": _digests(validation)},
    )


def bound_to(lam: LAM, encoder: Encoder) -> LAM:
    """The same posterior for an encoder that has the same head below a backbone, where it was fitted to features."""
    made = LAM(
        encoder,
        lam.loss,
        lam.approximation,
        lam.structure,
        rank=lam.rank,
        n_effective=lam.n_effective,
        temperature=lam.temperature,
        prior_precision=lam.prior_precision,
        weight_decay=lam.weight_decay,
    )
    if lam.encoder.head is not encoder.head or lam.fitted is None:
        raise ValueError("the encoder has another head than the one that the posterior is over")
    made.fitted = replace(lam.fitted, fingerprint=encoder.fingerprint())
    if lam.confidence is not None:
        made.set_confidence(lam.confidence)
    return made


def _title(cell: Cell, images: LabelledImages) -> str:
    path = cell.data.options.get("path")
    return f"{images.name if path is None else last_part(path)}:{images.split.value}"


def _digests(images: LabelledImages) -> Any:
    ids = tuple(map(str, range(len(images))))
    return Source(images.name, None, ids, images.labels, images.class_names, images, None).digests()
