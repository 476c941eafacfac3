"""What `Trust`, every free score and the learned rivals say of a setting's queries, and how good that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from experiments.trust.features import Arrays
from experiments.trust.settings import Setting
from laplacian_metric.core.check import as_labels
from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.metrics.statistics import auroc
from laplacian_metric.metrics.trivial import trivial_scores
from laplacian_metric.trust.calibration import Calibration, calibrate
from laplacian_metric.trust.fitting import CalibrationError, calibration_error
from laplacian_metric.trust.observed import Observed
from laplacian_metric.trust.trust import Spaces, left_out

ALPHA, EXPECTED_OOD = 0.05, 0.1
TRUST, NOVELTY = "trust", "novelty"
OWN = (TRUST, NOVELTY, "match")
MEASURES = ("R", "O", "near", "far")
# Numbers that are there anyway, all by `trivial_scores`: what the learned rivals see.
NUMBERS = {
    2: ("gallery distance", "margin"),
    3: ("gallery distance", "margin", "vote"),
    5: ("gallery distance", "margin", "vote", "kNN feature distance", "kernel vote"),
    8: (
        "gallery distance",
        "margin",
        "vote",
        "kNN feature distance",
        "kernel vote",
        "LOF",
        "class mean",
        "relative Mahalanobis",
    ),
}
LEARNED = {size: f"logistic of {size}" for size in NUMBERS}
BOOSTING = "boosting of 8"
RIVAL = LEARNED[3]  # the ten lines of scikit-learn

Scores = dict[str, NDArray[np.float64]]
Flags = NDArray[np.bool_]


# --- the inputs of all queries, computed once ---


def inputs(setting: Setting) -> Arrays:
    """Return, by part, match inputs "M:name", novelty inputs "N:name", "right", "duplicate" and free scores "S:name".

    Parts are "validation", which is calibrated on, "items" of the gallery, by which a zero-shot setting is measured,
    "test" and those of OOD queries.
    """
    arrays: Arrays = {}

    def add(part: str, observed: Observed, labels: Any = None) -> None:
        for kind, table in (("M", observed.match), ("N", observed.novelty)):
            arrays.update({f"{part}:{kind}:{name}": column for name, column in table.items()})
        arrays[f"{part}:duplicate"] = observed.duplicate
        if labels is not None:
            listed = as_labels("labels", labels, len(observed))
            assert observed.labels is not None
            arrays[f"{part}:right"] = np.array(observed.labels.tolist(), dtype=object) == np.array(
                listed, dtype=object
            )

    def free(part: str, gallery: str) -> None:
        pair = setting.h(gallery), setting.labels(gallery)
        scores = trivial_scores(pair, setting.h(part), encoder=setting.head)
        arrays.update({f"{part}:S:{name}": values.numpy() for name, values in scores.items()})

    def spaces_of(part: str) -> Spaces:
        return Spaces.of_arrays(setting.h(part), setting.labels(part), setting.head, part).viewed()

    gallery = spaces_of("gallery")
    if setting.zero_shot:
        _, labels, observed = left_out(gallery, 2000)
        add("items", observed, labels)
        sizes = np.unique(setting.labels("gallery"), return_counts=True)[1]
        arrays["class size"] = np.array(np.median(sizes))
        arrays["test:classes"] = np.unique(setting.labels("test"), return_inverse=True)[1]
    fitted_on = "calibration" if setting.zero_shot else "gallery"
    of_validation = spaces_of(fitted_on) if setting.zero_shot else gallery
    add("validation", of_validation.observe(setting.h("validation")), setting.labels("validation"))
    free("validation", fitted_on)
    for part in ("test", *setting.ood()):
        add(part, gallery.observe(setting.h(part)), setting.labels("test") if part == "test" else None)
        free(part, "gallery")
    arrays["items"] = np.array(len(setting.h("gallery")))
    return arrays


def table_of(arrays: Arrays, part: str, kind: str) -> Scores:
    """Return the columns of a part by name."""
    prefix = f"{part}:{kind}:"
    return {name[len(prefix) :]: values for name, values in arrays.items() if name.startswith(prefix)}


def observed_of(arrays: Arrays, part: str, rows: Any = slice(None)) -> Observed:
    """Return what was observed of some queries of a part; their neighbours are not kept."""
    duplicate = arrays[f"{part}:duplicate"][rows]
    none = np.zeros(len(duplicate))
    match, novelty = (
        {name: values[rows] for name, values in table_of(arrays, part, kind).items()} for kind in "MN"
    )
    nothing = Neighbours(np.zeros((len(duplicate), 1)), np.zeros((len(duplicate), 1)))
    return Observed(match, novelty, none, None, none, duplicate, nothing)


# --- from inputs to scores ---


@dataclass(frozen=True)
class Scored:
    """The scores of the queries of a setting, the greater the less sure, by the name of the part and of the score.

    Attributes:
        right: (N,), of the test queries.
        scores: of each part.
        probability: (N,), of the test queries, by the name of whoever has one.
        announced: the calibration error that was announced.
        flagged: the share of test queries that are not quite known.
    """

    right: Flags
    scores: dict[str, Scores]
    probability: Scores
    announced: CalibrationError | None
    flagged: float

    def ood(self, kind: str = "") -> list[str]:
        """Return the names of the OOD parts, "near" or "far" or all."""
        return [name for name in self.scores if name != "test" and name.startswith(kind)]

    def calibration_error(self, name: str) -> float:
        """Return that of the test queries."""
        return calibration_error(self.probability[name], self.right)


def calibration_of(arrays: Arrays, rows: Any, right: Flags | None = None) -> Calibration:
    """Return Trust's calibration on some of the validation queries, over the gallery of the setting."""
    flags = arrays["validation:right"][rows] if right is None else right
    observed = observed_of(arrays, "validation", rows)
    items = int(arrays["items"])
    fitted = calibrate(observed, flags, expected_ood=EXPECTED_OOD, alpha=ALPHA, items=items)
    if "items:right" not in arrays:
        return fitted
    of_items = observed_of(arrays, "items")
    return fitted.over(of_items, arrays["items:right"], class_size=float(arrays["class size"]), items=items)


def parts_of(arrays: Arrays) -> list[str]:
    """Return "test" and the names of the OOD parts."""
    names = dict.fromkeys(name.split(":")[0] for name in arrays if ":S:" in name)
    return [name for name in names if name != "validation"]


def scored(arrays: Arrays, rows: Any, *, rivals: bool = True) -> Scored:
    """Return what Trust says, calibrated on some of the validation queries, and what its rivals say."""
    calibration = calibration_of(arrays, rows)
    scores: dict[str, Scores] = {}
    probability: Scores = {}
    flagged = 0.0
    learned = dict(rivals_of(arrays, rows)) if rivals else {}
    for part in parts_of(arrays):
        observed = observed_of(arrays, part)
        logits = calibration.match.logit(
            np.column_stack([observed.match[n] for n in calibration.match.names])
        )
        novelty = calibration.novelty.parts(observed.novelty).sum(axis=1)
        own = calibration.probability(logits, novelty)
        scores[part] = {TRUST: -own, NOVELTY: novelty, "match": -logits}
        if rivals:
            scores[part] |= table_of(arrays, part, "S")
        for name, model in learned.items():
            answered = predicted(model, arrays, part, name)
            scores[part][name] = -answered
            if part == "test":
                probability[name] = answered
        if part == "test":
            probability[TRUST] = own
            flagged = float((calibration.novelty.known(novelty) < 1).mean())
    return Scored(arrays["test:right"], scores, probability, calibration.error, flagged)


def rivals_of(arrays: Arrays, rows: Any) -> Iterator[tuple[str, Any]]:
    """Yield the learned rivals, fitted on the same validation queries."""
    right = arrays["validation:right"][rows]
    table = table_of(arrays, "validation", "S")
    for size, name in LEARNED.items():
        x = np.column_stack([table[column][rows] for column in NUMBERS[size]])
        yield name, make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, right)
    x = np.column_stack([table[column][rows] for column in NUMBERS[8]])
    yield BOOSTING, HistGradientBoostingClassifier(random_state=0).fit(x, right)


def predicted(model: Any, arrays: Arrays, part: str, name: str) -> NDArray[np.float64]:
    """Return the probability (Q,) of a learned rival."""
    size = 8 if name == BOOSTING else next(size for size, title in LEARNED.items() if title == name)
    table = table_of(arrays, part, "S")
    answered: NDArray[np.float64] = model.predict_proba(np.column_stack([table[c] for c in NUMBERS[size]]))[
        :, 1
    ]
    return answered


# --- from scores to measures ---


def weighted(scored_queries: Scored, name: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return every measure of one score by the weights (B, N) of each part's queries, each (B,).

    "R": AUROC of wrong answers among test queries. "near", "far": AUROC of OOD queries against test queries, the mean
    over OOD sets. "O": open-set AUROC, known and OOD queries in equal weight, the mean over OOD sets.
    """
    test = torch.from_numpy(scored_queries.scores["test"][name])
    wrong = torch.from_numpy(~scored_queries.right).double()
    values = {"R": auroc(test, wrong, weights["test"])}
    detection, open_set = {}, []
    for part in scored_queries.ood():
        out = torch.from_numpy(scored_queries.scores[part][name])
        both = torch.cat([test, out])
        outside = torch.cat([torch.zeros_like(test), torch.ones_like(out)])
        detection[part] = auroc(both, outside, torch.cat([weights["test"], weights[part]], dim=-1))
        equal = [weights[side] / weights[side].sum(-1, keepdim=True) for side in ("test", part)]
        open_set.append(auroc(both, torch.cat([wrong, torch.ones_like(out)]), torch.cat(equal, dim=-1)))
    for kind in ("near", "far"):
        if parts := [detection[part] for part in scored_queries.ood(kind)]:
            values[kind] = torch.stack(parts).mean(0)
    if open_set:
        values["O"] = torch.stack(open_set).mean(0)
    return values


def measures(scored_queries: Scored, name: str) -> dict[str, float]:
    """Return every measure of one score."""
    ones = {
        part: torch.ones(1, len(scores[TRUST])).double() for part, scores in scored_queries.scores.items()
    }
    return {key: float(value[0]) for key, value in weighted(scored_queries, name, ones).items()}


def bootstrap_weights(
    scored_queries: Scored, draws: int, classes: NDArray[np.int64] | None = None
) -> dict[str, Tensor]:
    """Return how often each of ``draws`` bootstrap draws has each query; test queries by whole classes where given."""
    generator = np.random.default_rng(0)
    weights = {}
    for part, scores in scored_queries.scores.items():
        num = len(scores[TRUST])
        if part == "test" and classes is not None:
            count = classes.max() + 1
            weights[part] = generator.multinomial(count, np.full(count, 1 / count), draws)[:, classes]
        else:
            weights[part] = generator.multinomial(num, np.full(num, 1 / num), draws)
    return {part: torch.from_numpy(values).double() for part, values in weights.items()}
