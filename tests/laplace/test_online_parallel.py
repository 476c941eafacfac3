"""Online LAM in two processes: one posterior, that of a step whose batch has two shards."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from experiments.published import PublishedOnlineLAM, Switches
from hessians import Pairs
from laplacian_metric.core.parallel import OtherProcessError
from laplacian_metric.encoder import Encoder
from tests.laplace.online_cases import (
    IMAGES,
    LOSS,
    a_batch,
    a_draw,
    a_generator,
    an_encoder,
    an_online,
    curvature_of,
    float64,
)

STEPS = 4
close = torch.testing.assert_close


def shard(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Of other sizes, and with other shares of positives, in each process."""
    return a_batch(8 + 6 * rank, 2 + 2 * rank, seed=10 * step + rank)


def work(rank: int, port: int, folder: str) -> None:
    """What one process does; its findings go into a file."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    # Another generator in each process: that of process 0 counts.
    online = an_online(generator=a_generator(rank))
    for step in range(STEPS):
        online.step(*shard(step, rank))
    outcomes: dict[str, Any] = {
        "weights": [parameter.detach().clone() for parameter in online.encoder.parameters()],
        "running": online.state_dict()["running"],
        "variance": online.posterior().posterior.marginal_variance(),
    }
    outcomes["nan"] = refusal(online, rank)
    outcomes["after"] = [parameter.detach() for parameter in online.encoder.parameters()]
    outcomes["encoder"] = disagreement(encoder=an_encoder(seed=rank))
    outcomes["memory"] = disagreement(memory=0.1 + 0.1 * rank)
    inner = an_encoder()
    wrapped = Encoder(DistributedDataParallel(inner.backbone), inner.head)
    ddp = an_online(encoder=wrapped, generator=a_generator(rank))
    for step in range(STEPS):
        ddp.step(*shard(step, rank))
    outcomes["ddp"] = [parameter.detach() for parameter in ddp.encoder.parameters()]
    outcomes["mined"], outcomes["triplets"] = mined_run(rank)
    torch.save(outcomes, Path(folder) / f"{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


def refusal(online: Any, rank: int) -> str:
    """Images with a NaN in process 1 alone: both refuse the step, and go on together afterwards."""
    images, labels = shard(9, rank)
    if rank == 1:
        images[0, 0] = torch.nan
    before = online.encoder.fingerprint()
    try:
        online.step(images, labels)
    except (ValueError, OtherProcessError) as error:
        assert online.encoder.fingerprint() == before
        online.step(*shard(8, rank))
        return str(error)
    return "nothing was raised"


def disagreement(**options: Any) -> str:
    """Of an OnlineLAM that is another one in process 1."""
    try:
        an_online(**options)
    except OtherProcessError as error:
        return str(error)
    return "nothing was raised"


def mined_run(rank: int) -> tuple[list[Tensor], Tensor]:
    """With a step in the middle that process 1 refuses before it has drawn its triplets; weights, and the triplets of
    one and the same batch."""
    online = an_online(generator=a_generator(rank), kind=PublishedOnlineLAM, switches=Switches(mined=6))
    for step in range(STEPS):
        online.step(*shard(step, rank))
        refusal(online, rank)
    images, labels = shard(0, 0)
    pairs = Pairs.from_labels(labels)
    u = online.encoder.raw(images).detach()
    online.generator = a_generator(0)
    mined, _ = online._chosen_pairs(u, pairs, labels)
    first, second, times = next(mined.listed(positive=False))
    triplets = torch.stack([first, second, times])
    return [parameter.detach() for parameter in online.encoder.parameters()], triplets


def one_process() -> tuple[Encoder, Tensor]:
    """The same two shards as two batches of one step: counts and curvatures added up, gradients averaged."""
    encoder, generator = an_encoder(), a_generator(0)
    average, totals = torch.zeros(3, 6, dtype=float64), [0.0, 0.0]
    for step in range(STEPS):
        drawn = encoder
        if step:
            drawn = a_draw(encoder, IMAGES * (average / (1 - 0.8**step)).clamp(min=0) + 30.0, generator)
        data = [shard(step, rank) for rank in (0, 1)]
        pairs = [Pairs.from_labels(labels) for _, labels in data]
        totals[0] += sum(p.num_positives for p in pairs)
        totals[1] += sum(p.num_negatives for p in pairs)
        population = (totals[0] / (step + 1), totals[1] / (step + 1))
        batch = sum(
            curvature_of(drawn, images, p.with_population(population))
            for (images, _), p in zip(data, pairs, strict=True)
        )
        average = 0.8 * average + 0.2 * batch
        loss = torch.stack(
            [LOSS(drawn.raw(images), p) for (images, _), p in zip(data, pairs, strict=True)]
        ).mean()
        gradients = torch.autograd.grad(loss, list(drawn.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(encoder.parameters(), gradients, strict=True):
                parameter -= 0.05 * gradient
    return encoder, IMAGES * (average / (1 - 0.8**STEPS)).clamp(min=0) + 30.0


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this build of torch has no gloo")
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(work, args=(port, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def test_both_have_one_posterior_which_is_that_of_two_shards(outcomes: list[dict[str, Any]]) -> None:
    first, second = outcomes
    for part in ("weights", "running", "variance"):
        close(first[part], second[part], rtol=0, atol=0)
    encoder, precision = one_process()
    close(first["weights"], [p.detach() for p in encoder.parameters()], rtol=1e-9, atol=1e-11)
    close(1 / first["variance"], precision, rtol=1e-8, atol=1e-8)


def test_what_one_cannot_use_all_refuse(outcomes: list[dict[str, Any]]) -> None:
    assert "process 1 of 2 cannot go on" in outcomes[0]["nan"]
    close(outcomes[0]["after"], outcomes[1]["after"], rtol=0, atol=0)
    assert "step 5: 1 of 14 embeddings have NaN or infinite entries" in outcomes[1]["nan"]


@pytest.mark.parametrize("what", ["encoder", "memory"])
def test_processes_that_differ_are_refused_by_all(outcomes: list[dict[str, Any]], what: str) -> None:
    for part in outcomes:
        assert "the processes do not fit the same" in part[what]


def test_a_wrapped_backbone_is_left_to_its_wrapper(outcomes: list[dict[str, Any]]) -> None:
    for part in outcomes:
        close(part["ddp"], outcomes[0]["weights"], rtol=1e-9, atol=1e-11)


def test_mined_triplets_differ_and_the_weights_do_not(outcomes: list[dict[str, Any]]) -> None:
    close(outcomes[0]["mined"], outcomes[1]["mined"], rtol=0, atol=0)
    # Of one batch, with generators that stand alike.
    assert not torch.equal(outcomes[0]["triplets"], outcomes[1]["triplets"])
