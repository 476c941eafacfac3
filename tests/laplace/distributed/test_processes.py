"""A fit by two processes is the fit of one that has the images of both, and what fails in one stops both."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.laplace.distributed.worker import (
    BATCH,
    CASES,
    PROCESSES,
    SHARDS,
    all_pairs,
    all_pairs_of,
    disappear,
    lam,
    layer,
    main,
    summary,
)

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
def outcomes(folder: Path) -> Found:
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
def test_shards_are_batches_of_one_fit(outcomes: Found, structure: str, approximation: str) -> None:
    first, second = (each["shards"][f"{structure} {approximation}"] for each in outcomes)
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


def test_a_loader_for_each(outcomes: Found, folder: Path) -> None:
    """Without batches "fixed" is over all pairs of both processes; features are kept in a folder for each."""
    first, second = (each["loader"] for each in outcomes)
    assert_identical(first, second)
    assert_identical(first["first"], first["again"])
    whole = layer()
    alone = summary(lam().fit_features(whole.features, whole.labels))
    for name in ("num_images", "diagonal", "kappa", "prior", "loss_value"):
        close(first["first"][name], alone[name])
    names = sorted(each.name for each in (folder / "features").iterdir())
    assert names == ["process-0-of-2", "process-1-of-2"]


def test_a_process_with_one_class(outcomes: Found) -> None:
    first, second = (each["one class"] for each in outcomes)
    assert_identical(first, second)
    whole = layer()
    shards = [torch.arange(20), (whole.labels[20:] == 1).nonzero().flatten() + 20]
    rows = torch.cat(shards)
    alone = summary(lam().fit_features(whole.features[rows], whole.labels[rows]))
    close(first["diagonal"], alone["diagonal"])
    assert first["num_positives"] == alone["num_positives"]


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow), 4])
def test_all_pairs_of_all_processes(processes: int, tmp_path: Path) -> None:
    """Exact and estimated, and in every structure: up to rounding what one process gets from all images."""
    torch.multiprocessing.spawn(all_pairs_of, (tmp_path, processes), nprocs=processes)
    expected = all_pairs(0, 1)
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(processes)]
    for result in results:
        assert_identical(result, results[0])
    for name, alone in expected.items():
        tolerance = 0.05 if "lowrank" in name else 1e-9
        for key in (
            "loss_value",
            "gradient",
            "diagonal",
            "curvature_error",
            "num_positives",
            "num_negatives",
        ):
            one, other = torch.as_tensor(results[0][name][key]), torch.as_tensor(alone[key])
            close(one, other, rtol=tolerance, atol=tolerance * float(other.abs().max()) + 1e-15)
    assert expected["estimate"]["curvature_error"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "fails"])
def test_who_is_gone_is_named(how: str, tmp_path: Path) -> None:
    """The others end within seconds, and say who it was."""
    context = torch.multiprocessing.spawn(disappear, (tmp_path, 3, how), nprocs=3, join=False)
    begun = time.monotonic()
    for process in context.processes:
        process.join(60)
    assert time.monotonic() - begun < 60  # the group's own time-out is ten minutes here
    for rank in (0, 2):
        message, seconds = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert message.startswith("OtherProcessError: process 1 of 3 (")
        assert ("no sign of life" if how == "killed" else "OSError: the disk is gone") in message
        assert seconds < 30


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("other width", "ValueError: features has 3 columns, the encoder's head takes 4"),
        ("no images", "ValueError: there is 0 image"),
        ("no direction", "ValueError: 1 of 11 embeddings have no direction, the first is row 2"),
        ("broken loader", "OSError: the disk is gone"),
    ],
)
def test_an_error_of_one_stops_both(outcomes: Found, case: str, message: str) -> None:
    """Nobody waits for a sum that never comes."""
    assert outcomes[0]["failures"][case] == "OtherProcessError: process 1 of 2 cannot go on: see its error"
    assert outcomes[1]["failures"][case].startswith(message)


def test_encoders_that_differ(outcomes: Found) -> None:
    for each in outcomes:
        failures = each["failures"]["other encoder"]
        assert failures.startswith("OtherProcessError: the processes do not fit the same")
    assert outcomes[0]["failures"]["other encoder"] != outcomes[1]["failures"]["other encoder"]
