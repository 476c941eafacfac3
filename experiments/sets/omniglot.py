"""Omniglot: handwritten characters of 50 alphabets, 28 x 28; the evaluation alphabets are for testing."""

from __future__ import annotations

import numpy as np
import torch

from experiments.sets.lookup import find
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.splits import STANDARD, Split, part_of_classes
from laplacian_metric.data import DataSetInfo, Request

INFO = DataSetInfo(
    name="omniglot",
    title="Omniglot",
    layout="omniglot/omniglot-28.npz (arrays images, character, alphabet, drawer, evaluation, alphabets)",
    page="https://github.com/brendenlake/omniglot",
    obtain="28 x 28 by box average from the published 105 x 105, ink bright",
    licence="MIT, copyright 2015 Brenden Lake",
    citation="Lake, Salakhutdinov, Tenenbaum: Human-level concept learning through probabilistic program induction, "
    "2015",
    splits=(*STANDARD, Split.ALL),
)


def read(request: Request, validation_share: float = 0.2) -> Dataset:
    """Return a split; classes are characters.

    `extras["alphabet"]` and `extras["drawer"]` (N,) are what and who it is, both counted from 0.

    Args:
        validation_share: how many characters of the 30 background alphabets are for validation, at even steps.
    """
    path = find(request, ("omniglot", "."), ["omniglot-28.npz"]) / "omniglot-28.npz"
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    labels = arrays["character"].astype(np.int64) - 1
    background, evaluation = (np.unique(labels[arrays["evaluation"] == part]) for part in (False, True))
    chosen = part_of_classes(background, evaluation, request.split, validation_share)
    rows = np.flatnonzero(np.isin(labels, chosen))
    alphabet, first = arrays["alphabet"].astype(np.int64), np.unique(labels, return_index=True)[1]
    names = [f"{arrays['alphabets'][alphabet[row]]} {labels[row] + 1}" for row in first]
    return Dataset(
        torch.from_numpy(arrays["images"][rows][:, None]),
        labels[rows],
        class_names=tuple(names),
        indices=torch.from_numpy(rows),
        extras={
            "alphabet": torch.from_numpy(alphabet[rows]),
            "drawer": torch.from_numpy(arrays["drawer"][rows].astype(np.int64) - 1),
        },
    )
