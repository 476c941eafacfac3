"""From a cell and a seed to what embeds images: networks trained where they are missing, and the method fitted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.harness.config import Cell, Cells, differences
from experiments.harness.image_sets import (
    OUT,
    TEST,
    TRAIN,
    TRAINING,
    VALIDATION,
    Sets,
    feature_sets,
    image_sets,
    size,
)
from experiments.harness.networks import check_base, initial_encoder, learner_of
from experiments.harness.work import CONFIG, FEATURES, TRAINED, Busy, ChangedError, Work, write_json
from laplacian_metric.core.batch import map_batches
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import Embedder, FitData, Learner, Start
from laplacian_metric.encoder import Encoder
from laplacian_metric.training import load_best, train
from laplacian_metric.training.checks import plain

FROZEN_SEED = 0  # of a frozen backbone that has random weights


@dataclass
class Place:
    """What all runs have in common.

    Attributes:
        cells: by name.
        work: where networks and features are kept.
        data_dir: the folder of the data sets.
        device: where networks compute.
        progress: whether to show bars; None asks the terminal.
    """

    cells: Cells
    work: Work
    data_dir: Path | None
    device: str = "cpu"
    progress: bool | None = None
    _latest: tuple[str, Sets] | None = None

    def images(self, cell: Cell) -> Sets:
        """The images of a cell; those of the last cell are kept, since the next one often has the same."""
        key = cell.data.model_dump_json() + str(cell.evaluation.batch_size)
        if self._latest is None or self._latest[0] != key:
            self._latest = key, image_sets(cell.data, self.data_dir, cell.evaluation.batch_size)
        return self._latest[1]


@dataclass(frozen=True)
class Fitted:
    """What embeds, and what it embeds.

    Attributes:
        embedder: of the method.
        encoder: of which trivial scores are taken; None where there are several, or where its head is not trained.
        sets: the inputs that the embedder takes.
        training: history, best epoch and seconds of the cell's own training; None where nothing was trained.
        fit_seconds: what came after the training.
    """

    embedder: Embedder
    encoder: Encoder | None
    sets: Sets
    training: dict[str, Any] | None
    fit_seconds: float

    def embed(self, images: Any) -> StochasticEmbedding:
        """The embeddings of images, also where the embedder takes features of a frozen network.

        Args:
            images: a tensor made ready for the network, a data set, or a loader of inputs or (inputs, labels).
        """
        whole = self.sets.encoder
        if whole is None:
            return self.embedder.embed(images)
        return self.embedder.embed(map_batches(lambda batch: whole.features(batch.inputs), images, whole))


class BaseError(RuntimeError):
    """The networks that a cell starts from could not be trained."""


def fit(place: Place, cell: Cell, seed: int, *, use_features: bool = False) -> Fitted:
    """Everything that comes before the evaluation; the run's lock is held.

    Args:
        place: see `Place`.
        cell: what is run.
        seed: of its networks.
        use_features: whether a network that is evaluated alone goes by features which other cells need too.

    Raises:
        Busy: another process trains a network that is needed.
        BaseError: a network that is needed cannot be trained.
    """
    images = place.images(cell)
    # What is missing is said now, and not after days of training.
    for name in (VALIDATION, TEST, *(OUT + out.label for out in cell.data.out)):
        size(images, name)
    sets = _sets(place, cell)
    encoders = _encoders(place, cell, seed, sets)
    kept_at = cell.features_at(seed)
    if cell.start is Start.FROZEN and not cell.network.frozen:
        sets, encoders = _frozen(place, cell, encoders[0], kept_at)
    learner = _learner(cell, encoders, images, seed)
    training = _trained(place, cell, seed, learner, sets) if cell.method.kind.trains else None
    if not cell.method.kind.has_uncertainty and isinstance(learner.module, Encoder) and use_features:
        sets, encoders = _frozen(place, cell, learner.module, kept_at)
        learner = _learner(cell, encoders, images, seed)
    folder = place.work.folder(cell.name, seed)
    # Features that come with the sets need no folder; a method of images may keep its own there.
    kept = folder / FEATURES if sets.encoder is None else None
    data = FitData(sets[TRAIN], sets[VALIDATION], kept)
    begun = time.perf_counter()  # features are shared: they count for no cell
    embedder = learner.embedder(data)
    one = encoders[0] if len(encoders) == 1 else None
    return Fitted(embedder, one, sets, training, time.perf_counter() - begun)


def _sets(place: Place, cell: Cell) -> Sets:
    """What is trained on: images, or features where the backbone is frozen."""
    if not cell.network.frozen:
        return place.images(cell)
    # With its usual head, which plays no part, so that all have the same fingerprint.
    backbone = cell.network.model_copy(update={"dim": None})
    encoder = backbone.make(FROZEN_SEED, place.data_dir).to(place.device).eval()
    return _frozen(place, cell, encoder, cell.features_at(FROZEN_SEED))[0]


def _initial(place: Place, cell: Cell, seed: int, sets: Sets, *, shape_only: bool = False) -> Encoder:
    encoder = initial_encoder(
        cell.network, sets.encoder, lambda: sets[TRAIN], seed, place.data_dir, shape_only=shape_only
    )
    return encoder.to(place.device)


def _encoders(place: Place, cell: Cell, seed: int, sets: Sets) -> list[Encoder]:
    """The encoders that a method is given: new ones, or those of the base."""
    base = place.cells.base_of(cell)
    if base is None:
        return [_initial(place, cell, seed, sets)]
    busy: list[Busy] = []
    for number in cell.base_seeds(seed):
        try:
            ensure_network(place, base, number)
        except Busy as other:  # the others can be trained meanwhile
            busy.append(other)
    if busy:
        raise busy[0]
    return [_base_encoder(place, base, number) for number in cell.base_seeds(seed)]


def ensure_network(place: Place, cell: Cell, seed: int) -> None:
    """Train the network of a cell unless it is there.

    Raises:
        Busy: another process is at it.
        ChangedError: what is there was trained with other settings.
        BaseError: the training failed.
    """
    if place.work.trained(cell.name, seed) is not None:
        check_network(place, cell, seed)
        return
    with place.work.locked(cell.name, seed):
        sets = _sets(place, cell)
        try:
            learner = _learner(cell, [_initial(place, cell, seed, sets)], place.images(cell), seed)
            _trained(place, cell, seed, learner, sets)
        except (FloatingPointError, ValueError, RuntimeError) as error:
            if isinstance(error, ChangedError):
                raise
            raise BaseError(
                f"the network of {cell.name}, seed {seed}, which this starts from, could not be trained: {error}"
            ) from error


def check_network(place: Place, cell: Cell, seed: int) -> None:
    """Refuse a network that was trained, or begun, with other settings than the cell has now."""
    recorded = place.work.config(cell.name, seed)
    if recorded is None:
        return
    changes = differences(recorded, cell.trained_with(place.cells.base_of(cell)))
    if changes:
        raise ChangedError(
            f"the network of {cell.name}, seed {seed}, has other settings: {'; '.join(changes)}"
        )


def _base_encoder(place: Place, base: Cell, seed: int) -> Encoder:
    """The trained encoder of a base."""
    encoder = _initial(place, base, seed, _sets(place, base), shape_only=True)
    learner = _learner(base, [encoder], place.images(base), seed)
    load_best(learner, place.work.folder(base.name, seed))
    check_base(learner, encoder, base.name)
    return encoder.eval()


def _learner(cell: Cell, encoders: list[Encoder], images: Sets, seed: int) -> Learner:
    return learner_of(cell.method, cell.loss, cell.training, encoders, images.images[TRAIN], seed)


def _frozen(
    place: Place, cell: Cell, encoder: Encoder, kept_at: tuple[str, int]
) -> tuple[Sets, list[Encoder]]:
    """Features in place of images, and the head alone in place of the encoder."""
    sets = feature_sets(
        place.images(cell),
        cell.data,
        encoder,
        place.work.folder(*kept_at) / FEATURES,
        batch_size=cell.evaluation.batch_size,
        # Whoever has it computes features as well, and will be done soon.
        lock=partial(place.work.locked, *kept_at, wait=True),
        progress=place.progress,
    )
    return sets, [Encoder(nn.Identity(), encoder.head, normalize=encoder.normalize)]


def _trained(place: Place, cell: Cell, seed: int, learner: Learner, sets: Sets) -> dict[str, Any]:
    """Train, or go on, or do nothing where the training is done; the learner then has the best epoch's weights."""
    folder = place.work.folder(cell.name, seed)
    check_network(place, cell, seed)
    learner.module.to(torch.device(place.device))
    done = place.work.trained(cell.name, seed)
    if done is None:
        # What it was begun with: the same, but for options that there were not yet.
        identity = place.work.config(cell.name, seed)
        if identity is None:
            identity = cell.trained_with(place.cells.base_of(cell))
            write_json(folder / CONFIG, identity)
        outcome = train(
            learner,
            sets[TRAINING],
            sets[VALIDATION],
            cell.training,
            folder,
            seed=seed,
            identity={"cell": {key: value for key, value in identity.items() if key != "training"}},
            progress=place.progress,
        )
        done = {"history": outcome.history, "best_epoch": outcome.best_epoch, "seconds": outcome.seconds}
        write_json(folder / TRAINED, plain(done))
    load_best(learner, folder)
    return done


def is_trained(name: str, seed: int, *, cells_dir: Path, work: Path) -> bool:
    """Return whether all networks that a cell embeds with are in a work folder."""
    cells = Cells(cells_dir)
    if name not in cells.names():
        return False
    cell = cells[name]
    base = cells.base_of(cell)
    needed = [(name, seed)] if cell.method.kind.trains else []
    needed += [(base.name, number) for number in cell.base_seeds(seed)] if base else []
    return all(Work(work).trained(*network) is not None for network in needed)


def fitted(
    name: str,
    seed: int,
    *,
    cells_dir: Path,
    work: Path,
    data_dir: Path | None = None,
    device: str = "cpu",
    progress: bool | None = None,
) -> Fitted:
    """The embedder of a cell and the sets of inputs that it takes, by name: "train", "validation", "test" and others.

    Networks that are in ``work`` are used, and what is missing there is trained first, as `run` does; posteriors are
    fitted anew.

    Raises:
        Busy: another process is at the same cell and seed.
    """
    cells = Cells(cells_dir)
    cell = cells[name]
    place = Place(cells, Work(work), data_dir, device, progress)
    with place.work.locked(cell.name, seed):
        return fit(place, cell, seed)
