"""Runs a suite part by part: chooses settings, measures the chosen ones, and goes on where it was interrupted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from experiments.harness import provenance
from experiments.harness.config import differences
from experiments.harness.runner import Say, Summary, message_of
from experiments.harness.suites.fitting import Fitted, Fitting, Part
from experiments.harness.suites.leaderboard import Row
from experiments.harness.suites.measuring import chosen_by, measured
from experiments.harness.suites.sets import VALIDATION, TrackSets
from experiments.harness.suites.submission import Submission, judge
from experiments.harness.suites.suite import Suite
from experiments.harness.work import RunError, read_json, write_json
from experiments.sets.lookup import MissingDataError
from laplacian_metric.core import tensor_file
from laplacian_metric.core.checked import finite, near

LOGGER = logging.getLogger(__name__)

WORK, PARTS, ADDED, SCORES = "work", "parts", "added", "scores.safetensors"
V1, V2 = "V1", "V2"
CHOICES = {
    V1: "R-AUROC on validation classes of the training data, among settings with enough recall@1",
    V2: "mean R-AUROC on these and on the choice sets of the other data",
}


@dataclass(frozen=True)
class Choice:
    """Which setting of an entry is taken by a rule, and why the usual rule did not apply, where it did not."""

    setting: int
    note: str = ""


class Benchmark:
    """A suite on its way in a folder.

    Args:
        suite: what is run.
        out: keeps networks and features in "work", and a file for every part in "parts".
        data_dir: the folder of the data sets; None looks where `data.load` does.
        tracks, entries, seeds: those that are run; None takes all. What they start from is run too, and so are the
            settings that are tried with the first seed.
        progress: whether to show bars; None asks the terminal.
        say: is told what happens, line by line.
    """

    def __init__(
        self,
        suite: Suite,
        out: Path,
        data_dir: Path | None = None,
        *,
        tracks: Sequence[str] | None = None,
        entries: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        progress: bool | None = None,
        say: Say = lambda line: None,
    ) -> None:
        self.suite = suite
        self.out = out
        self.tracks = list(suite.tracks if tracks is None else tracks)
        self.entries = list(suite.entries if entries is None else entries)
        self.seeds = list(suite.seeds) if seeds is None else [seed for seed in suite.seeds if seed in seeds]
        if unknown := sorted(set(seeds or ()) - set(suite.seeds)):
            suite_seeds = ", ".join(map(str, suite.seeds))
            raise ValueError(f"the suite {suite.name} has no seed {unknown[0]}; it has {suite_seeds}")
        for name in self.tracks:
            if name not in suite.tracks:
                raise ValueError(f"the suite {suite.name} has no track {name!r}; {near(name, suite.tracks)}")
        for name in self.entries:
            suite.entry(name)
        self.say = say
        self.sets = {
            name: TrackSets(track, data_dir, out / WORK / "features" / name, progress)
            for name, track in suite.tracks.items()
        }
        self.fitting = Fitting(
            suite, self.sets, out / WORK, lambda track, entry: self.choose(track, entry, V1).setting, progress
        )
        self.origin = {"commit": provenance.commit(), "environment": provenance.environment()}
        self._fitted: tuple[Part, Fitted] | None = None
        self._choices: dict[tuple[str, str, str], Choice] = {}

    # --- what there is to do ---

    def plan(self) -> list[tuple[Part, bool]]:
        """Return the parts that have no file yet, each with whether it is for choosing a setting.

        Where settings are not chosen yet, the parts of the first one stand for those of the one that will be.
        """
        return [
            (part, choosing) for part, choosing in self._all() if not self._file(part, choosing).is_file()
        ]

    def announcement(self) -> str:
        """Return how much there is to do."""
        missing = self.plan()
        trials = sum(choosing for _, choosing in missing)
        return (
            f"{len(missing)} parts to do: {trials} settings to try and {len(missing) - trials} parts to measure. "
            f"Everything done is kept in {self.out}."
        )

    def _all(self) -> Iterator[tuple[Part, bool]]:
        for track in self.tracks:
            for seed in self.seeds:
                for entry in self._of_track(track):
                    settings = range(len(self.suite.entry(entry).settings))
                    if seed == self.seeds[0]:
                        yield from ((Part(track, entry, s, self.suite.seeds[0]), True) for s in settings)
                    if seed == self.suite.seeds[0] or not self.suite.entry(entry).slow:
                        is_chosen = all(
                            self._file(Part(track, entry, s, self.suite.seeds[0]), True).is_file()
                            for s in settings
                        )
                        yield (
                            Part(
                                track, entry, self.choose(track, entry, V1).setting if is_chosen else 0, seed
                            ),
                            False,
                        )

    def _of_track(self, track: str) -> list[str]:
        return [name for name in self.suite.of_track(track) if name in self.entries]

    # --- one after the other ---

    def run(self) -> Summary:
        """Run what is missing; a part that fails is recorded and leaves the others alone.

        Raises:
            RunError: another process runs the track, there is no space left, or files are of other settings.
            MissingDataError: a data set is not there.
        """
        summary = Summary()
        for track in self.tracks:
            with self._locked(track):
                for name in self.sets[track].names():
                    self.sets[track].images(
                        name
                    )  # what is missing is said now, and not after hours of training
                for seed in self.seeds:
                    for entry in self._of_track(track):
                        if seed == self.suite.seeds[0] or not self.suite.entry(entry).slow:
                            self._entry(track, entry, seed, summary)
        return summary

    def _entry(self, track: str, entry: str, seed: int, summary: Summary) -> None:
        name = f"{track}, {entry}, seed {seed}"
        try:
            rules = CHOICES if seed == self.suite.seeds[0] else [V1]  # V2 stands beside, with one seed
            for setting in sorted({self.choose(track, entry, rule).setting for rule in rules}):
                self._measure(Part(track, entry, setting, seed))
        except (RunError, MissingDataError):
            raise
        except Exception as error:
            summary.failed[name] = message_of(error, name, self.out)
            self.say(f"{name}: failed, {summary.failed[name]}")
        else:
            summary.done.append(name)

    def choose(self, track: str, entry: str, rule: str) -> Choice:
        """Return the setting that a rule takes, by parts with the first seed; those that are missing are run."""
        key = (track, entry, rule)
        if key not in self._choices:
            numbers = [
                self._chosen_by(Part(track, entry, setting, self.suite.seeds[0]))
                for setting in range(len(self.suite.entry(entry).settings))
            ]
            least = 0.0
            if entry != self.suite.reference and self.suite.reference in self.suite.of_track(track):
                reference = self.choose(track, self.suite.reference, V1).setting
                content = self._chosen_by(Part(track, self.suite.reference, reference, self.suite.seeds[0]))
                least = self.suite.least_recall * content[VALIDATION]["recall@1"]
            has_own = self.suite.entry(entry).method.kind.has_uncertainty
            self._choices[key] = choice_of(numbers, rule, least, has_own)
        return self._choices[key]

    def _chosen_by(self, part: Part) -> dict[str, dict[str, float]]:
        def compute() -> dict[str, Any]:
            fitted = self._fit(part)
            entry = self.suite.entry(part.entry)
            return {
                "sets": chosen_by(fitted, entry, self.sets[part.track]),
                "seconds": fitted.training_seconds,
            }

        sets: dict[str, dict[str, float]] = self._kept(part, True, compute)["sets"]
        return sets

    def _measure(self, part: Part) -> dict[str, Any]:
        def compute() -> dict[str, Any]:
            entry = self.suite.entry(part.entry)
            record, scores = measured(self._fit(part), entry, self.sets[part.track], self.suite.resamples)
            place = part.place(self.out / WORK)
            place.mkdir(parents=True, exist_ok=True)
            tensor_file.save(place / SCORES, scores)
            return record

        return self._kept(part, False, compute)

    def _fit(self, part: Part) -> Fitted:
        """Return the embedder of a part; the last one is kept, since it may be measured after it was chosen."""
        if self._fitted is None or self._fitted[0] != part:
            self._fitted = None
            self._fitted = part, self.fitting.fit(part)
        return self._fitted[1]

    def _kept(self, part: Part, choosing: bool, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the content of a part's file, which is computed first where it is missing."""
        path, identity = self._file(part, choosing), self._identity(part)
        content = read_json(path)
        if content is None:
            content = {"of": identity, **compute(), **self.origin}
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, finite(content))
            self.say(f"{part}: {'tried' if choosing else 'measured'}")
            return read_json(path) or {}
        if changes := differences(content.get("of", {}), identity):
            raise RunError(
                f"{path.name} of {part} is of other settings: {'; '.join(changes[:3])}. Take another folder for --out, "
                f"or remove {path.parent.name}"
            )
        return content

    def _identity(self, part: Part) -> dict[str, Any]:
        entry = self.suite.entry(part.entry)
        return {
            "suite": self.suite.name,
            "version": self.suite.version,
            **self.suite.options(part.track, part.entry, part.setting).plain(),
            "base": entry.base,
            "score": entry.score,
        }

    def _file(self, part: Part, choosing: bool) -> Path:
        place = part.place(self.out / PARTS)
        return place.with_name(place.name + (".choice.json" if choosing else ".json"))

    @contextmanager
    def _locked(self, track: str) -> Iterator[None]:
        self.out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.out / f".{track}.lock")
        try:
            with lock.acquire(timeout=0):
                yield
        except Timeout:
            raise RunError(
                f"another process runs the track {track} in {self.out}: wait, or take another --out"
            ) from None

    # --- numbers of others ---

    def add_scores(self, path: Path) -> list[Row]:
        """Judge a file of embeddings, labels and uncertainties, and keep its rows."""
        record, listed = judge(Submission.read(path), path.stem, self.suite.resamples)
        place = self.out / ADDED / f"{path.stem}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        rows = [asdict(row) for row in listed]
        write_json(place, finite({"rows": rows, "file": path.name, **record, **self.origin}))
        return listed

    def added(self) -> list[Row]:
        """Return the rows that `add_scores` kept."""
        contents = [read_json(path) or {} for path in sorted((self.out / ADDED).glob("*.json"))]
        return [Row(**_with_nan(row)) for content in contents for row in content["rows"]]

    # --- what came out ---

    def results(self) -> dict[str, Any]:
        """Return everything that is measured so far, with the choices, as plain values.

        Parts that are missing are listed as "not run"; nothing is computed.
        """
        tracks: dict[str, Any] = {}
        for track in self.suite.tracks:
            entries = {entry: self._result(track, entry) for entry in self.suite.of_track(track)}
            if any(entry["seeds"] for entry in entries.values()):
                tracks[track] = {"title": self.suite.tracks[track].title, "entries": entries}
        return {
            "suite": self.suite.name,
            "version": self.suite.version,
            "title": self.suite.title,
            "choices": CHOICES,
            **self.origin,
            "digests": {track: self.digests(track) for track in tracks},
            "tracks": tracks,
        }

    def digests(self, track: str) -> dict[str, str]:
        """Return what stands for the images of every set of a track."""
        sets = self.sets[track]
        return {
            name: sets.digest(name) for name in sets.names() if "corrupted" not in name and name != "cropped"
        }

    def _result(self, track: str, name: str) -> dict[str, Any]:
        entry, first = self.suite.entry(name), self.suite.seeds[0]
        tried = [
            read_json(self._file(Part(track, name, setting, first), True))
            for setting in range(len(entry.settings))
        ]
        result: dict[str, Any] = {
            "title": entry.title,
            "method": entry.method.model_dump(),
            "score": entry.score,
            "settings": [
                {"options": setting, **({} if one is None else {"sets": one["sets"]})}
                for setting, one in zip(entry.settings, tried, strict=True)
            ],
            "chosen": {},
            "seeds": {},
        }
        if any(one is None for one in tried):
            return result
        for rule in CHOICES:
            choice = self.choose(track, name, rule)
            result["chosen"][rule] = {"setting": choice.setting, "note": choice.note}
            for seed in self.suite.seeds:
                content = read_json(self._file(Part(track, name, choice.setting, seed), False))
                if content is not None:
                    kept = {key: value for key, value in content.items() if key not in ("of", "environment")}
                    result["seeds"].setdefault(rule, {})[str(seed)] = kept
        return result


def choice_of(
    numbers: Sequence[dict[str, dict[str, float]]], rule: str, least: float, has_uncertainty: bool
) -> Choice:
    """Return the setting that a rule takes from the numbers of each; the first among equals.

    Args:
        numbers: of each setting, by set, "recall@1" and "r_auroc".
        rule: "V1" takes the R-AUROC on validation classes, "V2" the mean over all sets.
        least: the recall@1 on validation classes that is needed.
        has_uncertainty: whether the method has any; without it recall@1 decides.

    Example:
        >>> worse = {"validation": {"recall@1": 0.2, "r_auroc": 0.7}, "choice/x": {"recall@1": 0.2, "r_auroc": 0.9}}
        >>> better = {"validation": {"recall@1": 0.4, "r_auroc": 0.6}, "choice/x": {"recall@1": 0.2, "r_auroc": 0.5}}
        >>> choice_of([worse, better], "V1", 0.3, True).setting, choice_of([worse, better], "V2", 0.0, True).setting
        (1, 0)
    """
    recalls = [one[VALIDATION]["recall@1"] for one in numbers]
    best_recall = max(range(len(numbers)), key=lambda setting: recalls[setting])
    if not has_uncertainty:
        return Choice(best_recall, "by recall@1: the method has no uncertainty of its own")
    enough = [setting for setting, recall in enumerate(recalls) if recall >= least]
    if not enough:
        return Choice(best_recall, f"by recall@1: no setting reaches {least:.3f} of it on validation classes")

    def detection(setting: int) -> float:
        names = [VALIDATION] if rule == V1 else list(numbers[setting])
        values = [numbers[setting][name]["r_auroc"] for name in names]
        defined = [value for value in values if value is not None and value == value]
        return sum(defined) / len(defined) if defined else -1.0

    return Choice(max(enough, key=detection))


def _with_nan(row: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a row, with NaN where `finite` left None."""
    return {key: float("nan") if value is None else value for key, value in row.items()}
