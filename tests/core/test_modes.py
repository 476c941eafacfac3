"""A module in evaluation mode for a while, and as it was afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laplacian_metric.core.modes import evaluating


def network() -> nn.Module:
    """Parts in training and in evaluation mode, in an order that no call of train() or eval() makes."""
    module = nn.Sequential(
        nn.BatchNorm1d(3), nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), nn.Dropout(0.5)
    )
    module.train()
    module[1].training = False
    module[0].training = False
    return module


def test_every_part_is_as_before() -> None:
    module = network()
    before = [part.training for part in module.modules()]
    with evaluating(module):
        assert not any(part.training for part in module.modules())
        assert not torch.is_grad_enabled()
        x = torch.randn(4, 3)
        assert torch.equal(module(x), module(x))
        assert not module(x).requires_grad
    assert [part.training for part in module.modules()] == before
    assert torch.is_grad_enabled()
    assert int(module[0].num_batches_tracked) == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_too(error: type[BaseException]) -> None:
    module = network()
    before = [part.training for part in module.modules()]
    with pytest.raises(error), evaluating(module):
        raise error
    assert [part.training for part in module.modules()] == before
    assert torch.is_grad_enabled()
