"""Online LAM: a run that is interrupted goes on as if it had not been; states of other runs are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments.published import PublishedOnlineLAM
from hessians import ContrastiveLoss
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.online import OnlineLAM
from tests.laplace.online_cases import LOSS, a_batch, a_generator, an_encoder, running


def adam(**options: Any) -> OnlineLAM:
    """In float32, with an optimizer that has a state."""
    encoder = an_encoder().float()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=0.01, weight_decay=1e-3)
    options = {"loss": LOSS, "memory": 0.1, "warmup": 2, **options}
    return OnlineLAM(encoder, optimizer, num_images=300, **options)


def published(**options: Any) -> OnlineLAM:
    encoder = an_encoder().float()
    optimizer = torch.optim.RMSprop(encoder.parameters(), lr=0.01)
    return PublishedOnlineLAM.as_published(encoder, optimizer, LOSS, 300, **options)


def steps(online: OnlineLAM, first: int, last: int) -> list[float]:
    data = [a_batch(seed=at) for at in range(first, last)]
    return [online.step(images.float(), labels) for images, labels in data]


@pytest.mark.parametrize("make", [adam, published])
def test_ten_steps_are_five_and_five(make: Callable[..., OnlineLAM], tmp_path: Path) -> None:
    whole, part = make(), make()
    expected = steps(whole, 0, 10)
    losses = steps(part, 0, 5)
    torch.save(part.state_dict(), tmp_path / "state.pt")
    steps(part, 5, 8)  # what is saved does not change with later steps
    # Everything else about the new run: other weights, another generator.
    again = make(generator=a_generator(99))
    steps(again, 20, 23)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.steps == 5
    losses += steps(again, 5, 10)
    assert losses == expected
    assert again.encoder.fingerprint() == whole.encoder.fingerprint()
    assert torch.equal(running(again), running(whole))
    assert torch.equal(again.generator.get_state(), whole.generator.get_state())
    one, other = again.posterior().fitted, whole.posterior().fitted
    assert torch.equal(one.gradient, other.gradient)
    assert (one.loss_value, one.num_positives, one.num_negatives, one.num_batches) == (
        other.loss_value,
        other.num_positives,
        other.num_negatives,
        10,
    )


def test_a_state_is_a_copy() -> None:
    online = adam()
    steps(online, 0, 3)
    state = online.state_dict()["running"]["curvature"]
    before = state.clone()
    steps(online, 3, 5)
    assert torch.equal(state, before)


def other_optimizer() -> OnlineLAM:
    encoder = an_encoder().float()
    return OnlineLAM(encoder, torch.optim.SGD(encoder.parameters(), lr=0.1), LOSS, 300, memory=0.1)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        *(
            (partial(adam, **{name: value}), name)
            for name, value in {
                "temperature": 2.0,
                "prior_precision": 7.0,
                "approximation": "full",
                "samples": 2,
                "warmup": 9,
                "n_effective": 10.0,
                "memory": "paper",
                "loss": ContrastiveLoss(margin=0.5),
                "miner": lambda z, y: (),
            }.items()
        ),
        (published, "summed"),
        (other_optimizer, "optimizer"),
    ],
)
def test_other_settings_are_refused_by_name(make: Callable[..., OnlineLAM], named: str) -> None:
    saved, online = adam(), make()
    steps(saved, 0, 3)
    before = copy.deepcopy(online.state_dict())
    with pytest.raises(ValueError, match=named):
        online.load_state_dict(saved.state_dict())
    assert online.encoder.fingerprint() == an_encoder().float().fingerprint()
    assert torch.equal(running(online), before["running"]["curvature"])
    assert online.steps == 0


@pytest.mark.parametrize(
    ("head", "backbone", "message"),
    [
        (
            nn.Linear(5, 4),
            None,
            r"head\.bias is .\(4,\) of torch\.float32. here and .\(3,\) of torch\.float32. there",
        ),
        (nn.Linear(5, 3, bias=False), None, r"head\.bias is None here and"),
        (nn.Linear(5, 3).double(), None, r"head\.bias is .\(3,\) of torch\.float64. here"),
        (
            nn.Linear(5, 3),
            nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)),
            r"backbone\.1\.bias is .* here and None there",
        ),
    ],
)
def test_another_architecture_is_refused(head: nn.Linear, backbone: nn.Module | None, message: str) -> None:
    backbone = nn.Sequential(nn.Linear(6, 5), nn.Tanh()) if backbone is None else backbone
    encoder = Encoder(backbone, head)
    online = OnlineLAM(encoder, torch.optim.Adam(encoder.parameters(), weight_decay=1e-3), LOSS, 300)
    before = encoder.fingerprint()
    with pytest.raises(ValueError, match=f"architecture: .*{message}"):
        online.load_state_dict(adam().state_dict())
    assert encoder.fingerprint() == before
