"""Run a list of cells: skip what is done, go on where it was interrupted, and share the list with other runners."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.harness import provenance
from experiments.harness.cell_fitting import Place, check_network, fit
from experiments.harness.config import Cell, Cells
from experiments.harness.image_sets import (
    TEST,
)
from experiments.harness.measurements import evaluate, label_entropy
from experiments.harness.provenance import failure, is_disk_full
from experiments.harness.results import DONE, FAILED, Result, Results
from experiments.harness.work import Busy, ChangedError, RunError, Work
from experiments.sets.lookup import MissingDataError
from laplacian_metric.metrics.evaluation import OWN


@dataclass(frozen=True)
class Task:
    """One cell with one seed."""

    cell: Cell
    seed: int

    @property
    def name(self) -> str:
        return f"{self.cell.name}, seed {self.seed}"

    @property
    def features(self) -> tuple[str, int]:
        """The name and the seed of the features that it may go by."""
        return self.cell.features_at(self.seed)


@dataclass
class Summary:
    """What became of the runs, by name; those that failed in an earlier call are not tried again unless asked for."""

    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed_before: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    without_data: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether all of them have a result now."""
        return not self.failed and not self.failed_before and not self.without_data


def message_of(error: Exception, name: str, folder: Path) -> str:
    """Return what is recorded of a failure; without space on the device nothing can go on.

    Raises:
        RunError: there is no space left.
    """
    if is_disk_full(error):
        raise RunError(
            f"{name}: no space is left on the device. What is done is kept: make room in {folder} and repeat the "
            "command"
        ) from error
    return failure(error)


def headline(result: Result) -> str:
    """Return the main numbers of a result in one line."""
    retrieval, scores = result.retrieval[TEST], result.scores
    parts = [f"{name} {retrieval[name]:.4f}" for name in retrieval if name in ("recall@1", "map@5")]
    for name in [OWN] if OWN in scores else scores:
        detected = [f"{label} {numbers['auroc']:.4f}" for label, numbers in scores[name].ood.items()]
        auroc = f"AUROC {' '.join(detected)}, " if detected else ""
        parts.append(f"{name}: {auroc}R-AUROC {scores[name].values['r_auroc']:.4f}")
    if result.calibration is not None:
        parts.append(f"ECE {result.calibration.ece:.4f}")
    seconds = [f"{result.seconds[key]:.0f}" for key in ("training", "fit", "evaluation")]
    return ", ".join([*parts, f"{' + '.join(seconds)} s"])


WAIT = 1.0  # seconds before locked runs are tried again

Say = Callable[[str], None]


def run(
    cells: Iterable[str],
    *,
    cells_dir: Path,
    data_dir: Path | None,
    work: Path,
    results: Path,
    seeds: Sequence[int] | None = None,
    retry_failed: bool = False,
    fresh: bool = False,
    keep_features: bool = False,
    device: str = "cpu",
    progress: bool | None = None,
    say: Say = lambda line: None,
) -> Summary:
    """Run cells that have no result yet, each with every seed.

    The same call, interrupted at any time, goes on where it was; several at once share the work.

    Args:
        cells: names, or patterns such as "fashion_mnist/*".
        cells_dir: the folder of the YAML files.
        data_dir: the folder of the data sets; None looks where `data.load` does.
        work: for networks and features, outside of the repository.
        results: for the result files.
        seeds: instead of those that the cells name.
        retry_failed: whether to run again what failed.
        fresh: whether to do anew what was made with another configuration; otherwise that is an error.
        keep_features: whether features stay after the last cell that needs them.
        device: where networks compute.
        progress: whether to show bars; None asks the terminal.
        say: is told what happens, line by line.

    Raises:
        ConfigError: a cell is not what it should be.
        RunError: something was made with another configuration, or there is no space left.
    """
    place = Place(Cells(cells_dir), Work(work), data_dir, device, progress)
    runs = _Runs(place, Results(results), say)
    tasks = runs.tasks(cells, seeds)
    runs.check_changes(tasks, fresh)
    return runs.all(tasks, retry_failed, keep_features)


def states(
    cells: Iterable[str],
    *,
    cells_dir: Path,
    work: Path,
    results: Path,
    seeds: Sequence[int] | None = None,
) -> list[tuple[str, int, str]]:
    """Every cell and seed with its state: "done", "failed", "running", "changed" or "to do"."""
    runs = _Runs(Place(Cells(cells_dir), Work(work), None), Results(results), lambda line: None)
    return [(task.cell.name, task.seed, runs.state(task)) for task in runs.tasks(cells, seeds)]


class _Runs:
    """A list of cells on its way."""

    def __init__(self, place: Place, results: Results, say: Say) -> None:
        self.place = place
        self.cells, self.work = place.cells, place.work
        self.results = results
        self.say = say
        self.begun = time.time()
        self.origin = {"commit": provenance.commit(), "command": provenance.command()}

    def tasks(self, patterns: Iterable[str], seeds: Sequence[int] | None) -> list[Task]:
        """Seed after seed, so that all cells of a seed have the same features."""
        cells = [self.cells[name] for name in self.cells.matching(patterns)]
        tasks = [Task(cell, seed) for cell in cells for seed in (cell.seeds if seeds is None else seeds)]
        return sorted(tasks, key=lambda task: task.seed)

    def state(self, task: Task) -> str:
        """One word."""
        cell, seed = task.cell, task.seed
        if self.work.is_locked(cell.name, seed):
            return "running"
        result = self.results.read(cell.name, seed)
        if result is None:
            return "to do"
        if self.results.changes(cell.name, seed, self.cells.config(cell.name)):
            return "changed"
        return result.status

    # --- what was made with another configuration ---

    def check_changes(self, tasks: list[Task], fresh: bool) -> None:
        """Refuse, or remove, what was made with another configuration."""
        problems = []
        for task in tasks:
            cell, seed = task.cell, task.seed
            changes = self.results.changes(cell.name, seed, self.cells.config(cell.name))
            if changes and fresh:
                self.results.remove(cell.name, seed)
            elif changes:
                problems.append(f"the result of {task.name} has other settings: {'; '.join(changes)}")
            base = self.cells.base_of(cell)
            networks = {(cell.name, seed): cell}
            networks |= {(base.name, number): base for number in cell.base_seeds(seed)} if base else {}
            for (name, number), owner in networks.items():
                try:
                    check_network(self.place, owner, number)
                except ChangedError as error:
                    problem = str(error)
                    if fresh:
                        try:
                            with self.work.locked(name, number):
                                self.work.clear(name, number)
                            continue
                        except Busy:
                            problem += "; another process is working on it"
                    problems.append(problem)
        if problems:
            raise RunError(
                "\n".join(dict.fromkeys(problems))
                + "\nGive the settings back, give the cell another name, or discard the earlier work with --fresh"
            )

    # --- one after the other ---

    def all(self, tasks: list[Task], retry_failed: bool, keep_features: bool) -> Summary:
        summary = Summary()
        open_tasks = [task for task in tasks if not self.is_finished(task, retry_failed)]
        for task in tasks:
            if task not in open_tasks:
                self.pass_over(task, summary)
        parts = [f"{len(open_tasks)} of {len(tasks)} runs to do"]
        if summary.skipped:
            parts.append(f"{len(summary.skipped)} have a result")
        if summary.failed_before:
            parts.append(f"{len(summary.failed_before)} failed before, which --retry-failed tries again")
        self.say(", ".join(parts))
        self.in_turn(open_tasks, retry_failed, keep_features, summary)
        return summary

    def in_turn(self, tasks: list[Task], retry_failed: bool, keep_features: bool, summary: Summary) -> None:
        """One run after the other; those that another process is at are passed over until the next one is done."""
        place = {task.name: number for number, task in enumerate(tasks)}
        queue, put_off = deque(tasks), 0
        while queue:
            task = queue.popleft()
            try:
                self.one(task, list(queue), retry_failed, summary)
            except Busy as other:
                queue.append(task)
                put_off += 1
                if put_off >= len(queue):
                    if put_off == len(queue):
                        self.say(f"waiting for another process, which is at {other}")
                    time.sleep(WAIT)
                continue
            queue, put_off = deque(sorted(queue, key=lambda task: place[task.name])), 0
            if not keep_features:
                self.drop_features(task, list(queue))

    def is_finished(self, task: Task, retry_failed: bool) -> bool:
        """Whether a run has a result that stays."""
        result = self.results.read(task.cell.name, task.seed)
        if result is None:
            return False
        if result.done or not retry_failed:
            return True
        # What another process tried again since this one began is not tried once more.
        return self.results.path(task.cell.name, task.seed).stat().st_mtime > self.begun

    def pass_over(self, task: Task, summary: Summary) -> None:
        """Count a run that is finished already."""
        result = self.results.read(task.cell.name, task.seed)
        done = result is not None and result.done
        (summary.skipped if done else summary.failed_before).append(task.name)

    def one(self, task: Task, others: list[Task], retry_failed: bool, summary: Summary) -> None:
        """Run one cell with one seed, and write what came out."""
        cell, seed = task.cell, task.seed
        with self.work.locked(cell.name, seed):
            if self.is_finished(task, retry_failed):
                self.pass_over(task, summary)
                return
            try:
                content = self._measured(task, others)
                result = self._write(task, {"status": DONE, "error": None, **content})
            except (Busy, KeyboardInterrupt):
                raise
            except MissingDataError as error:
                summary.without_data[task.name] = str(error)
                self.say(f"{task.name}: not run, {error}")
            except Exception as error:
                self._failed(task, error, summary)
            else:
                summary.done.append(task.name)
                self.say(f"{task.name}: {headline(result)}")

    def _failed(self, task: Task, error: Exception, summary: Summary) -> None:
        """Record a failure, so that the others go on."""
        if isinstance(error, ChangedError):
            raise RunError(
                f"{error}\nGive the settings back, or discard the earlier work with --fresh"
            ) from error
        if is_disk_full(error):
            self.work.drop_features(*task.features)
        message = message_of(error, task.name, self.work.root)
        try:
            self._write(task, {"status": FAILED, "error": message, "seconds": None})
        except OSError as other:
            raise RunError(f"{task.name} failed ({message}), and that cannot be written: {other}") from other
        summary.failed[task.name] = message
        self.say(f"{task.name}: failed, {message}")

    def _write(self, task: Task, content: dict[str, Any]) -> Result:
        head = {
            "config": self.cells.config(task.cell.name),
            **self.origin,
            "environment": provenance.environment(self.place.device),
        }
        return self.results.write(task.cell.name, task.seed, {**content, **head})

    def _measured(self, task: Task, others: list[Task]) -> dict[str, Any]:
        """Fit and evaluate."""
        cell = task.cell
        shared = any(
            other.cell.needs_features and other.features == (cell.name, task.seed) for other in others
        )
        fitted = fit(self.place, cell, task.seed, use_features=shared)
        begun = time.perf_counter()
        entropy = None
        if cell.evaluation.label_entropy:
            human = self.place.images(cell).images[TEST].extras.get("human_distribution")
            entropy = label_entropy(fitted.sets, human)
        labels = [out.label for out in cell.data.out]
        record = evaluate(fitted, cell.method.kind, cell.evaluation, labels, entropy)
        training = fitted.training
        seconds = {
            "training": 0.0 if training is None else training["seconds"],
            "fit": fitted.fit_seconds,
            "evaluation": time.perf_counter() - begun,
        }
        if training is not None:
            training = {key: training[key] for key in ("history", "best_epoch")}
        return {
            "seconds": {key: round(value, 3) for key, value in seconds.items()},
            "training": training,
            **record,
        }

    def drop_features(self, task: Task, others: list[Task]) -> None:
        """Remove the features that no other run of the list needs; another process that does computes them again."""
        needed = {
            other.features
            for other in others
            if other.cell.needs_features and not self.is_finished(other, retry_failed=True)
        }
        for name, seed in {task.features, (task.cell.name, task.seed)} - needed:
            try:
                with self.work.locked(name, seed):
                    if self.work.drop_features(name, seed):
                        self.say(f"removed the features of {name}, seed {seed}")
            except Busy:
                continue
