"""What methods refuse beside options: each error names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hessians import InfoNCELoss, Pairs
from laplacian_metric import methods
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import FitData, Learner, Setup
from laplacian_metric.data.views import ViewError
from laplacian_metric.laplace.online.running import Running
from laplacian_metric.laplace.posthoc import NotFittedError
from laplacian_metric.methods.self_supervised.two_views import ViewLoader
from laplacian_metric.methods.spherical.vmf_head import VMFHead
from tests.methods.learning import LOSS, NOTHING, encoder_of, learner_of, two_clusters

X, LABELS = two_clusters(12, 0)
NAN = X.clone()
NAN[7, 1] = torch.nan
PIXELS = torch.rand(4, 3, 6, 6)
CHOSEN = {"pairs": lambda u, labels: Pairs.from_labels(labels)}


def made(name: str, setup: Setup | None = None, dim: int = 3, **options: Any) -> Learner:
    """Return the learner of a method whose training has not begun."""
    return methods.make(name, **options).learner([encoder_of(dim)], setup or Setup(LOSS, 60, num_classes=3))


def loss(learner: Learner, inputs: Tensor = X, labels: Tensor = LABELS) -> Tensor:
    learner.train_mode()
    return learner.loss(inputs, labels)


def of_one_view(inputs: Tensor, method: Any = "deterministic", augmentation: Any = None) -> Tensor:
    arguments = () if augmentation is None else (augmentation,)
    learner = methods.unlabelled(method, *arguments).learner([encoder_of()], Setup(LOSS, 60, num_classes=3))
    return learner.loss(inputs, torch.zeros(len(inputs)))


def similarity_of_points(name: str) -> object:
    embedder = learner_of(name).embedder(NOTHING)
    e = embedder.embed(X)
    return embedder.similarity(StochasticEmbedding(e.point, e.mean, e.kappa, e.uncertainty), e)


def laplace_of(inputs: Tensor) -> object:
    return made("laplace").embedder(FitData(Dataset(inputs, LABELS[: len(inputs)]), []))


def uneven(x: Tensor, generator: torch.Generator | None, sizes: list[int] = [3, 4]) -> Tensor:  # noqa: B006
    """Return a view whose size is another one in each call."""
    sizes.append(sizes.pop(0))
    return x[..., : sizes[0]]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: learner_of("ensemble", encoder_of()), ValueError, "encoders"),
        (lambda: learner_of("ensemble", encoder_of(), encoder_of(2)), ValueError, "dimensions"),
        (lambda: loss(learner_of("ensemble")), RuntimeError, "trained"),
        (lambda: loss(made("laplace")), RuntimeError, "trains"),
        (lambda: made("laplace", Setup(LOSS, 60), prior="decay"), ValueError, "weight decay"),
        (lambda: made("laplace", Setup(InfoNCELoss(), 60), norm=False), ValueError, "InfoNCELoss"),
        (lambda: laplace_of(X[:1]), ValueError, "1 image"),
        (lambda: laplace_of(NAN), ValueError, "row 7"),
        *((lambda name=name: loss(made(name)), RuntimeError, "begin") for name in ("mc-dropout", "online-laplace")),
        (lambda: learner_of("online-laplace").embedder(NOTHING), NotFittedError, "no step"),
        (lambda: learner_of("online-laplace").restore({}), ValueError, "state"),
        (lambda: made("online-laplace").restore({}), ValueError, "state"),
        (
            lambda: learner_of("online-laplace").restore(Running(torch.zeros(2, 6), share=0.1).tensors()),
            ValueError,
            "curvature",
        ),
        (
            lambda: loss(
                learner_of("online-laplace", setup={"pairs": lambda u, labels: Pairs.from_labels(labels[:-1])})
            ),
            ValueError,
            "11 images",
        ),
        (lambda: learner_of("swag").restore({}), ValueError, "checkpoint"),
        (lambda: learner_of("swag").restore(learner_of("swag", weights="head").state()), ValueError, "weights"),
        (lambda: learner_of("swag").embedder(NOTHING), ValueError, "snapshot"),
        (lambda: learner_of("swag", encoder_of().requires_grad_(False), weights="head"), ValueError, "head"),
        (lambda: loss(learner_of("pfe"), X[:1], LABELS[:1]), ValueError, "drop_last"),
        (lambda: loss(learner_of("pfe"), NAN), ValueError, "direction"),
        *((lambda name=name: similarity_of_points(name), ValueError, "Gaussians") for name in ("pfe", "hib")),
        *((lambda name=name: made(name, dim=1), ValueError, "dim is 1") for name in ("vmf", "proxies")),
        (lambda: VMFHead().learner([encoder_of()], Setup(LOSS, 9, **CHOSEN)), ValueError, "pairs"),
        (lambda: made("proxies", Setup(LOSS, 9)), ValueError, "num_classes"),
        (lambda: made("proxies", Setup(LOSS, 9, num_classes=1)), ValueError, "num_classes is 1"),
        (lambda: made("proxies", Setup(LOSS, 9, num_classes=3, **CHOSEN)), ValueError, "pairs"),
        (lambda: loss(made("proxies"), X, LABELS + 2), ValueError, "labels has class 3"),
        (
            lambda: made("joint-loss-prediction", Setup(LOSS, 9), target="cross-entropy"),
            ValueError,
            "num_classes",
        ),
        (lambda: of_one_view(PIXELS[:1]), ViewError, "1 image"),
        (lambda: of_one_view(PIXELS * torch.nan), ViewError, "from 0 to 1"),
        (lambda: of_one_view(PIXELS, augmentation=uneven), ViewError, "in one size"),
        (lambda: list(ViewLoader(Dataset(PIXELS[:1]))), ViewError, "1 image"),
        (lambda: of_one_view(PIXELS, "umm"), ValueError, "without unlabelled"),
        (lambda: of_one_view(PIXELS, methods.make("triplet")), ValueError, "labels"),
        (lambda: of_one_view(PIXELS, "proxies"), ValueError, "num_classes"),
        (lambda: made("umm", Setup(LOSS, 4, **CHOSEN)), ValueError, "pairs"),
        (
            lambda: methods.make("unlabelled", method="vmf", options={"sampels": 2}),
            ValueError,
            "sampels",
        ),
    ],
)  # fmt: skip
def test_bad_inputs(call: Callable[[], object], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        call()
