"""From an entry, a setting and a seed to an embedder: networks are trained where they are missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.harness.networks import check_base, initial_encoder, learner_of
from experiments.harness.suites.sets import TRAIN, VALIDATION, TrackSets
from experiments.harness.suites.suite import Options, Suite
from laplacian_metric.core.method import Embedder, FitData, Learner, Start
from laplacian_metric.encoder import Encoder
from laplacian_metric.training import load_best, train


@dataclass(frozen=True)
class Part:
    """One network, or several, of an entry on a track: with one setting and one seed."""

    track: str
    entry: str
    setting: int
    seed: int

    def __str__(self) -> str:
        return f"{self.track}, {self.entry}, setting {self.setting}, seed {self.seed}"

    def place(self, folder: Path) -> Path:
        """Return where it is kept below a folder."""
        return folder / self.track / self.entry / f"setting{self.setting}-seed{self.seed}"


@dataclass(frozen=True)
class Fitted:
    """An embedder, the encoder that its norms are taken of, and the seconds of its training and its fit."""

    embedder: Embedder
    encoder: Encoder
    training_seconds: float
    fit_seconds: float


class Fitting:
    """Fits the parts of a suite.

    Args:
        suite: whose parts.
        sets: of each track.
        work: where networks are kept.
        chosen: gives the setting of a base on a track.
        progress: whether to show bars; None asks the terminal.
    """

    def __init__(
        self,
        suite: Suite,
        sets: dict[str, TrackSets],
        work: Path,
        chosen: Callable[[str, str], int],
        progress: bool | None = None,
    ) -> None:
        self.suite = suite
        self.sets = sets
        self.work = work
        self.chosen = chosen
        self.progress = progress

    def fit(self, part: Part) -> Fitted:
        """Return the embedder of a part; a training that was interrupted goes on."""
        sets, options = self.sets[part.track], self.suite.options(part.track, part.entry, part.setting)
        encoders = self._encoders(part, options)
        learner, seconds = self._trained(part, options, encoders)
        begun = time.perf_counter()
        data = FitData(sets[TRAIN], sets[VALIDATION], part.place(self.work) / "features")
        embedder = learner.embedder(data)
        return Fitted(embedder, encoders[0], seconds, time.perf_counter() - begun)

    def _trained(self, part: Part, options: Options, encoders: list[Encoder]) -> tuple[Learner, float]:
        """Return the learner with the weights of its best epoch, and the seconds of its training."""
        sets, training = self.sets[part.track], options.training_options()
        images = sets[TRAIN]
        learner = learner_of(options.method, options.loss, training, encoders, images, part.seed)
        if not options.method.kind.trains or not training.epochs:
            return learner, 0.0
        folder = part.place(self.work)
        digests = {name: sets.digest(name) for name in (TRAIN, VALIDATION)}
        identity = {
            "entry": {key: value for key, value in options.plain().items() if key != "training"},
            **digests,
        }
        done = train(
            learner,
            images,
            sets[VALIDATION],
            training,
            folder,
            seed=part.seed,
            identity=identity,
            progress=self.progress,
        )
        load_best(learner, folder)
        return learner, done.seconds

    def _encoders(self, part: Part, options: Options) -> list[Encoder]:
        """Return what the method starts from: a new encoder, or those of the base with its chosen setting."""
        entry = self.suite.entry(part.entry)
        if entry.base is None:
            return [self._initial(part.track, options, part.seed)]
        seeds = [part.seed]
        if entry.start is Start.NETWORKS:
            seeds = [entry.members * part.seed + number for number in range(entry.members)]
        return [
            self._base(Part(part.track, entry.base, self.chosen(part.track, entry.base), seed))
            for seed in seeds
        ]

    def _base(self, part: Part) -> Encoder:
        options = self.suite.options(part.track, part.entry, part.setting)
        encoder = self._initial(part.track, options, part.seed)
        learner, _ = self._trained(part, options, [encoder])
        check_base(learner, encoder, part.entry)
        return encoder.eval()

    def _initial(self, track: str, options: Options, seed: int) -> Encoder:
        sets = self.sets[track]
        frozen = sets.encoder if options.network.frozen else None
        return initial_encoder(options.network, frozen, lambda: sets[TRAIN], seed, sets.data_dir)
