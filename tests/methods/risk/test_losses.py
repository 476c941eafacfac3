"""The losses of risk heads: the ranking loss's sign and ties, and each against autograd or a loop."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from laplacian_metric.methods.risk.targets import link, ranking_loss, risk_loss

float64 = torch.float64


def test_the_riskier_item_is_pushed_up_and_the_printed_sign_is_not_used() -> None:
    risk = torch.tensor([0.4, 0.5], dtype=float64, requires_grad=True)
    ranking_loss(risk, torch.tensor([3.0, 1.0])).backward()
    assert risk.grad is not None
    assert risk.grad.tolist() == [-1.0, 1.0]


def test_ties_and_pairs_far_apart_have_no_gradient() -> None:
    risk = torch.tensor([0.1, 0.9, 0.9], dtype=float64, requires_grad=True)
    ranking_loss(risk, torch.tensor([1.0, 1.0, 1.0])).backward()
    assert risk.grad is not None
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
