"""Numbers of embeddings and uncertainties that somebody else computed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.harness.suites.judging import GALLERY, IMAGE, GalleryScores, Searched, retrieval_numbers
from experiments.harness.suites.leaderboard import Row, row_of
from experiments.harness.suites.measuring import compared_intervals
from experiments.harness.suites.sets import UNSEEN
from laplacian_metric.core.check import check, unit_rows
from laplacian_metric.metrics.evaluation import OWN

NEEDED = ("embeddings", "labels", "uncertainty")
MINE, VALIDATION = "yours", "validation_"


@dataclass(frozen=True, eq=False)
class Submission:
    """Embeddings (N, Z) of unseen classes with labels (N,) and uncertainties (N,), and the same of validation classes.

    The validation images calibrate the scores of image and gallery; without them these are left out.
    """

    embeddings: Tensor
    labels: Tensor
    uncertainty: Tensor
    validation: Submission | None = None

    @staticmethod
    def read(path: Path) -> Submission:
        """Return what a file holds.

        Args:
            path: an .npz with "embeddings", "labels" and "uncertainty", and optionally the same three with
                "validation_" before the name.

        Raises:
            ValueError: an array is missing, has another shape, or has a number that is not finite.
        """
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        try:
            with np.load(path, allow_pickle=False) as content:
                arrays = {name: content[name] for name in content.files}
        except (ValueError, OSError, EOFError, AttributeError) as error:
            raise ValueError(
                f"{path.name} is no .npz file of plain arrays: write it with numpy.savez"
            ) from error
        one = _checked(arrays, "")
        if any(name.startswith(VALIDATION) for name in arrays):
            return replace(one, validation=_checked(arrays, VALIDATION))
        return one

    def searched(self) -> Searched:
        """Return the neighbourhoods of all embeddings."""
        return Searched.of(self.embeddings, self.labels)


def _checked(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Submission:
    missing = [prefix + name for name in NEEDED if prefix + name not in arrays]
    if missing:
        raise ValueError(
            f"the file has no array {', '.join(missing)}; it has: {', '.join(arrays) or 'nothing'}"
        )
    embeddings, labels, uncertainty = (prefix + name for name in NEEDED)
    rows = check(embeddings, arrays[embeddings], "N Z")
    unsure = check(uncertainty, arrays[uncertainty], "N", N=len(rows))
    if arrays[labels].shape != (len(rows),):
        raise ValueError(f"{labels} has shape {arrays[labels].shape} for {len(rows)} embeddings")
    _, codes, counts = np.unique(arrays[labels], return_inverse=True, return_counts=True)
    if len(counts) < 2 or counts.min() < 2:
        raise ValueError(f"{labels} needs at least two classes with two images each")
    return Submission(
        torch.from_numpy(unit_rows(embeddings, rows)),
        torch.from_numpy(codes.astype(np.int64)),
        torch.from_numpy(unsure.astype(np.float64)),
    )


def judge(
    submission: Submission, title: str = MINE, resamples: int = 200
) -> tuple[dict[str, Any], list[Row]]:
    """Return the numbers of a submission, and its rows.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> z = torch.nn.functional.normalize(torch.randn(40, 4, generator=generator))
        >>> one = Submission(z, torch.arange(40) % 4, torch.rand(40, generator=generator))
        >>> record, rows = judge(one, resamples=20)
        >>> rows[0].score, rows[0].recall["scores"] == record["sets"]["unseen/scores"]["recall@1"]
        ('own', True)
    """
    searched, name, own = submission.searched(), f"{UNSEEN}scores", submission.uncertainty
    both: dict[str, Tensor] = {}
    if (validation := submission.validation) is not None:
        both = GalleryScores.fit(validation.searched(), validation.uncertainty)(searched, own)
    intervals = {name: compared_intervals(searched, own, both, resamples)} if resamples else {}
    record: dict[str, Any] = {
        "score": OWN,
        "labels": hashlib.sha256(submission.labels.numpy().tobytes()).hexdigest()[:12],
        "groups": {**dict.fromkeys(both, GALLERY), OWN: IMAGE},
        "sets": {name: retrieval_numbers(searched, {OWN: own, **both})},
        "intervals": intervals,
        "image": {},
        "ms": {},
        "parameters": float("nan"),
    }
    base = Row(MINE, title, title, OWN, IMAGE, rule="none: the numbers come from a file", seeds=1)
    wanted = [(OWN, IMAGE), *((score, GALLERY) for score in both)]
    return record, [row_of(replace(base, score=score, group=group), [record]) for score, group in wanted]
