"""What `Trust` and every free rival say of a setting's queries, and how good that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.trust.settings import Setting
from laplacian_metric import metrics
from laplacian_metric.metrics.statistics import auroc
from laplacian_metric.trust import Trust
from laplacian_metric.trust.calibration import calibration_error

Scores = dict[str, NDArray[np.float64]]
PROBABILITY, NOVELTY = "trust", "novelty"


@dataclass(frozen=True)
class Scored:
    """The scores of the queries of a setting, the greater the less sure, by the name of the part and of the score."""

    right: NDArray[np.bool_]
    scores: dict[str, Scores]
    error: dict[str, float]  # the calibration error that was announced, and what it was
    flagged: float

    def ood(self, kind: str = "") -> list[str]:
        """Return the names of the OOD parts, "near" or "far" or all."""
        return [name for name in self.scores if name != "test" and name.startswith(kind)]


def fitted(setting: Setting, rows: NDArray[np.int64] | slice) -> Trust:
    """Return the `Trust` that is calibrated on some of the validation queries, over the setting's gallery."""
    gallery = "calibration" if setting.zero_shot else "gallery"
    trust = Trust.fit(
        (setting.parts[f"{gallery}:h"], setting.labels(gallery)),
        (setting.h("validation")[rows], setting.labels("validation")[rows]),
        encoder=setting.head,
    )
    if not setting.zero_shot:
        return trust
    return trust.with_gallery(setting.parts["gallery:h"], setting.labels("gallery"))


def rivals(setting: Setting, part: str) -> Scores:
    """Return the free scores of the queries of a part."""
    scores = metrics.trivial_scores(
        (setting.parts["gallery:h"], setting.labels("gallery")),
        setting.h(part),
        encoder=setting.head,
    )
    return {name: values.numpy() for name, values in scores.items()}


def scored(setting: Setting, trust: Trust, free: dict[str, Scores]) -> Scored:
    """Return all scores; ``free`` has those of `rivals` by part."""
    answers = {part: trust(setting.h(part)) for part in free}
    right = np.array(answers["test"].labels) == setting.labels("test")
    scores = {
        part: {
            PROBABILITY: -answer.probability,
            NOVELTY: answer.novelty,
            "match": -answer.match,
            "known": -answer.known,
            **free[part],
        }
        for part, answer in answers.items()
    }
    announced = trust.calibration_error
    assert announced is not None
    probability = answers["test"].probability
    error = {
        "announced": announced.value,
        "low": announced.low,
        "high": announced.high,
        "test": calibration_error(probability, right),
        "Brier": float(np.mean((probability - right) ** 2)),
    }
    return Scored(right, scores, error, float((answers["test"].known < 1).mean()))


def as_tensor(values: Any) -> Tensor:
    """Return numbers in float64."""
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


def weighted(found: Scored, name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return every measure of one score by the weights (B, N) of each part's queries, each (B,).

    "R": AUROC of wrong answers among test queries. "S", "near", "far": AUROC of OOD queries against test queries, the
    mean over OOD sets. "O": open-set AUROC, the mean over OOD sets.
    """
    test = as_tensor(found.scores["test"][name])
    wrong = as_tensor(~found.right)
    values = {"R": auroc(test, wrong, weights["test"])}
    detection, open_set = {}, {}
    for part in found.ood():
        out = as_tensor(found.scores[part][name])
        both = torch.cat([test, out])
        outside = torch.cat([torch.zeros_like(test), torch.ones_like(out)])
        every = torch.cat([weights["test"], weights[part]], dim=-1)
        detection[part] = auroc(both, outside, every)
        in_equal_parts = torch.cat(
            [weights[name] / weights[name].sum(-1, keepdim=True) for name in ("test", part)], dim=-1
        )
        open_set[part] = auroc(both, torch.cat([wrong, torch.ones_like(out)]), in_equal_parts)
    for label, kind in (("S", ""), ("near", "near"), ("far", "far")):
        parts = [detection[part] for part in found.ood(kind)]
        if parts:
            values[label] = torch.stack(parts).mean(0)
    values["O"] = torch.stack(list(open_set.values())).mean(0)
    return values


def ones(found: Scored) -> dict[str, Tensor]:
    """Return the weights of the measures themselves."""
    return {
        part: torch.ones(1, len(scores[NOVELTY]), dtype=torch.float64)
        for part, scores in found.scores.items()
    }


def measures(found: Scored, name: str) -> dict[str, float]:
    """Return every measure of one score."""
    values = {key: float(value[0]) for key, value in weighted(found, name, ones(found)).items()}
    return values | {
        "error at 40 %": mixture_error(found, name),
        "error at 80 %": answered_error(found, name),
    }


def answered_error(found: Scored, name: str, share: float = 0.8) -> float:
    """Return the share of wrong answers among the surest of the test queries."""
    order = np.argsort(found.scores["test"][name], kind="stable")
    return float((~found.right)[order[: round(share * len(order))]].mean())


def mixture_error(found: Scored, name: str, share: float = 0.4) -> float:
    """Return the share of wrong answers among the surest of a mixture that is half OOD, the mean over OOD sets."""
    errors = []
    for part in found.ood():
        test, out = found.scores["test"][name], found.scores[part][name]
        wrong = np.append(~found.right, np.ones(len(out), dtype=bool))
        weights = np.append(np.full(len(test), 0.5 / len(test)), np.full(len(out), 0.5 / len(out)))
        order = np.argsort(np.append(test, out), kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        taken = np.clip(share - before, 0, weights[order])
        errors.append(float((taken * wrong[order]).sum() / share))
    return float(np.mean(errors))
