"""What risk heads predict: neighbours against a loop, pair losses against the loss itself, sampled pairs by kind."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.methods.risk.targets import (
    batch_retrieval_risk,
    link,
    nearest_is_wrong,
    pair_losses,
    ranking_loss,
    retrieval_risk,
    risk_loss,
    sampled_pairs,
    train_classifier,
)


def items(count: int = 40, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    z = F.normalize(
        torch.randn(count, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1
    )
    return z, torch.arange(count) % classes


@pytest.mark.parametrize("k", [1, 3, 10])
def test_the_retrieval_risk_is_that_of_a_loop(k: int) -> None:
    z, labels = items()
    expected = []
    for i in range(len(z)):
        distance = (z - z[i]).norm(dim=1)
        distance[i] = torch.inf
        expected.append(float((labels[distance.argsort()[:k]] != labels[i]).double().mean()))
    assert retrieval_risk(z, labels, k).tolist() == pytest.approx(expected)
    assert batch_retrieval_risk(3 * z, labels, k).tolist() == pytest.approx(expected)
    if k == 1:
        assert nearest_is_wrong(z, labels).tolist() == [value > 0 for value in expected]


def test_too_few_items_are_refused() -> None:
    with pytest.raises(ValueError, match="neighbours is 10"):
        retrieval_risk(torch.eye(3), torch.arange(3))


@pytest.mark.parametrize("weight", [0.5, 0.8])
def test_pair_losses_are_those_of_a_loop_and_average_to_the_loss(weight: float) -> None:
    u, labels = items()
    u = 2 * u
    loss = ContrastiveLoss(margin=0.7, negatives="all", negative_weight=weight)
    pairs = Pairs.from_labels(labels)
    values = pair_losses(u, loss, pairs)
    assert torch.isclose(values.mean(), loss(u, pairs))  # every item has as many pairs of either kind
    for i in range(3):
        own = 0.0
        for positive, share in ((True, 2 * (1 - weight)), (False, 2 * weight)):
            others = ((labels == labels[i]) == positive).nonzero().flatten()
            others = others[others != i]
            own += share * float(loss.pair_values(u[i].expand(len(others), -1), u[others], positive).mean())
        assert float(values[i]) == pytest.approx(own, abs=1e-12)


def test_sampled_pairs_are_of_the_kind_that_they_say_and_of_every_item() -> None:
    labels = torch.tensor([2, 0, 0, 1, 2, 0, 1, 2, 5])  # class 5 is alone
    pairs = sampled_pairs(labels, torch.Generator().manual_seed(0))
    for positive in (True, False):
        seen = set()
        for first, second, _ in pairs.listed(positive):
            assert bool(((labels[first] == labels[second]) == positive).all())
            assert bool((first != second).all())
            seen |= set(first.tolist()) | set(second.tolist())
        assert seen == (set(range(8)) if positive else set(range(9)))


def test_a_classifier_separates_what_can_be_separated() -> None:
    labels = torch.arange(200) % 4
    features = (
        5 + torch.eye(4)[labels] + 0.2 * torch.randn(200, 4, generator=torch.Generator().manual_seed(1))
    )
    classifier = train_classifier(features, labels, 4)
    assert float((classifier(features).argmax(1) == labels).float().mean()) > 0.95
    assert not classifier.weight.requires_grad
    with pytest.raises(ValueError, match="num_classes is 1"):
        train_classifier(features, labels, 1)


float64 = torch.float64


def test_the_riskier_item_is_pushed_up_and_the_printed_sign_is_not_used() -> None:
    risk = torch.tensor([0.4, 0.5], dtype=float64, requires_grad=True)
    ranking_loss(risk, torch.tensor([3.0, 1.0])).backward()
    assert risk.grad.tolist() == [-1.0, 1.0]


def test_ties_and_pairs_far_apart_have_no_gradient() -> None:
    risk = torch.tensor([0.1, 0.9, 0.9], dtype=float64, requires_grad=True)
    ranking_loss(risk, torch.tensor([1.0, 1.0, 1.0])).backward()
    assert risk.grad.tolist() == [0.0, 0.0, 0.0]
    risk.grad = None
    ranking_loss(risk, torch.tensor([0.0, 2.0, 2.0])).backward()
    assert risk.grad.tolist() == [0.0, 0.0, 0.0]


def test_the_ranking_loss_is_its_definition_pair_by_pair() -> None:
    g = torch.Generator().manual_seed(0)
    risk, target = torch.rand(9, generator=g, dtype=float64), torch.randint(0, 4, (9,), generator=g).double()
    values = [
        max(0.0, 0.1 - float(torch.sign(target[i] - target[j]) * (risk[i] - risk[j])))
        for i in range(9)
        for j in range(i)
        if target[i] != target[j]
    ]
    assert float(ranking_loss(risk, target)) == pytest.approx(sum(values) / len(values), abs=1e-12)


def test_bce_l2_and_links_are_torch_s_and_targets_get_no_gradient() -> None:
    logits = torch.linspace(-3, 3, 5, dtype=float64, requires_grad=True)
    target = torch.linspace(0, 1, 5, dtype=float64, requires_grad=True)
    bce = risk_loss("bce", logits, target, is_share=True)
    p = torch.sigmoid(logits)
    assert torch.allclose(bce, -(target * p.log() + (1 - target) * (1 - p).log()).mean())
    l2 = risk_loss("l2", logits, target, is_share=False)
    assert torch.allclose(l2, ((torch.log1p(logits.exp()) - target) ** 2).mean())
    (bce + l2).backward()
    assert target.grad is None
    assert logits.grad is not None
    assert torch.equal(link(logits, is_share=False), F.softplus(logits))
