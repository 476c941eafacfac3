"""Online LAM in float64 against plain loops, autograd and the post-hoc curvature."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.online import OnlineLAM
from laplacian_metric.laplace.posthoc import LAM
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
    head_gradient,
    running,
)

close = torch.testing.assert_close


@pytest.mark.parametrize("loss", [LOSS, ContrastiveLoss(margin=0.7, power=1)], ids=["squared", "un-squared"])
@pytest.mark.parametrize("approximation", ["fixed", "positive", "full", "clipped"])
def test_every_step_is_a_plain_loop_at_the_draws(approximation: str, loss: ContrastiveLoss) -> None:
    online = an_online(approximation=approximation, temperature=0.5, loss=loss)
    encoder, generator = an_encoder(), a_generator(0)
    average = torch.zeros(3, 6, dtype=float64)
    slope, value, square = torch.zeros_like(average), 0.0, 0.0
    for step in range(6):
        images, labels = a_batch(seed=step)
        pairs = Pairs.from_labels(labels)
        counts = [Pairs.from_labels(a_batch(seed=at)[1]) for at in range(step + 1)]
        population = (
            sum(p.num_positives for p in counts) / (step + 1),
            sum(p.num_negatives for p in counts) / (step + 1),
        )
        drawn = encoder
        if step:
            weight = 1 - 0.8**step
            drawn = a_draw(encoder, IMAGES / 0.5 * (average / weight).clamp(min=0) + 30.0, generator)
        drawn_value = loss(drawn.raw(images), pairs)
        grads = torch.autograd.grad(drawn_value, list(drawn.parameters()))
        value += 0.2 * (float(drawn_value.detach()) - value)
        square += 0.2 * (float(drawn.raw(images).detach().square().sum(1).mean()) - square)
        slope += 0.2 * (head_gradient(drawn, images, pairs, loss) - slope)
        average += 0.2 * (
            curvature_of(drawn, images, pairs.with_population(population), approximation, loss) - average
        )
        assert online.step(images, labels) == pytest.approx(float(drawn_value.detach()), rel=1e-9)
        with torch.no_grad():
            for parameter, gradient in zip(encoder.parameters(), grads, strict=True):
                parameter -= 0.05 * gradient
    for own, plain in zip(online.encoder.parameters(), encoder.parameters(), strict=True):
        close(own, plain, rtol=1e-9, atol=1e-11)
    close(running(online), average, rtol=1e-8, atol=1e-10)
    fitted_posterior = online.posterior().fitted
    weight = 1 - 0.8**6
    close(fitted_posterior.curvature.diagonal(), (average / weight).clamp(min=0), rtol=1e-8, atol=1e-10)
    close(fitted_posterior.gradient, slope / weight, rtol=1e-8, atol=1e-10)
    assert fitted_posterior.loss_value == pytest.approx(value / weight, rel=1e-9)
    assert fitted_posterior.length == pytest.approx(math.sqrt(square / weight), rel=1e-9)
    assert (fitted_posterior.num_batches, fitted_posterior.num_images) == (6, IMAGES)
    # Negative entries stay in the average, and are clamped in the posterior.
    assert fitted_posterior.curvature.clamped == pytest.approx(float((running(online) < 0).double().mean()))


@pytest.mark.parametrize("approximation", ["positive", "clipped"])
def test_unequal_batches_have_no_bias(approximation: str) -> None:
    """The limit is the post-hoc curvature of the same batches; the mean of their own averages is another one."""
    sizes, classes = [4, 30, 5, 24, 3, 18], [2, 3, 4, 2, 2, 6]
    data = [a_batch(n, c, seed=at) for at, (n, c) in enumerate(zip(sizes, classes, strict=True))]
    encoder, loss = an_encoder(), ContrastiveLoss(margin=0.7, distance="euclidean")
    options = {"loss": loss, "warmup": 10**6, "memory": 0.01, "approximation": approximation}
    online = an_online(rate=0.0, encoder=encoder, **options)
    last = []
    for step in range(90 * 6):
        online.step(*data[step % 6])
        if step >= 89 * 6:
            last.append(running(online))
    mean = torch.stack(last).mean(0) / (1 - 0.99**online.steps)
    rows, labels = torch.cat([images for images, _ in data]), torch.cat([labels for _, labels in data])
    batches = list(torch.arange(len(rows)).split(sizes))
    lam = LAM(encoder, loss, approximation)
    lam.fit_features(encoder.features(rows).detach(), labels, batches=batches, check_mode=False)
    close(mean, lam.fitted.curvature.diagonal(), rtol=6e-3, atol=1e-6)
    own = [curvature_of(encoder, x, Pairs.from_labels(y), approximation, loss) for x, y in data]
    assert float((torch.stack(own).mean(0) / mean - 1).abs().max()) > 0.2
    fitted_posterior = online.posterior().fitted
    assert fitted_posterior.num_positives == pytest.approx(90 * lam.fitted.num_positives)
    assert fitted_posterior.num_negatives == pytest.approx(90 * lam.fitted.num_negatives)


@pytest.mark.statistical
def test_limit_and_noise_of_the_average() -> None:
    """Mean E[G_batch] and standard deviation sqrt(a/(2-a)) of G_batch's, over 700 steps.

    An average of memory 0.2 is about 700/10 independent ones. With 18 entries that are about as independent as 3, the
    ratio of the deviations has a standard error of about 1/sqrt(2 * 3 * 70) = 5 %; 15 % are allowed, and 4 standard
    errors for the mean.
    """
    share, online = 0.2, an_online(rate=0.0, warmup=10**6, memory=0.2)
    encoder, generator = an_encoder(), a_generator(3)
    images, _ = a_batch(60)
    labels, averages, parts = torch.arange(60) % 3, [], []
    for _ in range(700):
        # Equal counts in every batch.
        chosen = torch.cat([3 * torch.randperm(20, generator=generator)[:4] + c for c in range(3)])
        online.step(images[chosen], labels[chosen])
        parts.append(curvature_of(encoder, images[chosen], Pairs.from_labels(labels[chosen])))
        averages.append(running(online))
    batches, seen = torch.stack(parts), torch.stack(averages[30:])
    expected = math.sqrt(share / (2 - share))
    ratio = (seen.std(0) / batches.std(0)).mean()
    assert float(ratio) == pytest.approx(expected, rel=0.15)
    error = batches.std(0) / math.sqrt(len(batches))
    assert float(((seen.mean(0) - batches.mean(0)).abs() / error).max()) < 4


def test_a_batch_without_a_type_of_pair_counts_for_the_other_one() -> None:
    """One class, no two alike, a single image: legal, and each is divided by the mean counts."""
    data = [
        a_batch(8, 3, seed=0),
        (a_batch(6, seed=1)[0], torch.zeros(6, dtype=torch.long)),
        (a_batch(5, seed=2)[0], torch.arange(5)),
        a_batch(1, seed=3),
        a_batch(8, 3, seed=4),
    ]
    encoder, online = an_encoder(), an_online(rate=0.0, warmup=10**6)
    pairs = [Pairs.from_labels(labels) for _, labels in data]
    average = torch.zeros(3, 6, dtype=float64)
    for at, (images, labels) in enumerate(data):
        assert math.isfinite(online.step(images, labels))
        counts = (
            sum(p.num_positives for p in pairs[: at + 1]) / (at + 1),
            sum(p.num_negatives for p in pairs[: at + 1]) / (at + 1),
        )
        average = 0.8 * average + 0.2 * curvature_of(encoder, images, pairs[at].with_population(counts))
    close(running(online), average, rtol=1e-10, atol=1e-12)


def test_images_without_any_pair_leave_the_prior() -> None:
    online = an_online(rate=0.0)
    for seed in range(3):
        assert online.step(*a_batch(1, seed=seed)) == 0
    with pytest.warns(UserWarning, match=r"no batch had a (positive|negative) pair"):
        lam = online.posterior()
    close(lam.posterior.marginal_variance(), torch.full((3, 6), 1 / 30, dtype=float64))


@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_what_curvature_warns_of_is_said_once(distance: str, recwarn: pytest.WarningsRecorder) -> None:
    """A margin of 3 makes every negative active: with classes of equal size the Euclidean "fixed" is 0."""
    loss = ContrastiveLoss(margin=3.0, distance=distance)
    online, labels = an_online(loss=loss), torch.arange(12) % 3
    for seed in range(4):
        online.step(a_batch(seed=seed)[0], labels)
        online.step(a_batch(seed=seed)[0], torch.zeros(12, dtype=torch.long))
    first = [str(w.message) for w in recwarn]
    assert len(first) == len(set(first)) == (1 if distance == "euclidean" else 0)


# --- what is trained ---


def test_active_negatives_are_trained_on_and_all_are_curved() -> None:
    loss = ContrastiveLoss(margin=0.7, negatives="active")
    online, plain = an_online(loss=loss), an_online()
    images, labels = a_batch()
    expected = loss(an_encoder().raw(images), Pairs.from_labels(labels))
    assert online.step(images, labels) == pytest.approx(float(expected.detach()), rel=1e-12)
    plain.step(images, labels)
    assert float(expected.detach()) != pytest.approx(
        float(LOSS(an_encoder().raw(images), Pairs.from_labels(labels)).detach())
    )
    close(running(online), running(plain), rtol=0, atol=0)


def test_a_miner_chooses_what_is_trained_on_and_all_are_curved() -> None:
    seen = []

    def miner(points: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        seen.append((points, labels))
        return torch.tensor([0]), torch.tensor([3]), torch.tensor([1]), torch.tensor([2])

    online, plain, encoder, (images, labels) = an_online(miner=miner), an_online(), an_encoder(), a_batch()
    mined = Pairs.from_indices(miner(images, labels), 12)
    expected = LOSS(encoder.raw(images), mined)
    assert online.step(images, labels) == pytest.approx(float(expected.detach()), rel=1e-12)
    close(seen[1], (encoder(images).detach(), labels))
    assert not seen[1][0].requires_grad
    plain.step(images, labels)
    close(running(online), running(plain), rtol=0, atol=0)
    close(online.posterior().fitted.gradient, head_gradient(encoder, images, mined), rtol=1e-10, atol=1e-13)


def test_a_miner_of_pytorch_metric_learning() -> None:
    miners = pytest.importorskip("pytorch_metric_learning.miners")
    online = an_online(miner=miners.MultiSimilarityMiner())
    for seed in range(3):
        assert math.isfinite(online.step(*a_batch(seed=seed)))


def test_pairs_may_be_given_in_place_of_labels() -> None:
    online, plain = an_online(), an_online()
    for seed in range(3):
        images, labels = a_batch(seed=seed)
        value = plain.step(images, labels.tolist())
        assert online.step(images, Pairs.from_labels(labels)) == value
    close(running(online), running(plain), rtol=0, atol=0)


def test_several_draws_are_averaged() -> None:
    online = an_online(samples=3)
    images, labels = a_batch()
    online.step(images, labels)
    encoder, generator = copy.deepcopy(online.encoder), a_generator(0)
    precision = online.posterior().posterior.marginal_variance().reciprocal()
    noise = torch.randn(3, 3, 6, generator=generator, dtype=float64)
    pairs, values, slopes, curvatures = Pairs.from_labels(labels), [], [], []
    stored = running(online)
    for deviation in noise / precision.sqrt():
        drawn = copy.deepcopy(encoder)
        with torch.no_grad():
            drawn.head.weight += deviation[:, :-1]
            drawn.head.bias += deviation[:, -1]
        values.append(float(LOSS(drawn.raw(images), pairs).detach()))
        slopes.append(head_gradient(drawn, images, pairs))
        curvatures.append(curvature_of(drawn, images, pairs))
    online.optimizer.zero_grad()
    loss = online.loss(images, labels)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(sum(values) / 3, rel=1e-10)
    close(online.encoder.head.weight.grad, torch.stack(slopes).mean(0)[:, :-1], rtol=1e-9, atol=1e-12)
    close(running(online), 0.8 * stored + 0.2 * torch.stack(curvatures).mean(0), rtol=1e-9, atol=1e-12)


def test_warm_up_takes_no_draw() -> None:
    online, plain = an_online(warmup=3), an_online(warmup=10**6)
    before = online.generator.get_state()
    for step in range(4):
        assert torch.equal(online.generator.get_state(), before)
        images, labels = a_batch(seed=step)
        assert (online.step(images, labels) == plain.step(images, labels)) == (step < 3)
    assert not torch.equal(online.generator.get_state(), before)


def test_the_loop_may_be_written_out() -> None:
    online, other = an_online(), an_online()
    for step in range(4):
        images, labels = a_batch(seed=step)
        online.step(images, labels)
        other.optimizer.zero_grad()
        loss = other.loss(images, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(other.encoder.parameters(), 1e6)
        other.optimizer.step()
    assert other.steps == 4
    assert online.encoder.fingerprint() == other.encoder.fingerprint()


def test_layers_of_training_mode_see_a_batch_once() -> None:
    backbone = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
    online = an_online(encoder=Encoder(backbone, nn.Linear(5, 3)), samples=2)
    online.encoder.train()
    for step in range(3):
        images, labels = a_batch(seed=step)
        online.step(images.float(), labels)
    assert int(backbone[1].num_batches_tracked) == 3
    assert backbone[1].training
    online.encoder.eval()
    e = online.posterior().embed(images.float())
    assert bool(e.kappa.isfinite().all())


def test_a_loss_without_a_norm_and_a_head_without_a_bias() -> None:
    loss = ContrastiveLoss(margin=0.7, distance="euclidean", normalize=False)
    for bias, approximation, width in ((True, "full", 5), (True, "fixed", 6), (False, "fixed", 5)):
        online = an_online(
            loss=loss, encoder=an_encoder(bias=bias, normalize=False), approximation=approximation
        )
        for step in range(3):
            online.step(*a_batch(seed=step))
        lam = online.posterior()
        assert lam.posterior.shape == (3, width)
        assert lam.embed(a_batch()[0]).mean.shape == (12, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precisions(dtype: torch.dtype) -> None:
    online = an_online(encoder=an_encoder().to(dtype))
    for step in range(3):
        images, labels = a_batch(seed=step)
        assert math.isfinite(online.step(images.to(dtype), labels))
    assert running(online).dtype is torch.float32
    assert running(online).isfinite().all()


def test_mixed_precision() -> None:
    online = an_online(encoder=an_encoder().float(), warmup=10**6)
    plain = an_online(encoder=an_encoder().float(), warmup=10**6)
    images, labels = a_batch()
    with torch.autocast("cpu", torch.bfloat16):
        loss = online.loss(images.float(), labels)
    loss.backward()
    expected = plain.loss(images.float(), labels)
    expected.backward()
    assert loss.dtype is torch.float32
    close(loss, expected, rtol=0.1, atol=0.02)
    assert online.encoder.head.weight.grad is not None
    close(running(online), running(plain), rtol=0.3, atol=0.05)


# --- defaults, and the posterior ---


def test_where_scale_and_prior_come_from() -> None:
    encoder = an_encoder()
    groups = [
        {"params": list(encoder.backbone.parameters()), "weight_decay": 0.5},
        {"params": list(encoder.head.parameters()), "weight_decay": 1e-2},
    ]
    online = OnlineLAM(encoder, torch.optim.SGD(groups, lr=0.1), LOSS, 400, temperature=2.0)
    assert (online.n_effective, online.temperature, online.prior_precision) == (400.0, 2.0, 2.0)
    fixed = an_online(num_images=None, n_effective=77.0)
    fixed.step(*a_batch())
    lam = fixed.posterior()
    assert (lam.n_effective, lam.temperature, lam.prior_precision) == (77.0, 1.0, 30.0)


def test_the_posterior_is_fitted_and_does_not_move_with_later_steps() -> None:
    online = an_online(weight_decay=1e-3, prior_precision=None)
    for step in range(4):
        online.step(*a_batch(seed=step))
    lam = online.posterior()
    assert lam.fitted.fingerprint == online.encoder.fingerprint()
    assert lam.prior_precision == online.prior_precision == pytest.approx(0.5)
    precision = IMAGES * (running(online) / (1 - 0.8**4)).clamp(min=0) + 0.5
    close(lam.posterior.marginal_variance(), 1 / precision, rtol=1e-12, atol=0)
    before = copy.deepcopy((lam.fitted.curvature.diagonal(), lam.fitted.gradient))
    online.step(*a_batch(seed=9))
    close((lam.fitted.curvature.diagonal(), lam.fitted.gradient), before, rtol=0, atol=0)
    assert online.posterior().fitted.curvature.diagonal().ne(before[0]).any()
    assert online.posterior().embed(a_batch()[0], samples=4, generator=a_generator()).samples.shape == (
        4,
        12,
        3,
    )


def test_steps_do_not_touch_the_global_generator() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    online = an_online()
    for step in range(3):
        online.step(*a_batch(seed=step))
    assert torch.equal(torch.random.get_rng_state(), before)
    other = an_online(generator=a_generator(1))
    for step in range(3):
        other.step(*a_batch(seed=step))
    assert other.encoder.fingerprint() != online.encoder.fingerprint()
