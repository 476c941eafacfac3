"""Numbers of embeddings and uncertainties that somebody else computed, and of models that were trained elsewhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.harness.single import bound_to
from experiments.harness.suites.fitting import Fitted
from experiments.harness.suites.judging import GALLERY, IMAGE, GalleryScores, Searched, retrieval_numbers
from experiments.harness.suites.leaderboard import Row, row_of
from experiments.harness.suites.measuring import compared_intervals, measured
from experiments.harness.suites.sets import UNSEEN, VALIDATION, TrackSets
from experiments.harness.suites.suite import Entry, Suite
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.methods.laplace.embedder import LAMEmbedder
from laplacian_metric.metrics.evaluation import OWN

NEEDED = ("embeddings", "labels", "uncertainty")
MINE = "yours"


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
        validation = None
        if any(name.startswith("validation_") for name in arrays):
            validation = _checked(path, arrays, "validation_")
        one = _checked(path, arrays, "")
        return Submission(one.embeddings, one.labels, one.uncertainty, validation)

    def digest(self) -> str:
        """Return twelve letters that stand for the labels in their order."""
        return hashlib.sha256(self.labels.numpy().tobytes()).hexdigest()[:12]

    def searched(self) -> Searched:
        """Return the neighbourhoods of all embeddings."""
        return Searched.of(self.embeddings, self.labels)


def _checked(path: Path, arrays: dict[str, Any], prefix: str) -> Submission:
    missing = [prefix + name for name in NEEDED if prefix + name not in arrays]
    if missing:
        raise ValueError(
            f"{path.name} has no array {', '.join(missing)}; it has: {', '.join(arrays) or 'nothing'}. Needed are "
            "embeddings (N, Z), labels (N,) and uncertainty (N,)"
        )
    embeddings, labels, uncertainty = (np.asarray(arrays[prefix + name]) for name in NEEDED)
    if embeddings.ndim != 2 or embeddings.dtype.kind not in "fiu":
        raise ValueError(
            f"{prefix}embeddings is {embeddings.dtype} {embeddings.shape}: floats (N, Z) are needed"
        )
    for name, values in (("labels", labels), ("uncertainty", uncertainty)):
        if values.shape != embeddings.shape[:1]:
            raise ValueError(
                f"{prefix}{name} has shape {values.shape} for {len(embeddings)} embeddings: one for each is needed"
            )
    for name, values in (("embeddings", embeddings), ("uncertainty", uncertainty)):
        if values.dtype.kind not in "fiu":
            raise ValueError(f"{prefix}{name} is {values.dtype}: numbers are needed")
        bad = ~np.isfinite(values.reshape(len(values), -1)).all(1)
        if bad.any():
            raise ValueError(
                f"{prefix}{name} has a number that is not finite in row {int(bad.argmax())}: mend it"
            )
    codes = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    counts = np.bincount(codes)
    if len(counts) < 2 or counts.min() < 2:
        raise ValueError(
            f"{prefix}labels has {len(counts)} classes, the smallest with {min(counts, default=0)} images: needed are "
            "at least two classes with two images each"
        )
    norms = np.linalg.norm(embeddings.astype(np.float64), axis=1)
    if not norms.all():
        raise ValueError(
            f"{prefix}embeddings is 0 in row {int((norms == 0).argmax())}, which has no direction"
        )
    unit = torch.from_numpy((embeddings / norms[:, None]).astype(np.float32))
    return Submission(unit, torch.from_numpy(codes), torch.from_numpy(uncertainty.astype(np.float64)))


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
    searched, name = submission.searched(), f"{UNSEEN}scores"
    both: dict[str, Tensor] = {}
    if submission.validation is not None:
        both = GalleryScores.fit(submission.validation.searched(), submission.validation.uncertainty)(
            searched, submission.uncertainty
        )
    record: dict[str, Any] = {
        "score": OWN,
        "labels": submission.digest(),
        "groups": {**dict.fromkeys(both, GALLERY), OWN: IMAGE},
        "sets": {name: retrieval_numbers(searched, {OWN: submission.uncertainty, **both})},
        "intervals": {name: compared_intervals(searched, submission.uncertainty, both, resamples)}
        if resamples
        else {},
        "image": {},
        "ms": {},
        "parameters": float("nan"),
    }
    base = Row(MINE, title, title, OWN, IMAGE, rule="none: the numbers come from a file", seeds=1)
    wanted = [(OWN, IMAGE), *((score, GALLERY) for score in both)]
    listed = [
        row_of(Row(base.track, title, title, score, group, rule=base.rule, seeds=1), [record])
        for score, group in wanted
    ]
    return record, listed


def judge_model(
    folder: Path,
    suite: Suite,
    track: str,
    work: Path,
    data_dir: Path | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Return the numbers of a model folder on a track's sets, with images as the model takes them.

    Raises:
        ValueError: the model takes features, so that it cannot embed the images of the suite.
    """
    model = ModelFolder.load(folder)
    if model.preparation is None:
        raise ValueError(
            f"{folder} takes features and no images: pass a model that `lam fit` or `lam train` made of images"
        )
    size, channels = model.preparation.image_size, model.preparation.channels
    place = suite.tracks[track]
    changed = {
        "image_size": size or place.image_size,
        "channels": channels or place.channels,
        "network": place.network.model_copy(update={"frozen": True}),
    }
    sets = TrackSets(place.model_copy(update=changed), data_dir, work, progress, model=model)
    head = Encoder(nn.Identity(), model.lam.encoder.head, normalize=model.lam.encoder.normalize)
    fitted = Fitted(LAMEmbedder(bound_to(model.lam, head)), head, 0.0, 0.0)
    entry = Entry.model_validate(
        {"title": folder.name, "tracks": (track,), "method": {"name": "laplace"}, "base": MINE}
    )
    record, _ = measured(fitted, entry, sets, suite.resamples)
    return {**record, "validation": sets.digest(VALIDATION)}
