"""Online LAM as the published code does it: each switch against a plain loop, and the random triplets."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.published import PAPER, PublishedOnlineLAM, Switches
from experiments.published.triplets import random_triplets
from hessians import Pairs
from laplacian_metric.core.method import Setup
from laplacian_metric.laplace.online import OnlineLAM
from laplacian_metric.methods import make
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
    running,
)
from tests.methods import learning

close = torch.testing.assert_close


def as_published(rate: float = 0.05, **options: Any) -> OnlineLAM:
    encoder = an_encoder()
    return PublishedOnlineLAM.as_published(
        encoder, torch.optim.SGD(encoder.parameters(), lr=rate), LOSS, IMAGES, **options
    )


def every_triplet(labels: Tensor) -> list[tuple[int, int, int]]:
    y = labels.tolist()
    return [
        (a, p, n) for a, p, n in itertools.permutations(range(len(y)), 3) if y[a] == y[p] and y[a] != y[n]
    ]


# --- the triplets ---


@pytest.mark.parametrize(
    "labels", [[0, 0, 1], [2, 0, 2, 0, 2, 1], [5, 5, 5], [0, 1, 2], [3], [], [1, 0, 0, 1, 1, 0, -4]]
)
def test_where_there_are_few_every_triplet_is_there_once(labels: list[int]) -> None:
    classes = torch.tensor(labels, dtype=torch.long)
    triplets = random_triplets(classes, most=1000)
    assert sorted(zip(*(index.tolist() for index in triplets), strict=True)) == sorted(every_triplet(classes))


@pytest.mark.statistical
def test_triplets_are_drawn_evenly_with_repeats() -> None:
    """Chi squared of 64 triplets at 6,400 draws: mean 63, standard deviation 11; 5 of these are allowed."""
    labels = torch.tensor([0, 1, 0, 2, 1, 0, 0])
    every = every_triplet(labels)
    drawn = [
        list(zip(*(i.tolist() for i in random_triplets(labels, 20, a_generator(seed))), strict=True))
        for seed in range(320)
    ]
    assert all(len(part) == 20 for part in drawn)
    counts = dict.fromkeys(every, 0)
    for triplet in itertools.chain.from_iterable(drawn):
        counts[triplet] += 1
    expected = 6400 / len(every)
    chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
    freedom = len(every) - 1
    assert abs(chi_squared - freedom) < 5 * math.sqrt(2 * freedom)


# --- the preset ---


def test_the_preset_is_its_plain_loop() -> None:
    """H_0 = N, H <- 0.999 H + N^2 max(0, mean curvature of the triplets), precision H + 1, a draw from the start."""
    online, encoder = as_published(), an_encoder()
    assert (online.n_effective, online.prior_precision, online.samples) == (IMAGES**2, 1.0, 1)
    generator, precision = a_generator(0), torch.full((3, 6), float(IMAGES), dtype=float64)
    for step in range(5):
        images, labels = a_batch(seed=step)
        drawn = a_draw(encoder, precision + 1, generator)
        torch.randint(2**48, (), generator=generator)
        # There are fewer than 5,000 triplets in this batch, so that they are all there.
        triplets = torch.tensor(every_triplet(labels)).T
        pairs = Pairs.from_indices(tuple(triplets), 12)
        loss = LOSS(drawn.raw(images), pairs)
        gradients = torch.autograd.grad(loss, list(drawn.parameters()))
        batch = curvature_of(drawn, images, pairs).clamp(min=0)
        precision = 0.999 * precision + IMAGES**2 * batch
        assert online.step(images, labels) == pytest.approx(float(loss.detach()), rel=1e-8)
        with torch.no_grad():
            for parameter, gradient in zip(encoder.parameters(), gradients, strict=True):
                parameter -= 0.05 * gradient
    close(1 / online.posterior().posterior.marginal_variance(), precision + 1, rtol=1e-7, atol=0)


def test_each_switch_by_itself() -> None:
    """Without learning, against what one switch makes of the same batches; every other is the corrected method's."""
    data = [a_batch(seed=at) for at in range(4)]
    encoder = an_encoder()
    own = [curvature_of(encoder, x, Pairs.from_labels(y), "full") for x, y in data]
    counts = [Pairs.from_labels(y) for _, y in data]

    def shared(at: int) -> Tensor:
        population = tuple(
            sum(getattr(p, name) for p in counts[: at + 1]) / (at + 1)
            for name in ("num_positives", "num_negatives")
        )
        return curvature_of(encoder, data[at][0], counts[at].with_population(population), "full")

    def average(parts: list[Tensor], start: float | Tensor = 0.0, share: float = 0.2) -> Tensor:
        total = torch.zeros(3, 6, dtype=float64) + start
        for part in parts:
            total = 0.8 * total + share * part
        return total

    def precision(switches: Switches) -> tuple[OnlineLAM, Tensor]:
        online = an_online(
            rate=0.0, warmup=10**6, approximation="full", kind=PublishedOnlineLAM, switches=switches
        )
        for images, labels in data:
            online.step(images, labels)
        return online, 1 / online.posterior().posterior.marginal_variance()

    parts, weight = [shared(at) for at in range(4)], 1 - 0.8**4
    assert (average(parts) < 0).any()
    expected = average(parts).clamp(min=0) / weight
    close(precision(Switches())[1], IMAGES * expected + 30)
    close(precision(Switches(scale="squared"))[1], IMAGES**2 * expected + 30)
    relu = average([part.clamp(min=0) for part in parts]) / weight
    assert float(relu.sum()) > 1.05 * float(expected.sum())
    close(precision(Switches(relu_per_batch=True))[1], IMAGES * relu + 30)
    close(precision(Switches(memory="sum"))[1], IMAGES * average(parts, share=1.0).clamp(min=0) + 30)
    for start, number in (("prior", 30.0), ("images", 500.0), (70.0, 70.0)):
        begun = IMAGES * average(parts, start=number / IMAGES).clamp(min=0) + 30
        close(precision(Switches(start=start))[1], begun)
    mined = [
        curvature_of(encoder, x, Pairs.from_indices(tuple(torch.tensor(every_triplet(y)).T), 12), "full")
        for x, y in data
    ]
    close(precision(Switches(mined=10**6))[1], IMAGES * average(mined).clamp(min=0) / weight + 30)
    assert not torch.allclose(mined[0], own[0], rtol=0.05)


def test_a_batch_without_triplets_changes_no_weight() -> None:
    online = as_published()
    before = online.encoder.fingerprint()
    for labels in (torch.zeros(5, dtype=torch.long), torch.arange(5)):
        assert online.step(a_batch(5)[0], labels) == 0
    assert online.encoder.fingerprint() == before


# --- the paper's form ---


def test_the_sum_of_the_paper_grows_to_the_average_over_its_memory() -> None:
    """H_0 = prior, H <- (1-a) H + H_batch, and the prior where it is used."""
    share = 0.05
    online = an_online(
        rate=0.0,
        warmup=10**6,
        memory=share,
        kind=PublishedOnlineLAM,
        switches=PAPER,
        approximation="positive",
    )
    images, labels = a_batch()
    batch = curvature_of(an_encoder(), images, Pairs.from_labels(labels), "positive").clamp(min=0)
    close(running(online), torch.full((3, 6), 30.0 / IMAGES, dtype=float64))
    for _ in range(400):
        online.step(images, labels)
    precision = 1 / online.posterior().posterior.marginal_variance()
    close(precision, IMAGES * batch / share + 30, rtol=1e-6, atol=0)


# --- the method ---

online_laplace = partial(make, "online-laplace")
SETUP = Setup(LOSS, num_images=IMAGES, weight_decay=1e-3)


def test_the_method_as_published_is_the_preset() -> None:
    learner = make("online-laplace", preset="published").learner([an_encoder()], SETUP)
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.05)
    learner.begin(optimizer, a_generator(0))
    online, losses = as_published(), [learning.step(learner, *a_batch(seed=seed)) for seed in range(4)]
    assert losses == [online.step(*a_batch(seed=seed)) for seed in range(4)]
    assert learner.posterior().prior_precision == 1.0


@pytest.mark.parametrize("options", [{"preset": "published"}, {"defects": ("mined",)}])
def test_triplets_do_not_go_with_other_pairs(options: dict[str, Any]) -> None:
    setup = Setup(LOSS, num_images=5, pairs=lambda u, labels: Pairs.from_labels(labels))
    with pytest.raises(ValueError, match="random triplets as in the published code"):
        make("online-laplace", **options).learner([an_encoder()], setup)


@pytest.mark.parametrize(
    ("made", "options", "named"),
    [
        (an_online, {"kind": PublishedOnlineLAM, "memory": "paper", "switches": Switches()}, "switches"),
        (an_online, {"kind": PublishedOnlineLAM, "miner": print, "switches": Switches(mined=5)}, "miner"),
        (Switches, {"scale": "big"}, "scale"),
        (Switches, {"memory": "long"}, "memory"),
        (Switches, {"start": "zero"}, "start"),
        (Switches, {"start": -1.0}, "start"),
        (Switches, {"mined": 0}, "mined"),
        (online_laplace, {"memory": "paper", "preset": "published"}, "preset"),
        (online_laplace, {"preset": "paper"}, "preset"),
        (online_laplace, {"defects": ("scael",)}, "scael"),
        (online_laplace, {"defects": ("scale",), "preset": "published"}, "preset"),
        (online_laplace, {"memory": 2.0, "preset": "published"}, "memory"),
    ],
)
def test_a_wrong_option_is_named(made: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        made(**options)
