"""A fit by two processes is the fit of one that has the images of both, and what fails in one stops both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from laplacian_metric.core.parallel import check_agreement, own_folder, reducer, together
from tests.laplace.distributed.worker import BATCH, CASES, PROCESSES, SHARDS, lam, layer, main, summary

pytestmark = [
    pytest.mark.filterwarnings("ignore::hessians.checks.CurvatureWarning"),
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()), reason="torch has no gloo here"
    ),
]
close = torch.testing.assert_close
Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """What each process found, all in one start of the two."""
    torch.multiprocessing.spawn(main, (folder,), nprocs=PROCESSES)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(PROCESSES)]


def assert_identical(one: dict[str, Any], other: dict[str, Any]) -> None:
    """To the bit: whoever embeds, embeds alike."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, dict):
            assert_identical(value, other[name])
        elif isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name


@pytest.mark.parametrize(("structure", "approximation"), CASES)
def test_shards_are_batches_of_one_fit(found: Found, structure: str, approximation: str) -> None:
    first, second = (each["shards"][f"{structure} {approximation}"] for each in found)
    assert_identical(first, second)
    whole = layer()
    batches = [part for shard in SHARDS for part in shard.split(BATCH)]
    generator = torch.Generator().manual_seed(0)
    alone = summary(
        lam(structure, approximation).fit_features(
            whole.features, whole.labels, batches=batches, generator=generator
        )
    )
    for name in ("num_images", "num_batches", "num_positives", "num_negatives", "fingerprint"):
        assert first[name] == alone[name], name
    # The subspace of "lowrank" starts elsewhere, and where eigenvalues lie close it has not converged.
    tolerance = 0.05 if structure == "lowrank" else 1e-9
    for name in ("loss_value", "gradient", "diagonal", "kappa", "prior", "steps"):
        close(first[name], alone[name], rtol=tolerance, atol=tolerance * 1e-3)


def test_a_loader_for_each(found: Found, folder: Path) -> None:
    """Without batches "fixed" is over all pairs of a process; features are kept in a folder for each."""
    first, second = (each["loader"] for each in found)
    assert_identical(first, second)
    assert_identical(first["first"], first["again"])
    whole = layer()
    alone = summary(lam().fit_features(whole.features, whole.labels, batches=SHARDS))
    for name in ("num_images", "diagonal", "kappa", "prior", "loss_value"):
        close(first["first"][name], alone[name])
    names = sorted(each.name for each in (folder / "features").iterdir())
    assert names == ["process-0-of-2", "process-1-of-2"]


def test_a_process_with_one_class(found: Found) -> None:
    first, second = (each["one class"] for each in found)
    assert_identical(first, second)
    whole = layer()
    shards = [torch.arange(20), (whole.labels[20:] == 1).nonzero().flatten() + 20]
    rows = torch.cat(shards)
    parts = list(torch.arange(len(rows)).split([20, len(shards[1])]))
    alone = summary(lam().fit_features(whole.features[rows], whole.labels[rows], batches=parts))
    close(first["diagonal"], alone["diagonal"])
    assert first["num_positives"] == alone["num_positives"]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("other width", "ValueError: features has 3 columns, the encoder's head takes 4"),
        ("no images", "ValueError: there is 0 image"),
        ("no direction", "ValueError: 1 of 11 embeddings have no direction, the first is row 2"),
        ("broken loader", "OSError: the disk is gone"),
    ],
)
def test_an_error_of_one_stops_both(found: Found, case: str, message: str) -> None:
    """Nobody waits for a sum that never comes."""
    assert found[0]["failures"][case] == "OtherProcessError: another process cannot go on: see its error"
    assert found[1]["failures"][case].startswith(message)


def test_encoders_that_differ(found: Found) -> None:
    for each in found:
        told = each["failures"]["other encoder"]
        assert told.startswith(
            "OtherProcessError: the processes do not fit the same: this one has structure 'diag'"
        )
    assert found[0]["failures"]["other encoder"] != found[1]["failures"]["other encoder"]


def test_one_process() -> None:
    assert reducer() is None
    assert own_folder() == ""
    check_agreement(None, "anything")
    with pytest.raises(OSError, match="mine"), together(None):
        raise OSError("mine")
