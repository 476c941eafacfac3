"""Whatever is read of a loader is read in one pass: mean, point and joint samples are of the same images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from hessians import ContrastiveLoss
from laplacian_metric import NetworkLAM, methods
from laplacian_metric.core.method import Embedder, FitData, Setup, Start
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.self_supervised.two_views import TwoViewLearner

CLASSES, NUM = 4, 24
SAMPLES = 60
# Enough of each for a quick fit; everything else is the method's default.
OPTIONS: dict[str, dict[str, Any]] = {
    "mc-dropout": {"samples": 20},
    "swag": {"samples": 20, "collect_every": 1, "burn_in": 0},
    "ensemble": {"references": 8},
    "online-laplace": {"prior_precision": 100.0},
    **{name: {"mining": "batch"} for name in ("triplet", "triplet-regression", "btl")},
}
# Their kappa is a decreasing map of a score, and no width: their samples say little of where the mean is.
SCORES = ("softmax", "softmax-ensemble", "het-xl", "sngp", "loss-prediction", "joint-loss-prediction")
DISTRIBUTIONS = [name for name in methods.names() if name not in SCORES]


def images(seed: int = 0) -> Tensor:
    """Images far from each other, so that no two are mistaken for one another."""
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(NUM, 6, generator=generator)


def encoder(seed: int) -> Encoder:
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16))
    return Encoder(backbone, nn.Linear(16, 8))


def embedder_of(name: str) -> Embedder:
    method = methods.make(name, **OPTIONS.get(name, {}))
    encoders = [encoder(seed) for seed in range(3 if method.start is Start.NETWORKS else 1)]
    x, y = images(), torch.arange(NUM) % CLASSES
    setup = Setup(ContrastiveLoss(margin=1.0), NUM, weight_decay=1e-4, num_classes=CLASSES)
    learner = method.learner(encoders, setup)
    if isinstance(learner, TwoViewLearner):  # by default views are of images
        learner.augmentation = lambda x, drawn: x + 0.1 * torch.randn(x.shape, generator=drawn)
    if method.trains:
        optimizer = torch.optim.SGD(learner.parameters(), lr=1e-4)
        learner.begin(optimizer, torch.Generator().manual_seed(0))
        for _ in range(3):
            learner.train_mode()
            optimizer.zero_grad()
            learner.loss(x, y).backward()
            learner.step()
        learner.end_epoch()
    data = [(x, y)]
    return learner.embedder(FitData(data, data))


def shuffled(x: Tensor) -> DataLoader[Any]:
    labelled = TensorDataset(x, torch.zeros(len(x)))
    return DataLoader(labelled, batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(3))


def same_images(mean: Tensor, samples: Tensor) -> Tensor:
    """Whether the mean of an image's samples lies nearest to its own mean direction, (N,)."""
    average = F.normalize(samples.mean(0), dim=1)
    return (average @ mean.T).argmax(1) == torch.arange(len(mean))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("generator", [False, True])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_shuffling_loader_gives_mean_and_samples_of_the_same_images(name: str, generator: bool) -> None:
    embedder = embedder_of(name)
    drawn = torch.Generator().manual_seed(1) if generator else None
    torch.manual_seed(2)
    e = embedder.embed(shuffled(images()), samples=SAMPLES, generator=drawn)
    assert e.samples is not None
    assert e.samples.shape == (SAMPLES, NUM, e.dim)
    own = same_images(e.mean, e.samples)
    cosine = (F.normalize(e.samples.mean(0), dim=1) * e.mean).sum(1)
    assert own.double().mean() > 0.85
    assert cosine.mean() > 0.9
    # The very mistake is seen: the samples of a pass in another order are of other images.
    other = embedder.embed(shuffled(images()[torch.randperm(NUM)]), samples=SAMPLES).samples
    assert other is not None
    assert same_images(e.mean, other).double().mean() < 0.5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", methods.names())
def test_a_loader_that_can_be_read_once_is_enough(name: str) -> None:
    embedder, x = embedder_of(name), images()

    def once() -> Iterator[Tensor]:
        yield from x.split(7)

    for generator in (None, 5):

        def drawn(seed: int | None = generator) -> torch.Generator | None:
            return None if seed is None else torch.Generator().manual_seed(seed)

        torch.manual_seed(4)
        whole = embedder.embed(x, samples=6, generator=drawn())
        torch.manual_seed(4)
        e = embedder.embed(once(), samples=6, generator=drawn())
        torch.manual_seed(4)
        streamed = torch.stack(list(embedder.sample_embeddings(once(), 6, generator=drawn())))
        torch.testing.assert_close(e.point, whole.point, atol=1e-5, rtol=1e-5)
        assert e.samples is not None
        torch.testing.assert_close(e.samples, whole.samples, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(streamed, e.samples, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="the loader is empty"):
        embedder.embed(iter([]), samples=2)


@pytest.mark.parametrize("predictive", ["linearised", "sampled"])
def test_a_posterior_over_several_layers_reads_a_loader_once_too(predictive: str) -> None:
    x, y = images(), torch.arange(NUM) % CLASSES
    lam = NetworkLAM(encoder(0), ContrastiveLoss(), layers=2, predictive=predictive, prior_precision=1e3)
    lam.fit([(x, y)], check_mode=False)
    generator = torch.Generator().manual_seed(0)
    e = lam.embed(iter(shuffled(x)), samples=SAMPLES, generator=generator)
    assert e.samples is not None
    assert same_images(e.mean, e.samples).double().mean() > 0.85
