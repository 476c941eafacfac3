"""What each of two processes does: fit its share of the images, and run into errors that only one of them has."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hessians import ContrastiveLoss
from hessians.checks import CurvatureWarning
from laplacian_metric import LAM
from laplacian_metric.core.parallel import all_sum, watched
from tests.laplace.fit_reference import STRUCTURES, Layer, images_of, network

PROCESSES = 2
SHARDS = [torch.arange(0, 19), torch.arange(19, 30)]
# "full" and "clipped" go by batches of this size; one rank has three of them, the other two.
BATCH = 7
CASES = [
    (structure, approximation)
    for structure in STRUCTURES
    for approximation in ("fixed", "positive", "full", "clipped")
    if (structure, approximation) != ("kron", "full")
]


def layer() -> Layer:
    return Layer.random(30, 4, 2, classes=4, seed=3)


def lam(structure: str = "diag", approximation: str = "fixed") -> LAM:
    return LAM(network(layer()), ContrastiveLoss(0.9), approximation, structure, rank=3)


def summary(fitted: LAM) -> dict[str, Any]:
    fitted.prior_precision = None
    e = fitted.embed_features(layer().features)
    return {
        **{name: value for name, value in vars(fitted.fitted).items() if name != "curvature"},
        "tensors": fitted.fitted.curvature.tensors(),
        "diagonal": fitted.fitted.curvature.diagonal(),
        "kappa": e.kappa,
        "prior": fitted.optimize_prior_precision(),
        "steps": fitted.diagnostics().steps_to_mode,
    }


def fit_shards(rank: int) -> dict[str, Any]:
    """Every case, with generators that differ."""
    whole, rows = layer(), SHARDS[rank]
    summaries = {}
    for structure, approximation in CASES:
        posterior = lam(structure, approximation).fit_features(
            whole.features[rows],
            whole.labels[rows],
            batches=list(torch.arange(len(rows)).split(BATCH)),
            generator=torch.Generator().manual_seed(rank),
        )
        summaries[f"{structure} {approximation}"] = summary(posterior)
    return summaries


def fit_loader(rank: int, folder: Path) -> dict[str, Any]:
    """Twice, from images: the second time from the features that the first has left."""
    posterior, whole, rows = lam(), layer(), SHARDS[rank]
    images = images_of(whole, posterior.encoder)[rows]
    batches = list(zip(images.split(BATCH), whole.labels[rows].split(BATCH), strict=True))
    summaries = {"first": summary(posterior.fit(batches, cache=folder / "features"))}
    summaries["again"] = summary(posterior.fit(batches, cache=folder / "features"))
    return summaries


def one_class(rank: int) -> dict[str, Any]:
    """The first process has all classes, the second one of them."""
    whole = layer()
    rows = torch.arange(20) if rank == 0 else (whole.labels[20:] == 1).nonzero().flatten() + 20
    return summary(lam().fit_features(whole.features[rows], whole.labels[rows]))


def other_width(rank: int) -> None:
    whole, rows = layer(), SHARDS[rank]
    lam().fit_features(whole.features[rows][:, : 4 - rank], whole.labels[rows])


def no_images(rank: int) -> None:
    whole, rows = layer(), SHARDS[rank][: 100 * (1 - rank)]
    lam().fit_features(whole.features[rows], whole.labels[rows])


def broken_loader(rank: int) -> None:
    posterior, whole = lam(), layer()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield images_of(whole, posterior.encoder)[SHARDS[rank]], whole.labels[SHARDS[rank]]
        if rank:
            raise OSError("the disk is gone")

    posterior.fit(batches())


def other_encoder(rank: int) -> None:
    posterior, whole, rows = lam(), layer(), SHARDS[rank]
    posterior.encoder.head.bias.data.add_(rank)
    posterior.fit_features(whole.features[rows], whole.labels[rows])


def no_direction(rank: int) -> None:
    posterior, whole, rows = lam(), layer(), SHARDS[rank]
    posterior.encoder.head.bias.data.zero_()
    features = whole.features[rows].clone()
    features[2] *= 1 - rank
    posterior.fit_features(features, whole.labels[rows])


FAILURES: dict[str, Callable[[int], None]] = {
    "other width": other_width,
    "no images": no_images,
    "no direction": no_direction,
    "broken loader": broken_loader,
    "other encoder": other_encoder,
}


def failures(rank: int) -> dict[str, str]:
    messages = {}
    for name, run in FAILURES.items():
        try:
            run(rank)
            messages[name] = "no error"
        except Exception as error:
            messages[name] = f"{type(error).__name__}: {error}"
    return messages


def all_pairs(rank: int, processes: int) -> dict[str, Any]:
    """Every structure of "fixed" over all pairs of all processes, and an estimate."""
    results = {}
    for structure in (*STRUCTURES, "estimate"):
        estimated = structure == "estimate"
        whole = Layer.random(6000 if estimated else 31, 4, 2, classes=40 if estimated else 4, seed=3)
        rows = torch.arange(len(whole.labels)).tensor_split(processes)[rank]
        posterior = LAM(
            network(whole),
            ContrastiveLoss(0.9),
            structure="diag" if estimated else structure,
            rank=3,
            pairs="estimate" if estimated else "auto",
        )
        generator = torch.Generator().manual_seed(rank)
        posterior.fit_features(
            whole.features[rows],
            whole.labels[rows],
            generator=generator,
            pair_tolerance=0.5,
            check_mode=False,
        )
        results[structure] = summary(posterior)
    return results


def start(rank: int, folder: Path, processes: int, seconds: int = 30) -> None:
    """Join the group of a test."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CurvatureWarning)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=processes,
        timeout=timedelta(seconds=seconds),
    )


def all_pairs_of(rank: int, folder: Path, processes: int) -> None:
    """Write what `all_pairs` returns into a file."""
    start(rank, folder, processes)
    torch.save(all_pairs(rank, processes), folder / f"{rank}.pt")
    dist.destroy_process_group()


def disappear(rank: int, folder: Path, processes: int, how: str) -> None:
    """Process 1 is killed, or fails, while the others wait for it; they write what they raise, and after how long."""
    start(rank, folder, processes, seconds=600)
    begun = time.monotonic()
    try:
        with watched():
            all_sum(torch.ones(1))
            if rank == 1:
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError("the disk is gone")
            all_sum(torch.ones(1))
    except Exception as error:
        torch.save((f"{type(error).__name__}: {error}", time.monotonic() - begun), folder / f"{rank}.pt")
    os._exit(0)


def main(rank: int, folder: Path) -> None:
    """Write what this process found into a file."""
    start(rank, folder, PROCESSES)
    outcomes = {
        "shards": fit_shards(rank),
        "loader": fit_loader(rank, folder),
        "one class": one_class(rank),
        "failures": failures(rank),
    }
    torch.save(outcomes, folder / f"{rank}.pt")
    dist.destroy_process_group()
