"""Learning rates by hand, optimizers as they were asked for, miners beside the library's own losses."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.reducers import MeanReducer
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric.training import TrainingOptions, pair_choice, train
from laplacian_metric.training.options import learning_rate, make_optimizer
from tests.training.cases import Case, clusters, plain


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": "constant"}, [2.0, 2.0, 2.0, 2.0]),
        ({"schedule": "constant", "warmup_epochs": 3}, [0.5, 1.0, 1.5, 2.0]),
        ({"schedule": "exponential", "decay": math.log(2)}, [2.0, 1.0, 0.5, 0.25]),
        ({"schedule": "exponential", "decay": 0.0}, [2.0, 2.0, 2.0, 2.0]),
        ({"schedule": "exponential", "decay": math.log(2), "warmup_epochs": 1}, [1.0, 2.0, 1.0, 0.5]),
        ({"schedule": "cosine"}, [2.0, 1.5, 0.5, 0.0]),  # (1 + cos 60 degrees)/2 = 3/4
        ({"schedule": "cosine", "final_share": 0.2}, [2.0, 1.6, 0.8, 0.4]),
        ({"schedule": "cosine", "warmup_epochs": 1}, [1.0, 2.0, 1.0, 0.0]),
        ({"schedule": "cosine", "epochs": 1}, [2.0]),
        ({"schedule": "cosine", "epochs": 2, "warmup_epochs": 2}, [2 / 3, 4 / 3]),
        ({"schedule": "step"}, [2.0, 2.0, 0.2, 0.02]),
        ({"schedule": "step", "epochs": 5}, [2.0, 2.0, 2.0, 0.2, 0.02]),
        ({"schedule": "step", "warmup_epochs": 1}, [1.0, 2.0, 0.2, 0.02]),
    ],
)
def test_learning_rates(options: dict[str, Any], expected: list[float], tmp_path: Any) -> None:
    chosen = TrainingOptions(**{"epochs": 4, "learning_rate": 2.0, "batch_size": 40, **options})
    assert [learning_rate(chosen, epoch) for epoch in range(chosen.epochs)] == pytest.approx(
        expected, abs=1e-12
    )
    learner = plain()
    history = train(learner, clusters(), clusters(20), chosen, tmp_path).history
    assert [entry["learning_rate"] for entry in history] == pytest.approx(expected, abs=1e-12)
    assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(expected[-1], abs=1e-12)


@pytest.mark.parametrize(
    ("name", "kind", "momentum"),
    [
        ("rmsprop", torch.optim.RMSprop, 0.8),
        ("sgd", torch.optim.SGD, 0.8),
        ("adam", torch.optim.Adam, None),
        ("adamw", torch.optim.AdamW, None),
    ],
)
def test_optimizers_are_those_of_torch(name: str, kind: type, momentum: float | None) -> None:
    options = TrainingOptions(
        optimizer=name,  # type: ignore[arg-type]
        learning_rate=0.3,
        weight_decay=0.02,
        momentum=momentum or 0.0,
    )
    layers = nn.Linear(2, 2), nn.Linear(2, 2)
    layers[1].bias.requires_grad_(False)
    trained = [p for layer in layers for p in layer.parameters() if p.requires_grad]
    optimizer = make_optimizer(options, iter(trained))
    settings = {"lr": 0.3, "weight_decay": 0.02, **({"momentum": momentum} if momentum else {})}
    expected = kind(trained, **settings)
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    (other,) = expected.param_groups
    assert {k: v for k, v in group.items() if k != "params"} == {
        k: v for k, v in other.items() if k != "params"
    }
    assert [id(p) for p in group["params"]] == [id(p) for p in trained]


MINERS: list[tuple[str, dict[str, Any]]] = [
    ("MultiSimilarityMiner", {"epsilon": 0.3}),
    ("TripletMarginMiner", {"margin": 0.2, "type_of_triplets": "semihard"}),
    ("PairMarginMiner", {"pos_margin": 0.1, "neg_margin": 0.9}),
    ("BatchHardMiner", {}),
    ("UniformHistogramMiner", {"num_bins": 10, "pos_per_bin": 3, "neg_per_bin": 3}),
]


@pytest.mark.parametrize(("name", "settings"), MINERS)
def test_mined_pairs_have_the_loss_that_the_library_gives_them(name: str, settings: dict[str, Any]) -> None:
    """Its contrastive loss with squared distances is twice ours: ours has squares divided by two."""
    options = TrainingOptions(miner=name, miner_options=tuple(settings.items()))
    labels = clusters(24).labels
    u = 3 * torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)  # of the miner that draws
    pairs = pair_choice(options)(u.clone().requires_grad_(), labels)
    torch.manual_seed(0)
    mined = getattr(miners, name)(**settings)(nn.functional.normalize(u), labels)
    assert len(mined[0])
    theirs = losses.ContrastiveLoss(
        pos_margin=0.0, neg_margin=0.7**2, distance=LpDistance(power=2), reducer=MeanReducer()
    )
    rows = u.double().requires_grad_()
    expected = theirs(rows, labels, mined) / 2
    loss = ContrastiveLoss(margin=0.7)(rows, pairs)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-9)
    ours, their = (torch.autograd.grad(value, rows, retain_graph=True)[0] for value in (loss, expected))
    torch.testing.assert_close(ours, their, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", ["deterministic", "mc-dropout", "online-laplace"])
def test_a_miner_that_finds_nothing_stops_no_training(method: str, tmp_path: Any) -> None:
    """Distances of unit vectors are at most 2: nothing is further apart than 3, nor closer than 0."""
    nothing = {"miner": "PairMarginMiner", "miner_options": (("pos_margin", 3.0), ("neg_margin", 0.0))}
    case = Case(method, {}, {**nothing, "epochs": 2})
    learner = case.learner()
    before = [parameter.detach().clone() for parameter in learner.module.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = train(learner, clusters(), clusters(20), case.training_options(), tmp_path).history
    assert [entry["loss"] for entry in history] == [0.0, 0.0]
    assert all(torch.equal(a, b) for a, b in zip(before, learner.module.parameters(), strict=True))
