"""Train one network with any method, as a cell of a table is trained, and keep what can be kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.harness.cell_fitting import BaseError, Fitted, fitted
from experiments.harness.config import Cell, Cells
from experiments.harness.image_sets import TRAIN, VALIDATION, image_sets
from experiments.harness.single_cell import NAME, write_cells
from experiments.harness.work import Busy, ChangedError
from laplacian_metric.core.artifact import check_target
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.files import output_folder
from laplacian_metric.core.method import PointEmbedder
from laplacian_metric.encoder import Encoder, save_encoder
from laplacian_metric.laplace.model_folder import ModelFolder, ModelManifest, check_options
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.methods.laplace.embedder import LAMEmbedder

WITHOUT_CHECKPOINT = {"config.json", "lock"}  # files beside the cells before the first checkpoint


@dataclass(frozen=True)
class Kept:
    """The output of a training.

    Attributes:
        kind: "model", a model folder; "encoder", a file of weights; "training", the folder of the training itself.
        folder: the output.
        words: what it can be used for, in a sentence or two.
        model: of the first kind.
        validation: what was measured on validation images after the kept epoch; empty where nothing was trained.
    """

    kind: str
    folder: Path
    words: str
    model: ModelFolder | None = None
    validation: Mapping[str, float] = field(default_factory=dict)


def train_single(
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
    """Train, or resume an interrupted training, and write the output.

    Checkpoints are kept in a folder beside ``out``, whose name ends with ``.training``, until the end.

    Args:
        settings: as a cell has them, see `write_cells`.
        out: the folder that is made.
        seed: of all random choices.
        data_dir: the folder of the data sets.
        device: where networks compute.
        force: replace an existing model.
        fresh: discard a training that was begun with other settings.
        progress: whether to show bars.
    """
    check_target(out, ModelManifest, overwrite=force)  # before hours of training
    work = work_of(out)
    cells_dir = work / "cells"
    if fresh and work.exists():
        shutil.rmtree(work)
    work.parent.mkdir(parents=True, exist_ok=True)
    with _removed_without_checkpoint(work):
        write_cells(settings, cells_dir, seed)
        cell = Cells(cells_dir)[NAME]
        check_options(cell.network.options)
        if ":" in cell.network.name and cell.network.dim is None:
            raise ValueError(
                f"{cell.network.name} without a dimension would embed in the logits of its classifier, which retrieve "
                "worse than its features: pass --dim, 64 say"
            )
        images = image_sets(cell.data, data_dir).images
        for name in (TRAIN, VALIDATION):
            if cell.method.kind.needs_labels:
                _require_classes(images[name])
        try:
            result = fitted(
                NAME,
                seed,
                cells_dir=cells_dir,
                work=work,
                data_dir=data_dir,
                device=device,
                progress=progress,
            )
        except ChangedError as error:
            raise ValueError(
                f"{error}; restore the settings, or discard the training with --fresh"
            ) from error
        except BaseError as error:  # the user knows of one training only
            raise (error.__cause__ or error) from None
        except Busy as error:
            raise ValueError(
                f"another process is training in {work}: wait for it, or name another folder"
            ) from error
    kept = replace(_keep(result, cell, out, work, data_dir, seed, force), validation=_validation(result))
    if kept.kind != "training":
        shutil.rmtree(work, ignore_errors=True)
    return kept


def work_of(out: Path) -> Path:
    """Return the folder in which a training keeps its checkpoints until ``out`` is made."""
    return out.with_name(out.name + ".training")


@contextmanager
def _removed_without_checkpoint(work: Path) -> Iterator[None]:
    """Remove the folder of a training that ends before its first checkpoint: no other settings could use it."""
    existed = work.exists()
    try:
        yield
    except BaseException:
        left = {path.name for path in work.rglob("*") if path.is_file() and path.suffix != ".yaml"}
        if not existed and left <= WITHOUT_CHECKPOINT:
            shutil.rmtree(work, ignore_errors=True)
        raise


def _require_classes(images: Dataset) -> None:
    if images.positive_distance is None:
        images.require_classes("a training")


def _keep(
    result: Fitted, cell: Cell, out: Path, work: Path, data_dir: Path | None, seed: int, force: bool
) -> Kept:
    if isinstance(result.embedder, LAMEmbedder):
        model = _model(result, result.embedder.lam, cell, data_dir, seed)
        model.save(out, overwrite=force)
        return Kept("model", out, "a model folder, for embed, index, evaluate and report", model)
    if isinstance(result.embedder, PointEmbedder) and result.encoder is not None:
        encoder = _named(result.encoder, cell)
        with output_folder(out, force) as folder:
            save_encoder(encoder, folder / "encoder.safetensors")
        return Kept(
            "encoder",
            out,
            f"an encoder without a posterior: `lam fit --encoder {cell.network.name} --weights "
            f"{out / 'encoder.safetensors'}` with the same --data fits one",
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
        f"is kept: in Python, result = experiments.harness.fitted({NAME!r}, {seed}, "
        f"cells_dir=Path({str(out / 'cells')!r}), work=Path({str(out)!r})) embeds with result.embed(images)",
    )


def _validation(result: Fitted) -> dict[str, float]:
    """Return mAP and its like on validation images, by name."""
    if result.training is None or not result.training["history"]:
        return {}
    epoch = result.training["history"][result.training["best_epoch"] - 1]
    return {name: value for name, value in epoch.items() if "@" in name}


def _named(encoder: Encoder, cell: Cell) -> Encoder:
    """Return the encoder with its name, by which it can be rebuilt unless it has options."""
    if not cell.network.options:
        encoder.recipe = {"name": cell.network.name, "dim": encoder.dim}
    return encoder.eval()


def _model(result: Fitted, lam: LAM, cell: Cell, data_dir: Path | None, seed: int) -> ModelFolder:
    carrier = result.sets.encoder
    if carrier is not None:
        whole = Encoder(carrier.backbone, lam.encoder.head, normalize=lam.encoder.normalize)
        lam = bound_to(lam, whole.eval())
    lam.encoder.recipe = {"name": cell.network.name, "dim": lam.encoder.dim}
    images = image_sets(cell.data, data_dir).images
    train, validation = (images[name] for name in (TRAIN, VALIDATION))
    config = cell.resolved()
    training = result.training
    return ModelFolder(
        lam,
        train.prepared(augment=None).preparation,
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
        {"train": train.digests(), "validation": validation.digests()},
    )


def bound_to(lam: LAM, encoder: Encoder) -> LAM:
    """Return a posterior that was fitted to features for an encoder with the same head above a backbone."""
    bound = LAM(
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
    bound.fitted = replace(lam.fitted, fingerprint=encoder.fingerprint())
    if lam.confidence is not None:
        bound.set_confidence(lam.confidence)
    return bound


def _title(cell: Cell, images: Dataset) -> str:
    path = cell.data.options.get("path")
    return images.title if path is None else replace(images, name=Path(path).resolve().name).title
