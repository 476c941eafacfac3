"""The published baselines and how they are trained: what each error does, in the smallest case that shows it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laplacian_metric import metrics
from tests.experiments.published_code.reference import float64, generator, normal, unit

close = torch.testing.assert_close


def trained(module: nn.Module, steps: int, inputs: Tensor, targets: Tensor, rate: float = 0.02) -> float:
    """The last squared error of Adam."""
    optimizer = torch.optim.Adam(module.parameters(), lr=rate)
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (module(inputs).squeeze(-1) - targets).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


# --- PFE and HIB ---


class OverwrittenNorm(nn.BatchNorm1d):
    """Scale and shift are replaced by their means in every pass: new tensors, which the optimizer has never seen."""

    def forward(self, x: Tensor) -> Tensor:
        for name in ("weight", "bias"):
            own = self._parameters[name]
            self._parameters[name] = own.mean().expand_as(own)  # type: ignore[assignment]
        return super().forward(x)


class SharedNorm(nn.Module):
    """One scale and one shift for all dimensions."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(dim, affine=False, dtype=float64)
        self.scale = nn.Parameter(torch.ones((), dtype=float64))
        self.shift = nn.Parameter(torch.zeros((), dtype=float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.norm(x) + self.shift


def test_shared_batch_norm_stays_at_scale_one_however_long_it_is_trained() -> None:
    """The logarithm of the variance is to become 0.1 x - 3; as published it keeps mean 0 and variance 1."""
    x = normal(200, 3)
    targets = 0.1 * x - 3
    published, shared = OverwrittenNorm(3, dtype=float64), SharedNorm(3)
    assert trained(published, 300, x, targets, rate=0.05) > 9
    assert trained(shared, 300, x, targets, rate=0.05) < 1e-3
    published = published(x).detach()
    close(published.mean(), torch.zeros((), dtype=float64), rtol=0, atol=1e-9)
    close(published.var(correction=0), torch.ones((), dtype=float64), rtol=0, atol=1e-4)


def test_shared_batch_norm_at_scale_one_means_a_deviation_of_one_on_a_sphere_of_radius_one() -> None:
    """A geometric mean variance of 1 in each of 16 dimensions: samples have a mean cosine of 0.24 with their mean."""
    spread = torch.randn(20_000, 16, generator=generator(), dtype=float64)
    spread[:, 0] += 1
    assert float(unit(spread)[:, 0].mean()) == pytest.approx(0.24, abs=0.005)


def test_hidden_width_of_three_cannot_tell_what_a_wide_one_can() -> None:
    """Three rectified units see three directions of 16 features; the variance to be learned depends on all of them."""
    x = normal(400, 16)
    targets = x.abs().mean(1)
    errors = {}
    for width in (3, 64):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 1)).double()
        errors[width] = trained(module, 300, x, targets) / float(targets.var())
    assert errors[3] > 0.5
    assert errors[64] < 0.05


def published_kl(mean: Tensor, deviation: Tensor) -> Tensor:
    """Minus half of log s + (1 + m^2)/s^2, added up."""
    return -0.5 * (deviation.log() + (1 + mean.square()) / deviation.square()).sum()


def kl(mean: Tensor, deviation: Tensor) -> Tensor:
    """Of N(m, s^2) from N(0, 1), added up."""
    return 0.5 * (mean.square() + deviation.square() - 1 - 2 * deviation.log()).sum()


def test_hib_kl_is_unbounded_below_and_rewards_a_spread_of_zero() -> None:
    mean = normal(5)
    for deviation in (0.3, 1.0, 2.0):
        spread = torch.full_like(mean, deviation)
        exact = torch.distributions.kl_divergence(
            torch.distributions.Normal(mean, spread), torch.distributions.Normal(0.0, 1.0)
        )
        close(kl(mean, spread), exact.sum())
    values = [float(published_kl(mean, torch.full_like(mean, s))) for s in (1.0, 0.1, 0.01, 0.001)]
    assert values[1] < -250
    assert all(later < 50 * earlier for earlier, later in itertools.pairwise(values[1:]))
    spread = torch.full_like(mean, 0.1).requires_grad_()
    (published,) = torch.autograd.grad(published_kl(mean, spread), spread)
    (right,) = torch.autograd.grad(kl(mean, spread), spread)
    assert bool((published > 0).all())  # descent makes the deviation smaller still
    assert bool((right < 0).all())


# --- dropout and ensembles ---


@pytest.mark.statistical
def test_dropout_of_005_has_a_fifth_of_the_variance_of_02() -> None:
    """p/(1-p) of the squared terms of a linear layer: 0.0526 against 0.25."""
    h, w = normal(50, seed=1), normal(50, seed=2)
    variances = []
    for rate in (0.05, 0.2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            drawn = F.dropout(h.expand(20_000, -1), rate) @ w
        variances.append(float(drawn.var()))
        assert variances[-1] == pytest.approx(rate / (1 - rate) * float((h * w).square().sum()), rel=0.05)
    assert pytest.approx(4.75) == (0.2 / 0.8) / (0.05 / 0.95)
    assert variances[1] / variances[0] == pytest.approx(4.75, rel=0.1)


def members_of_an_ensemble(labels: Tensor, seed: int) -> list[Tensor]:
    """Five members: ten classes evenly on the sphere, in an order and a frame of each member's own, with noise."""
    place = torch.arange(10, dtype=float64) + 0.5
    polar, turn = torch.arccos(1 - place / 5), math.pi * (1 + 5**0.5) * place
    evenly = torch.stack([turn.cos() * polar.sin(), turn.sin() * polar.sin(), polar.cos()], dim=1)
    members = []
    for member in range(5):
        draws = generator(10 * seed + member)
        order = torch.randperm(10, generator=draws)
        frame = torch.linalg.qr(torch.randn(3, 3, generator=draws, dtype=float64)).Q
        noise = torch.randn(len(labels), 3, generator=draws, dtype=float64)
        members.append(unit(evenly[order][labels] @ frame.T + 0.15 * noise))
    return members


def test_ensemble_averages_of_unaligned_spaces_are_worse_than_any_member() -> None:
    """mAP@R above 0.96 for each member, 0.74 for their mean point, above 0.99 by their mean similarity."""
    labels = torch.arange(300) % 10
    averaged = []
    for seed in range(4):
        members = members_of_an_ensemble(labels, seed)
        single = [metrics.map_at_r(member, labels) for member in members]
        assert min(single) > 0.96
        point = torch.stack(members).mean(0)
        assert float(point.norm(dim=1).mean()) < 0.45  # the mean of vectors of length 1 that are all sure
        averaged.append(metrics.map_at_r(unit(point), labels))
        assert averaged[-1] < min(single) - 0.09
        # Side by side, five unit vectors have the mean of the five similarities as theirs.
        together = torch.cat(members, dim=1) / 5**0.5
        close(together @ together.T, torch.stack([member @ member.T for member in members]).mean(0))
        assert metrics.map_at_r(together, labels) > 0.99
    assert sum(averaged) / 4 == pytest.approx(0.74, abs=0.02)


def test_ensemble_members_in_a_plain_list_stay_in_training_mode() -> None:
    """eval() does not reach them, so that an embedding depends on what else is in the batch."""

    class Ensemble(nn.Module):
        def __init__(self, registered: bool) -> None:
            super().__init__()
            layers = [nn.BatchNorm1d(3, dtype=float64) for _ in range(2)]
            self.members = nn.ModuleList(layers) if registered else layers

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([member(x) for member in self.members]).mean(0)

    x = normal(6, 3)
    listed, registered = Ensemble(registered=False).eval(), Ensemble(registered=True).eval()
    assert all(member.training for member in listed.members)
    assert not torch.allclose(listed(x)[0], listed(x[:3])[0], atol=1e-3)
    close(registered(x)[0], registered(x[:3])[0])


# --- training ---


def test_learning_rate_times_the_batch_size_moves_every_weight_by_two_at_the_first_step() -> None:
    """RMSprop's first step is ten times the rate, whatever the gradient: 2.56 for 0.001 x 256, and 0.01 for 0.001."""
    for rate, moved in ((1e-3 * 256, 2.56), (1e-3, 0.01)):
        weight = nn.Parameter(normal(20))
        before = weight.detach().clone()
        optimizer = torch.optim.RMSprop([weight], lr=rate)
        (weight * normal(20, seed=1)).sum().backward()
        optimizer.step()
        close((weight.detach() - before).abs(), torch.full_like(before, moved), rtol=1e-4, atol=0)


def test_decay_of_001_leaves_six_times_the_learning_rate_of_01_after_20_epochs() -> None:
    left = {}
    for decay in (0.01, 0.1):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, math.exp(-decay))
        for _ in range(20):
            optimizer.step()
            schedule.step()
        left[decay] = schedule.get_last_lr()[0]
    assert (round(left[0.01], 3), round(left[0.1], 3)) == (0.819, 0.135)
    assert left[0.01] / left[0.1] == pytest.approx(math.exp(1.8))


def test_latent_sizes_that_differ_between_methods_decide_a_comparison() -> None:
    """Ten classes in 16 dimensions and in 3 of them: without any method, mAP@5 differs by more than 0.3."""
    labels = torch.arange(400) % 10
    u = normal(10, 16, seed=3)[labels] + normal(400, 16)
    precisions = {dim: metrics.map_at_k(unit(u[:, :dim]), labels, 5) for dim in (3, 16)}
    assert precisions[16] - precisions[3] > 0.3
