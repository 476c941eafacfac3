"""Online Laplace as a method: the same as an OnlineLAM by hand, resumable to the bit, and unsure where it should be."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from hessians import Pairs
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.online import OnlineLAM
from laplacian_metric.methods.laplace.online import OnlineLaplace, OnlineLaplaceLearner
from tests.generators import seeded
from tests.laplace.online_cases import LOSS, a_batch, an_encoder
from tests.methods.learning import step

float64 = torch.float64
SETUP = Setup(LOSS, num_images=500, weight_decay=1e-3)


def an_optimizer(encoder: Encoder) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(encoder.parameters(), lr=1e-2, weight_decay=1e-3)


def a_learner(method: OnlineLaplace, setup: Setup = SETUP) -> OnlineLaplaceLearner:
    return method.learner([an_encoder()], setup)


def train(learner: OnlineLaplaceLearner, seeds: range) -> list[float]:
    return [step(learner, *a_batch(seed=seed)) for seed in seeds]


def some_triplets(u: Tensor, labels: Tensor) -> Pairs:
    """A small list of pairs, which depends on the embeddings."""
    furthest = (u[:1] - u).norm(dim=1).argmax()
    one = torch.zeros(1, dtype=torch.long)
    return Pairs.from_indices((one, one + 1, furthest[None]), len(u))


NOTHING = FitData([], [])


@pytest.mark.parametrize(
    ("options", "by_hand"),
    [
        ({"warmup": 2, "memory": 0.1}, {"warmup": 2, "memory": 0.1}),
        (
            {"approximation": "positive", "samples": 2, "temperature": 0.1, "warmup": 0, "n_effective": 50.0},
            {"approximation": "positive", "samples": 2, "temperature": 0.1, "warmup": 0, "n_effective": 50.0},
        ),
        ({"memory": "paper", "prior_precision": 20.0}, {"memory": "paper", "prior_precision": 20.0}),
    ],
)
def test_it_does_what_an_online_lam_does(options: dict[str, Any], by_hand: dict[str, Any]) -> None:
    learner = a_learner(OnlineLaplace(**options))
    optimizer = an_optimizer(learner.encoder)
    learner.begin(optimizer, seeded(5))
    encoder = an_encoder()
    plain = an_optimizer(encoder)
    online = OnlineLAM(encoder, plain, LOSS, 500, generator=seeded(5), **by_hand)
    assert train(learner, range(8)) == [online.step(*a_batch(seed=seed)) for seed in range(8)]
    e = learner.embedder(NOTHING).embed(a_batch(seed=9)[0])
    assert torch.equal(e.kappa, online.posterior().embed(a_batch(seed=9)[0]).kappa)


@pytest.mark.parametrize("restored_first", [True, False])
def test_a_resumed_training_goes_on_to_the_bit(restored_first: bool) -> None:
    method = OnlineLaplace(warmup=1, memory=0.1)
    learner = a_learner(method)
    optimizer, generator = an_optimizer(learner.encoder), seeded(5)
    learner.begin(optimizer, generator)
    train(learner, range(4))
    kept = copy.deepcopy((learner.module.state_dict(), optimizer.state_dict(), learner.state()))
    drawn = generator.get_state()
    assert all(isinstance(value, Tensor) for value in kept[2].values())
    expected = train(learner, range(4, 8))

    again = a_learner(method)
    again.module.load_state_dict(kept[0])
    new = an_optimizer(again.encoder)
    new.load_state_dict(kept[1])
    other = seeded(77)
    if restored_first:
        again.restore(kept[2])
        assert set(again.state()) == set(kept[2])
        again.begin(new, other)
    else:
        again.begin(new, other)
        again.restore(kept[2])
    other.set_state(drawn)
    assert train(again, range(4, 8)) == expected
    for name, value in learner.state().items():
        assert torch.equal(value, again.state()[name])


@pytest.mark.parametrize("memory", [None, "paper"])
def test_a_checkpoint_embeds_without_an_optimizer(memory: Literal["paper"] | None) -> None:
    method = OnlineLaplace(memory=memory)
    learner = a_learner(method)
    optimizer = an_optimizer(learner.encoder)
    learner.begin(optimizer, seeded())
    train(learner, range(3))
    again = a_learner(method)
    again.module.load_state_dict(learner.module.state_dict())
    again.restore(learner.state())
    x = a_batch(seed=9)[0]
    one, other = learner.embedder(NOTHING), again.embedder(NOTHING)
    assert one.settings() == other.settings()
    assert one.settings()["prior_precision"] == 0.5
    assert torch.equal(one.embed(x).kappa, other.embed(x).kappa)


def test_pairs_of_the_setup_are_trained_on_and_all_are_curved() -> None:
    setup = Setup(LOSS, num_images=500, pairs=some_triplets)
    learner = a_learner(OnlineLaplace(), setup)
    learner.begin(an_optimizer(learner.encoder), seeded())
    images, labels = a_batch(seed=0)
    labels[:2] = 0
    u = learner.encoder.raw(images)
    expected = LOSS(u, some_triplets(nn.functional.normalize(u), labels))
    torch.testing.assert_close(learner.loss(images, labels), expected)
    counts = Pairs.from_labels(labels)
    assert float(learner.state()["positives"]) == counts.num_positives
    assert float(learner.state()["negatives"]) == counts.num_negatives


def test_a_batch_that_is_not_finite_leaves_the_state_alone() -> None:
    learner = a_learner(OnlineLaplace())
    learner.begin(an_optimizer(learner.encoder), seeded())
    images, labels = a_batch(seed=0)
    images[3] = torch.nan
    with pytest.raises((ValueError, FloatingPointError)):
        learner.loss(images, labels)
    assert int(learner.state()["steps"]) == 0
