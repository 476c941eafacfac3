"""Numbers for the match risk: they are what they say, and what is chosen is chosen on validation classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments import url_small_match as match
from experiments.harness.suites.judging import Searched


def some(seed: int, items: int = 240) -> match.Numbers:
    """Return numbers of noisy classes; the uncertainty is the noise of the image, of which each class has its own."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.arange(items) % 24
    centres = torch.randn(24, 8, generator=generator)
    noise = (0.2 + 1.5 * torch.rand(24, generator=generator))[classes]
    z = centres[classes] + noise[:, None] * torch.randn(items, 8, generator=generator)
    uncertainty = (noise + torch.randn(items, generator=generator)).double().numpy()
    searched = Searched.of(torch.nn.functional.normalize(z), classes)
    return match.Numbers.of(searched, uncertainty, np.sort(uncertainty))


def test_the_numbers_are_those_of_loops() -> None:
    numbers = some(0, 120)
    place = numbers.searched.around.z
    ids = np.asarray(place.neighbours.ids)
    rank = numbers.columns[match.UNCERTAINTY]
    assert set(numbers.columns) == set(match.SIGNS)
    for image in range(0, 120, 7):
        nearest, ten = ids[image, 0], set(ids[image, :10])
        values = {name: column[image] for name, column in numbers.columns.items()}
        assert values["mean uncertainty of the 10 nearest"] == pytest.approx(
            np.mean([rank[item] for item in ten])
        )
        assert values["uncertainty of the nearest"] == rank[nearest]
        assert values["among the 10 nearest of its nearest"] == (image in ids[nearest, :10])
        shared = ten & {*ids[nearest, :10], nearest}
        assert values["shared by its 10 nearest and the nearest's"] == len(shared)


def test_numbers_are_added_while_validation_classes_gain() -> None:
    validation = [some(seed) for seed in (1, 2)]
    taken, tried = match.selected(validation)
    assert taken[:3] == list(match.THREE)
    assert tried[tuple(taken)] >= tried[match.THREE] + match.LEAST_GAIN * (len(taken) - 3)
    last = max(value for names, value in tried.items() if len(names) == len(taken) + 1)
    assert last < tried[tuple(taken)] + match.LEAST_GAIN
    rows = match.table({"frozen": [(one, some(9)) for one in validation]}, taken, tried)
    measured = [row for row in rows if row["unseen"] != "not measured"]
    assert len(measured) == 2 + (len(taken) > 3)
    assert len(rows) == len(tried)
    assert all(row["seeds"] == 2 for row in measured)
