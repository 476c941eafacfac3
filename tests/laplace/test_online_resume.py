"""Online LAM: a run that is interrupted goes on as if it had not been; states of other runs are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments.published import PublishedOnlineLAM
from hessians import ContrastiveLoss
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.online import OnlineLAM
from tests.laplace.online_cases import LOSS, a_batch, a_generator, an_encoder, an_online, running


def adam(**options: Any) -> OnlineLAM:
    """In float32, with an optimizer that has a state."""
    encoder = an_encoder().float()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=0.01, weight_decay=1e-3)
    return OnlineLAM(encoder, optimizer, LOSS, 300, memory=0.1, **{"warmup": 2, **options})


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 2.0}, "temperature is 2.0 here and 1.0 there"),
        ({"prior_precision": 7.0}, r"prior_precision is 7.0 here and 0.3\d* there"),
        ({"approximation": "full"}, "approximation is 'full' here and 'fixed' there"),
        ({"samples": 2}, "samples is 2 here and 1 there"),
        ({"warmup": 9}, "warmup is 9 here and 2 there"),
        ({"n_effective": 10.0}, "n_effective is 10.0 here and 300.0 there"),
        ({"miner": lambda z, y: ()}, "miner is 'function' here and None there"),
    ],
)
def test_other_settings_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    saved, online = adam(), adam(**options)
    steps(saved, 0, 3)
    before = copy.deepcopy(online.state_dict())
    with pytest.raises(
        ValueError, match=f"other settings: .*{message}.*Make the OnlineLAM with those of the state"
    ):
        online.load_state_dict(saved.state_dict())
    assert online.encoder.fingerprint() == an_encoder().float().fingerprint()
    assert torch.equal(running(online), before["running"]["curvature"])
    assert online.steps == 0


def test_another_loss_switches_and_optimizer_are_refused_by_name() -> None:
    state = adam().state_dict()
    encoder = an_encoder().float()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    other = OnlineLAM(
        encoder, optimizer, ContrastiveLoss(margin=0.5, distance="euclidean"), 300, memory="paper"
    )
    with pytest.raises(ValueError, match="other settings") as raised:
        other.load_state_dict(state)
    for part in (
        "loss.distance is 'euclidean' here and 'arccos' there",
        "loss.margin is 0.5 here and 0.7 there",
        "memory is 0.0001 here and 0.1 there",
        "optimizer is 'SGD' here and 'Adam' there",
        "summed is True here and False there",
    ):
        assert part in str(raised.value)


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


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(ValueError, match="state"):
        an_online().load_state_dict({"encoder": {}})
