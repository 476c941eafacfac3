"""Learned concentrations: the losses against plain loops and their limits, and a problem that they have to solve."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from laplacian_metric import vmf
from laplacian_metric.methods.spherical.vmf_contrast import (
    contrastive_hib,
    elk_info_nce,
    log_kernel,
    mc_info_nce,
    positivity_info_nce,
)
from laplacian_metric.methods.spherical.vmf_head import HIB_START, Loss, VMFHead, VMFLearner
from tests.generators import seeded
from tests.methods.learning import SETUP, encoder_of, two_clusters

float64 = torch.float64
LOSSES = get_args(Loss)


def distributions(count: int = 9, dim: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = seeded(seed)
    mean = nn.functional.normalize(torch.randn(count, dim, generator=generator, dtype=float64), dim=1)
    kappa = 50 * torch.rand(count, generator=generator, dtype=float64) + 0.5
    return mean, kappa, torch.randint(3, (count,), generator=generator)


def plain_info_nce(logits: Tensor, labels: Tensor, negatives: str = "others") -> float:
    """From a matrix of similarities (N, N), by loops over images."""
    total, anchors = 0.0, 0
    for i in range(len(labels)):
        positives = [j for j in range(len(labels)) if j != i and labels[j] == labels[i]]
        if not positives:
            continue
        anchors += 1
        for j in positives:
            others = [
                m
                for m in range(len(labels))
                if labels[m] != labels[i] or (negatives == "all" and m not in (i, j))
            ]
            against = sum(math.exp(logits[i, m]) for m in others)
            total -= math.log(math.exp(logits[i, j]) / (math.exp(logits[i, j]) + against)) / len(positives)
    return total / anchors


def plain_mean_exp(z: Tensor, scale: float) -> Tensor:
    """log of the mean over all pairs of draws (K, N, Z) of exp(scale z.z'), by loops over images."""
    num = z.shape[1]
    return torch.stack(
        [
            torch.stack([(scale * z[:, i] @ z[:, j].T).exp().mean().log() for j in range(num)])
            for i in range(num)
        ]
    )


# --- the losses ---


@pytest.mark.parametrize("negatives", ["others", "all"])
@pytest.mark.parametrize(("count", "dim"), [(9, 3), (12, 16)])
def test_the_softmax_losses_are_plain_loops(count: int, dim: int, negatives: Any) -> None:
    mean, kappa, labels = distributions(count, dim)
    labels[:2] = 0
    value = mc_info_nce(
        mean, kappa, labels, kappa_pos=5.0, samples=4, negatives=negatives, generator=seeded(1)
    )
    drawn = vmf.sample(mean, kappa, 4, generator=seeded(1))
    assert float(value) == pytest.approx(
        plain_info_nce(plain_mean_exp(drawn, 5), labels, negatives), abs=1e-12
    )
    value = positivity_info_nce(mean, kappa, labels, kappa_pos=5.0, negatives=negatives)
    log_h = vmf.log_positivity(mean @ mean.T, kappa[:, None], kappa, 5.0, dim)
    assert float(value) == pytest.approx(plain_info_nce(log_h, labels, negatives), abs=1e-9)


def test_many_draws_estimate_the_exact_positivity() -> None:
    """mean exp(kpos z.z') over uniform directions' own mean is h: the estimate of the loss, within 0.01 nats."""
    mean, kappa, labels = distributions(6)
    labels[:2] = 0
    exact = float(positivity_info_nce(mean, kappa, labels, kappa_pos=4.0))
    estimate = float(mc_info_nce(mean, kappa, labels, kappa_pos=4.0, samples=1000, generator=seeded()))
    assert estimate == pytest.approx(exact, abs=0.03)


@pytest.mark.parametrize("negatives", ["others", "all"])
def test_contrastive_hib_takes_the_logarithm_of_the_mean(negatives: Any) -> None:
    mean, kappa, labels = distributions(8)
    labels[:2] = 0
    log_scale, offset = torch.tensor(1.3, dtype=float64), torch.tensor(-2.0, dtype=float64)
    value = contrastive_hib(
        mean,
        kappa,
        labels,
        log_scale=log_scale,
        offset=offset,
        samples=5,
        negatives=negatives,
        generator=seeded(1),
    )
    z = vmf.sample(mean, kappa, 5, generator=seeded(1))
    probability = torch.einsum("kiz,ljz->ijkl", z, z).mul(log_scale.exp()).add(offset).sigmoid().mean((2, 3))
    matches, differs = [], []
    for i in range(8):
        same = [j for j in range(8) if j != i and labels[j] == labels[i]]
        others = [m for m in range(8) if (m != i if negatives == "all" else labels[m] != labels[i])]
        if same:
            matches.append(sum(math.log(probability[i, j]) for j in same) / len(same))
            differs.append(sum(math.log(1 - probability[i, m]) for m in others) / len(others))
    expected = -sum(matches) / len(matches) - sum(differs) / len(differs)
    assert float(value) == pytest.approx(expected, abs=1e-10)


def log_kernel_on_the_sphere(mean: Tensor, kappa: Tensor) -> Tensor:
    """In three dimensions C(k) = k/(4 pi sinh k)."""

    def log_c(k: float) -> float:
        return math.log(k / (4 * math.pi)) - (k + math.log((1 - math.exp(-2 * k)) / 2))

    count = len(kappa)
    table = torch.empty(count, count, dtype=float64)
    for i in range(count):
        for j in range(count):
            combined = float((kappa[i] * mean[i] + kappa[j] * mean[j]).norm())
            table[i, j] = log_c(float(kappa[i])) + log_c(float(kappa[j])) - log_c(combined)
    return table


def test_elk_info_nce_is_the_plain_loop_over_closed_forms() -> None:
    mean, kappa, labels = distributions()
    expected = log_kernel_on_the_sphere(mean, kappa)
    torch.testing.assert_close(log_kernel(mean, kappa, mean, kappa), expected)
    actual = elk_info_nce(mean, kappa, labels, scale=0.7)
    assert float(actual) == pytest.approx(plain_info_nce(0.7 * expected, labels), abs=1e-10)


@pytest.mark.parametrize("dim", [2, 3, 64])
def test_the_kernel_of_all_pairs_is_that_of_each(dim: int) -> None:
    mean, kappa, _ = distributions(9, dim)
    mean[1] = -mean[0]
    kappa[1], kappa[2] = kappa[0], 1e5
    expected = vmf.log_expected_likelihood(mean[:4, None], kappa[:4, None], mean, kappa)
    torch.testing.assert_close(log_kernel(mean[:4], kappa[:4], mean, kappa), expected, rtol=1e-9, atol=1e-9)
    single = log_kernel(mean[:4].float(), kappa[:4].float(), mean.float(), kappa.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=1e-3)


def test_rows_of_the_kernel_come_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    mean, kappa, _ = distributions()
    whole = log_kernel(mean, kappa, mean, kappa)
    monkeypatch.setattr("laplacian_metric.methods.spherical.vmf_contrast.ENTRIES_AT_ONCE", 20)
    torch.testing.assert_close(log_kernel(mean, kappa, mean, kappa), whole)


def test_without_spread_it_is_info_nce_of_the_points() -> None:
    mean, kappa, labels = distributions()
    actual = mc_info_nce(mean, torch.full_like(kappa, 1e12), labels, kappa_pos=5.0, samples=3)
    assert float(actual) == pytest.approx(plain_info_nce(5 * mean @ mean.T, labels), abs=1e-4)


def test_small_equal_concentrations_make_the_kernel_the_cosine() -> None:
    """log int p q = const + k^2 cos/3 + O(k^4) in three dimensions."""
    mean, kappa, labels = distributions()
    k = 1e-2
    actual = elk_info_nce(mean, torch.full_like(kappa, k), labels, scale=5 * 3 / k**2)
    assert float(actual) == pytest.approx(plain_info_nce(5 * mean @ mean.T, labels), rel=1e-3)


@pytest.mark.parametrize("of", ["mean", "kappa"])
def test_the_kernel_losses_gradients(of: str) -> None:
    mean, kappa, labels = distributions(6)
    labels[:2] = 0

    def value(u: Tensor, k: Tensor) -> Tensor:
        return elk_info_nce(nn.functional.normalize(u, dim=1), k, labels, scale=0.3)

    u = 2 * mean
    u.requires_grad_(of == "mean")
    kappa.requires_grad_(of == "kappa")
    assert torch.autograd.gradcheck(value, (u, kappa))


def test_the_sampled_losses_gradient_in_the_means() -> None:
    """With the same random numbers the draws follow the means smoothly."""
    mean, kappa, labels = distributions(6)
    labels[:2] = 0

    def value(u: Tensor) -> Tensor:
        unit = nn.functional.normalize(u, dim=1)
        return mc_info_nce(unit, kappa, labels, kappa_pos=3.0, samples=5, generator=seeded(1))

    assert torch.autograd.gradcheck(value, (2 * mean).requires_grad_())


@pytest.mark.statistical
def test_the_sampled_losses_gradient_in_the_concentrations() -> None:
    """With many draws it is that of the exact positivity; the standard errors are those of 20 repetitions, 5 are
    allowed beside the bias of the logarithm of 500 x 500 pairs."""
    mean, _, _ = distributions(4)
    labels = torch.tensor([0, 0, 1, 1])
    kappa = torch.tensor([2.0, 8.0, 5.0, 20.0], dtype=float64).requires_grad_()
    (exact,) = torch.autograd.grad(positivity_info_nce(mean, kappa, labels, kappa_pos=3.0), kappa)
    slopes = torch.stack(
        [
            torch.autograd.grad(
                mc_info_nce(mean, kappa, labels, kappa_pos=3.0, samples=500, generator=seeded(seed)),
                kappa,
            )[0]
            for seed in range(20)
        ]
    )
    error = (slopes.var(0) / 20).sqrt()
    assert bool(((slopes.mean(0) - exact).abs() < 5 * error + 0.01 * exact.abs()).all())
    assert float((exact.abs() / error).max()) > 20


def loss_by_name(name: str) -> Any:
    options: dict[str, dict[str, Any]] = {
        "mc-infonce": {"kappa_pos": 5.0, "samples": 2},
        "positivity": {"kappa_pos": 5.0},
        "hib": {"log_scale": torch.tensor(2.0), "offset": torch.tensor(-4.0), "samples": 2},
        "elk": {},
    }
    functions: dict[str, Any] = {
        "mc-infonce": mc_info_nce,
        "positivity": positivity_info_nce,
        "hib": contrastive_hib,
        "elk": elk_info_nce,
    }
    return partial(functions[name], **options[name])


@pytest.mark.parametrize("labels", [[0, 1, 2], [3]])
@pytest.mark.parametrize("loss", LOSSES)
def test_without_positives_nothing_is_learned(loss: str, labels: list[int]) -> None:
    mean, kappa, _ = distributions(len(labels))
    mean.requires_grad_()
    kappa.requires_grad_()
    value = loss_by_name(loss)(mean, kappa, torch.tensor(labels))
    assert float(value.detach()) == 0
    for gradient in torch.autograd.grad(value, [mean, kappa]):
        assert not bool(gradient.any())


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_without_negatives_is_refused(loss: str) -> None:
    mean, kappa, _ = distributions(3)
    with pytest.raises(ValueError, match=r"labels has no negatives.*at least 2 classes"):
        loss_by_name(loss)(mean, kappa, torch.zeros(3))
    with pytest.raises(ValueError, match="negatives is 'some'"):
        loss_by_name(loss)(mean, kappa, torch.zeros(3), negatives="some")
    with pytest.raises(ValueError, match=r"labels has no negatives.*at least 3 images"):
        loss_by_name(loss)(mean[:2], kappa[:2], torch.zeros(2), negatives="all")


# --- the method ---


def a_learner(method: VMFHead, dtype: torch.dtype = torch.float32) -> VMFLearner:
    return method.learner([encoder_of(dtype=dtype)], SETUP)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("negatives", ["others", "all"])
def test_the_learners_loss_is_that_of_its_distributions(loss: Any, negatives: Any) -> None:
    learner = a_learner(VMFHead(loss=loss, samples=3, kappa_pos=2.0, negatives=negatives), float64)
    learner.begin(torch.optim.SGD(learner.parameters(), lr=0.1), seeded(3))
    images, labels = two_clusters(20, 0)
    mean, kappa = learner.network(images.double())
    value = float(learner.loss(images.double(), labels).detach())
    functions: dict[str, Any] = {
        "mc-infonce": partial(mc_info_nce, kappa_pos=2.0, samples=3, generator=seeded(3)),
        "elk": partial(elk_info_nce, scale=2.0),
        "positivity": partial(positivity_info_nce, kappa_pos=2.0),
        "hib": partial(
            contrastive_hib,
            log_scale=torch.tensor(HIB_START[0]),
            offset=torch.tensor(HIB_START[1]),
            samples=3,
            generator=seeded(3),
        ),
    }
    expected = functions[loss](mean, kappa, labels, negatives=negatives)
    assert value == pytest.approx(float(expected.detach()), abs=1e-6)
    torch.testing.assert_close(mean, nn.functional.normalize(learner.points(images.double())))


def test_it_starts_near_the_concentration_that_is_asked_for() -> None:
    _, kappa = a_learner(VMFHead(initial_kappa=30.0)).network(two_clusters(100, 0)[0])
    assert 15 < float(kappa.detach().median()) < 60


def test_a_stopped_gradient_leaves_the_features_to_the_means() -> None:
    images, _ = two_clusters(20, 0)
    for stop in (False, True):
        learner = a_learner(VMFHead(stop_gradient=stop))
        weight = next(learner.network.encoder.backbone.parameters())
        (gradient,) = torch.autograd.grad(learner.network(images)[1].sum(), weight, allow_unused=True)
        assert (gradient is None) is stop


def test_concentrations_stay_finite_however_large_the_features() -> None:
    network = a_learner(VMFHead()).network
    _, kappa = network(torch.tensor([[1e6, 1e6], [-1e6, 1e6], [0.0, 0.0]]))
    assert bool(kappa.isfinite().all())
    assert float(kappa.detach().min()) >= 1
