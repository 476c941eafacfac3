"""The training loop: epochs, validation after each, checkpoints from which it goes on to the bit."""

from __future__ import annotations

import logging
import math
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplacian_metric.core.batch import Batch, device_of, to_device
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import Learner
from laplacian_metric.core.modes import check_unused, evaluating
from laplacian_metric.core.progress import Bar
from laplacian_metric.encoder.precision import computed_in, computing_in
from laplacian_metric.training import checkpoint, checks, processes
from laplacian_metric.training.checkpoint import OtherRunError, Progress
from laplacian_metric.training.checks import best_epoch, validate
from laplacian_metric.training.options import Schedule, TrainingOptions, learning_rate, make_optimizer
from laplacian_metric.training.pair_streams import epoch_batches

LOGGER = logging.getLogger(__name__)
# What may be changed when a run is continued.
FREE = ("epochs", "patience", "checkpoint_every")


@dataclass(frozen=True)
class Trained:
    """What a training did.

    Attributes:
        history: for every epoch its loss, learning rate and seconds, and what was measured on validation images.
        best_epoch: the epoch, counted from 1, whose weights were kept; 0 where there was no epoch.
        seconds: of all epochs, those of earlier sessions included.
    """

    history: list[dict[str, Any]]
    best_epoch: int
    seconds: float


def train(
    learner: Learner,
    train: Dataset,
    validation: Dataset | None,
    options: TrainingOptions,
    folder: Path,
    *,
    seed: int = 0,
    identity: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Trained:
    """Train, or go on training where an earlier call with the same folder was interrupted.

    After every epoch the folder gets, each file whole or not at all, ``best.safetensors`` if the mean of mAP@1, 5 and
    10 on the validation images is the best so far (or by what else the learner keeps an epoch), ``log.json`` and
    ``last.safetensors``. The same call goes on from the latter with the same result as if it had not been interrupted.
    Where ``torch.distributed`` is initialised the batches are dealt out to the processes and gradients are averaged;
    the first process writes the files, into a folder that all of them see.

    The same result is the same bits where torch computes with as many threads (and, on a GPU, with deterministic
    algorithms), and, for augmented images, where they are read by as many workers with the same ``checkpoint_every``;
    without workers augmentations have to draw from torch's generator. Learners that choose their images by what the
    module makes of them (`Learner.refresh`) choose anew after every checkpoint, so ``checkpoint_every`` is part of what
    they are trained with. Afterwards torch's global random state and the
    modes of the module are what they were.

    Args:
        learner: with initial weights; trained in place. At the end it has the weights of the last epoch, see
            `load_best`.
        train: the training images.
        validation: by which the epoch that is kept is chosen; never test images. A learner that keeps the last epoch
            takes images without labels, or None: retrieval is then not measured.
        options: of the training.
        folder: of this run alone.
        seed: of the order of the images, and of all draws.
        identity: what else the result depends on, such as the options of the method and of the loss, as plain values; a
            run that was begun with something else is refused, as it is with other options, labels or another seed.
        progress: whether to show a bar; None asks the terminal.

    Raises:
        FloatingPointError: a loss, or a weight, is not finite; the checkpoints are those from before.
        OtherRunError: the folder holds a training with other settings.
        TestDataError: test images are given.
        OSError: the folder cannot be written to.
    """
    folder = Path(folder)
    with processes.all_or_none():
        checks.check_inputs(train, validation, options, learner)
        checks.check_run(learner, folder, seed)
        plain_identity = checks.plain(identity or {})
    module = learner.module
    devices = [device_of(module)] if device_of(module).type == "cuda" else []
    with (
        processes.letting_go(),
        torch.random.fork_rng(devices=devices),
        checks.modes_kept(module),
        computing_in(options.precision, module),
    ):
        torch.manual_seed(seed + processes.processes()[0])
        run = _Run(learner, train, validation, options, folder, seed, plain_identity, progress)
        run.resume()
        with run.undone_without_checkpoint():
            return run.to_the_end()


class _Run:
    """One training: the learner with its optimizer and generator, and where it stands."""

    def __init__(
        self,
        learner: Learner,
        images: Dataset,
        validation: Dataset | None,
        options: TrainingOptions,
        folder: Path,
        seed: int,
        identity: dict[str, Any],
        show: bool | None,
    ) -> None:
        self.learner = learner
        self.images = images
        self.validation = validation
        self.options = options
        self.folder = folder
        self.seed = seed
        self.show = show
        self.process, self.processes = processes.processes()
        self.identity = {
            **_identity(options, images, learner),
            **identity,
            "seed": seed,
            "processes": self.processes,
        }
        self.device = device_of(learner.module)
        self.precision = computed_in(options.precision, learner.module).value
        self.optimizer = make_optimizer(options, learner.parameters())
        own = 0 if learner.same_draws else self.process
        self.generator = torch.Generator(self.device).manual_seed(seed + own)
        self.state = Progress()
        self.unread: list[
            tuple[int, Tensor, int]
        ] = []  # steps whose losses were not read yet, with their images
        self.before: dict[str, Tensor] | None = None
        learner.begin(self.optimizer, self.generator)
        self.loss = processes.loss_function(learner)

    @contextmanager
    def undone_without_checkpoint(self) -> Iterator[None]:
        """Where the training ends before its first checkpoint the learner is again what it was, for the same call."""
        path = self.folder / checkpoint.LAST
        self.before = None if path.exists() else checkpoint.embedding_tensors(self.learner)
        try:
            yield
        except BaseException:
            if self.before is not None:
                checkpoint.load_embedding(path, self.learner, self.before)
            raise

    # --- epochs ---

    def to_the_end(self) -> Trained:
        """All epochs that are missing."""
        if not self.options.epochs and not self.state.history:
            self._save(checkpoint.BEST, whole=False)
        with Bar(self.options.epochs, show=self.show if self.process == 0 else False) as bar:
            for entry in self.state.history:
                bar.finished(entry)
            patience = self.options.epochs if self.options.patience is None else self.options.patience
            while (done := len(self.state.history)) < self.options.epochs and done - self._best() < patience:
                bar.finished(self._epoch(bar))
        history = self.state.history
        return Trained(history, self._best(), sum(entry["seconds"] for entry in history))

    def _epoch(self, bar: Bar) -> dict[str, Any]:
        """One epoch, or the rest of one, with its validation and its checkpoints."""
        state, number = self.state, len(self.state.history)
        rate = learning_rate(self.options, number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batches = epoch_batches(
            self.images.labels if self.learner.needs_labels else torch.zeros(len(self.images)),
            self.options,
            self.seed,
            number,
            self.process,
            self.processes,
        )
        bar.begin(number + 1, len(batches), state.step)
        # Whoever goes on in the middle of an epoch has to give the images' readers the seeds that they had.
        every = self.options.checkpoint_every or len(batches)
        while state.step < len(batches):
            begun = time.perf_counter()
            rows = self._chosen(batches, every)
            # Of what the images' readers draw from here on: another seed in each process.
            drawn = self.seed + 1_000_003 * number + state.step + 1_000_000_007 * self.process
            reading = torch.Generator().manual_seed(drawn % 2**63)
            for batch in processes.read(self.images.batches(rows, reading)):
                self._step(batch)
                bar.step(state.total / max(1, state.images))
            self._read_losses()
            self.optimizer.zero_grad()  # nobody needs the gradients while images are validated, or afterwards
            checks.check_finite(self.learner.parameters(), state.step, number + 1)
            state.seconds += time.perf_counter() - begun
            if state.step < len(batches):
                self._save(checkpoint.LAST, whole=True)
        return self._end_epoch(rate)

    def _end_epoch(self, rate: float) -> dict[str, Any]:
        """Validate, and write what the finished epoch leaves; the checkpoint that is gone on from last."""
        begun, state = time.perf_counter(), self.state
        if self.processes > 1:
            processes.share_buffers(self.learner.module)
        with processes.all_or_none():
            self.learner.end_epoch()
            measured = validate(self.learner, self.validation)
        loss = state.total / state.images
        if self.processes > 1:
            loss = processes.mean_over_processes(state.total, state.images, self.learner)
            # All processes have to agree on which epoch is best, and when patience is over.
            measured = processes.of_the_first(measured)
        entry = {
            "epoch": len(state.history) + 1,
            "loss": loss,
            "learning_rate": rate,
            "precision": self.precision,
            **measured,
        }
        entry["seconds"] = round(state.seconds + time.perf_counter() - begun, 3)
        self.state = Progress([*state.history, entry])
        best = self._best()
        if best == entry["epoch"]:
            self._save(checkpoint.BEST, whole=False)
        with processes.all_or_none():
            if self.process == 0:
                log = {"identity": self.identity, "best_epoch": best, "epochs": self.state.history}
                checkpoint.save_log(self.folder / checkpoint.LOG, log)
        self._save(checkpoint.LAST, whole=True)
        return entry

    def _chosen(self, batches: list[Tensor], every: int) -> list[Tensor]:
        """The positions of the batches up to the next checkpoint, or what a learner chooses in place of them."""
        step, refresh = self.state.step, self.learner.refresh
        left = min(period - step % period for period in (every, refresh) if period is not None)
        rows = batches[step : step + left]
        if refresh is None:
            return rows
        with processes.all_or_none(), evaluating(self.learner.module):
            chosen = self.learner.choose(self.images, rows)
            if len(chosen) != len(rows):
                raise ValueError(
                    f"{type(self.learner).__name__} chose {len(chosen)} batches in place of {len(rows)}: as many are "
                    "needed"
                )
        return chosen

    def _step(self, batch: Batch) -> None:
        """One step of the optimizer."""
        learner, state = self.learner, self.state
        check_unused(learner.module)
        learner.train_mode()
        self.optimizer.zero_grad()
        with processes.all_or_none():
            # Where labels have no part in the training the learner gets positions in the batch in their place.
            labels = batch.labels if learner.needs_labels else torch.arange(len(batch))
            assert labels is not None
            loss = self.loss(to_device(batch.inputs, learner.module), labels.to(self.device))
            self.unread.append((state.step, loss.detach(), len(batch)))
            if len(self.unread) >= steps_between_reads(self.device):
                self._read_losses()
        loss.backward()
        if self.options.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(learner.parameters(), self.options.clip_norm)
        learner.step()
        state.step += 1

    def _read_losses(self) -> None:
        """Add up the losses of the steps since the last time; refuse one that is not finite."""
        unread, self.unread = self.unread, []
        values = torch.stack([loss for _, loss, _ in unread]).tolist() if unread else []
        for (step, _, images), value in zip(unread, values, strict=True):
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"the loss of step {step + 1} of epoch {len(self.state.history) + 1} is {value}: lower the "
                    "learning rate, or look for what is wrong with the images"
                )
            self.state.total += value * images
            self.state.images += images

    def _best(self) -> int:
        """The epoch, counted from 1, whose weights are kept so far."""
        return best_epoch(self.state.history, self.learner.keep)

    # --- files ---

    def resume(self) -> None:
        """Go on from the last checkpoint; does nothing where there is none."""
        path = self.folder / checkpoint.LAST
        if self.processes > 1:
            processes.same_everywhere(f"whether there is a {checkpoint.LAST}", int(path.exists()))
            processes.same_everywhere("seed", self.seed)
        if self.process == 0:
            for unfinished in self.folder.glob(".*.tmp"):  # of a training that was killed while it wrote
                unfinished.unlink()
        if not path.exists():
            return
        with processes.all_or_none():
            tensors, stored, state = checkpoint.read(path)
            checkpoint.check_identity(path, stored, self.identity)
            self._load(path, tensors)
            if self.processes > 1:
                total, images = tensors[f"losses/{self.process}"].tolist()
                state.total, state.images = total, int(images)
            self.state = state
        LOGGER.info(
            "going on after epoch %d, step %d of %s", len(self.state.history), self.state.step, self.folder
        )

    def _load(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """What a checkpoint's tensors hold, once they are known to be of this run."""
        with_cuda = f"random/cuda/{self.process}" in tensors
        if with_cuda != (self.device.type == "cuda"):
            raise OtherRunError(
                f"{path} is of a training on {'a GPU' if with_cuda else 'the processor'}, and the module is on "
                f"{self.device}: move it, or choose another folder"
            )
        checkpoint.load_embedding(path, self.learner, tensors)
        checkpoint.load_optimizer(self.learner, self.optimizer, tensors)
        torch.set_rng_state(tensors[f"random/torch/{self.process}"])
        self.generator.set_state(tensors[f"random/learner/{self.process}"])
        if with_cuda:
            torch.cuda.set_rng_state(tensors[f"random/cuda/{self.process}"], self.device)

    def _save(self, name: str, whole: bool) -> None:
        """Write a checkpoint; the first process does it for all."""
        tensors: dict[str, Tensor] = {}
        if whole:
            states = {"torch": torch.get_rng_state(), "learner": self.generator.get_state()}
            if self.device.type == "cuda":
                states["cuda"] = torch.cuda.get_rng_state(self.device)
            kept = {f"random/{kind}": own for kind, own in states.items()}
            if self.processes > 1:  # each has the losses of its own images
                kept["losses"] = torch.tensor([self.state.total, self.state.images], dtype=torch.float64)
            for kind, own in kept.items():
                every = [own] if self.processes == 1 else processes.gathered(own)
                for number, gathered_state in enumerate(every):
                    tensors[f"{kind}/{number}"] = gathered_state
        with processes.all_or_none():
            if self.process == 0:
                tensors |= checkpoint.embedding_tensors(self.learner)
                if whole:
                    tensors |= checkpoint.optimizer_tensors(self.learner, self.optimizer)
                checkpoint.save(self.folder / name, tensors, self.identity, self.state)
        if whole:
            self.before = None


def steps_between_reads(device: torch.device) -> int:
    """Return after how many steps losses are read: a GPU would otherwise wait for every step to end.

    Example:
        >>> steps_between_reads(torch.device("cpu")), steps_between_reads(torch.device("cuda"))
        (1, 20)
    """
    return 1 if device.type == "cpu" else 20


def _identity(options: TrainingOptions, images: Dataset, learner: Learner) -> dict[str, Any]:
    """What a continued run must have in common: options, the number of images, and a checksum of their labels."""
    free = set(FREE)
    # The learning rates of these depend on how many epochs there will be.
    if options.schedule in (Schedule.COSINE, Schedule.STEP):
        free.remove("epochs")
    # What is chosen by what the module makes of the images is chosen anew after every checkpoint.
    if learner.refresh is not None:
        free.remove("checkpoint_every")
    described = {"number": len(images)}
    if learner.needs_labels:
        labels = images.labels.cpu().contiguous()
        described["labels"] = zlib.crc32(labels.view(torch.uint8).numpy().data)
    values = {name: value for name, value in asdict(options).items() if name not in free}
    return {**checks.plain(values), "images": described}
