"""What is said about scores, beside the metrics and other libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from experiments.harness import provenance
from experiments.harness.measurements import trivial_scores
from experiments.harness.provenance import failure
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.encoder import Encoder


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_trivial_scores_go_by_batches_and_by_every_fifth_training_image() -> None:
    encoder = Encoder(nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 3))
    train, test = drawn(23, 6), drawn(11, 6, seed=1)
    sets = {"test": Dataset(test, torch.arange(11), batch_size=4)}
    scores = trivial_scores(encoder, sets, Dataset(train, torch.arange(23), batch_size=4))
    with torch.no_grad():
        h, u = encoder.features(test), encoder.raw(test)
        reference = encoder(train[::5])
    assert torch.allclose(scores["feature norm"]["test"], h.norm(dim=1))
    assert torch.allclose(scores["embedding norm"]["test"], 1 / u.norm(dim=1))
    expected = torch.cdist(nn.functional.normalize(u), reference).amin(1)
    assert torch.allclose(scores["nearest distance"]["test"].float(), expected, atol=1e-5)


# --- result files ---


def test_failures_name_places_of_the_sources_and_no_folder() -> None:
    with pytest.raises(ValueError, match="labels has") as caught:
        Dataset(torch.zeros(3, 2), torch.zeros(2, dtype=torch.long))
    said = failure(caught.value)
    assert str(provenance.ROOT) not in said
    with pytest.raises(OSError, match=r"x\.bin") as missing:
        Path("/nowhere/at/all/x.bin").read_bytes()
    assert "/nowhere" not in failure(missing.value)
    assert "x.bin" in failure(missing.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/opt/a/b.txt is gone", "b.txt is gone"),
        ("see figures/results/x.json", "see figures/results/x.json"),
        ("at /a/b/c: no", "at c: no"),
        ("ratio 1/2/3 of https://a.org/b/c", "ratio 1/2/3 of https://a.org/b/c"),
        (r"in C:\Users\me\net.pt", "in net.pt"),
        ("~/data/set is missing", "set is missing"),
    ],
)
def test_of_absolute_paths_the_last_part_is_left(text: str, expected: str) -> None:
    assert provenance.without_paths(text) == expected
