"""Loss prediction on frozen features: a head learns how likely an item is to be retrieved wrongly (Kirchhof, 2024)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from laplacian_metric.core.arguments import Count, Positive
from laplacian_metric.core.batch import Loader
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.method import Embedder, FitData, Learner, Method, Setup, Start, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.features import collect_features
from laplacian_metric.laplace.frozen_features import features_of
from laplacian_metric.methods.risk.fitting import RiskHistory, RiskOptions, fit_head
from laplacian_metric.methods.risk.head import LEAST_RISK, RiskHead, backbone_digest
from laplacian_metric.methods.risk.targets import (
    RiskLoss,
    Target,
    nearest_is_wrong,
    pair_losses,
    retrieval_risk,
    sampled_pairs,
    train_classifier,
)
from laplacian_metric.metrics import nearest_distance, ood_auroc

LEARNED_BY_HEART = 1e-3  # the median cross-entropy below which a head has nothing to learn


@dataclass(frozen=True)
class RiskMethod(Method):
    """The options that all risk heads have.

    Attributes:
        target: see `LossPrediction`.
        neighbours: how many of the nearest "retrieval" looks at.
        loss: "bce", "l2" or "ranking"; None is "bce" for "retrieval" and "l2" for losses.
        hidden: units of each of two hidden layers.
    """

    target: Target = "retrieval"
    neighbours: Count = 10
    loss: RiskLoss | None = None
    hidden: Count = 512

    def __post_init__(self) -> None:
        if self.risk_loss == "bce" and self.target != "retrieval":
            raise ValueError(
                f'loss is "bce", which takes shares, but target is {self.target!r}: use "l2" or "ranking"'
            )

    @property
    def risk_loss(self) -> RiskLoss:
        """The loss of the head, or its default."""
        return self.loss or ("bce" if self.target == "retrieval" else "l2")


@dataclass(frozen=True)
class LossPrediction(RiskMethod):
    """Trains a head on the features of a frozen encoder to predict a risk; the embeddings stay as they are.

    The uncertainty is the predicted risk, and kappa is 1/risk, a decreasing map of it and no width of a distribution.

    Attributes:
        target: "retrieval" is the share of other classes among an item's nearest training items, "pair-loss" its loss
            by the pair loss of the training, "cross-entropy" its loss by a linear classifier of the features.
        neighbours: how many of the nearest "retrieval" looks at.
        loss: "bce", "l2" or "ranking"; None is "bce" for "retrieval" and "l2" for losses.
        hidden: units of each of two hidden layers.
        epochs: at most; validation items choose the epoch, by classes that are not trained on where the data have them.
        views: how many augmented copies of every training image the head is trained on; their features are computed
            once. With 1 the images are taken as they are.
        learning_rate: of the first step.
        batch_size: rows of a step; fewer where there are fewer than 50 steps in an epoch, but 16 at least.
        seed: added to that of the setup.

    Example:
        >>> LossPrediction().risk_loss, LossPrediction(target="cross-entropy").risk_loss
        ('bce', 'l2')
    """

    name: ClassVar[str] = "loss-prediction"
    start: ClassVar[Start] = Start.FROZEN
    trains: ClassVar[bool] = False

    epochs: Count = 6
    views: Count = 1
    learning_rate: Positive = 1e-4
    batch_size: Count = 256
    seed: int = 0

    def options(self, seed: int) -> RiskOptions:
        """Return how the head is trained."""
        return RiskOptions(
            self.risk_loss, self.epochs, self.batch_size, self.learning_rate, seed=self.seed + seed
        )

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return LossPredictionLearner(only(encoders, self.name), self, setup)


class LossPredictionLearner(Learner):
    """A trained encoder that stays as it is; the head is trained when the embedder is made."""

    def __init__(self, encoder: Encoder, method: LossPrediction, setup: Setup) -> None:
        super().__init__(encoder, encoder)
        self.method = method
        self.setup = setup

    def parameters(self) -> list[nn.Parameter]:
        return []

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        raise RuntimeError(
            "loss-prediction trains its head on cached features, in embedder(data): train a network first, and pass "
            "its encoder; joint-loss-prediction trains both together"
        )

    def train_mode(self) -> None:
        self.module.eval()

    def embedder(self, data: FitData) -> Embedder:
        head, history = pretrain(self.encoder, data, self.method, self.setup)
        return RiskEmbedder(self.encoder, head, history)


def pretrain(
    encoder: Encoder,
    data: FitData,
    method: LossPrediction | None = None,
    setup: Setup | None = None,
    *,
    progress: bool | None = None,
) -> tuple[RiskHead, RiskHistory]:
    """Train a risk head for a frozen encoder.

    Args:
        encoder: it is not changed; with ``nn.Identity()`` as its backbone data hold features.
        data: training and validation data with labels, and the folder for features.
        method: the options.
        setup: with the pair loss of the target "pair-loss" and a seed; not needed for other targets.
        progress: whether to show a bar; None asks the terminal.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(300) % 3
        >>> rows = torch.eye(3)[labels] + torch.rand(300, 1) * torch.randn(300, 3, generator=generator)
        >>> data = FitData(Dataset(rows[:200], labels[:200]), Dataset(rows[200:], labels[200:]))
        >>> head, history = pretrain(Encoder.with_head(nn.Identity(), 3), data, LossPrediction(hidden=16))
        >>> head.width, len(history.validation)
        (3, 6)
    """
    method = method or LossPrediction()
    seed = 0 if setup is None else setup.seed
    train = features_of(encoder, data.train, _below(data, "train"))
    validation = features_of(encoder, data.validation, _below(data, "validation"))
    target, validation_target = (
        _target(encoder, features, method, setup, seed) for features in (train, validation)
    )
    generator = torch.Generator().manual_seed(method.seed + seed)
    head = RiskHead(encoder.num_features, hidden=method.hidden, target=method.target, generator=generator)
    head.to(encoder.head.weight.device)
    head.encoder = None if encoder.takes_features else backbone_digest(encoder)
    points = unit_rows(_raw(encoder, validation))
    wrong = nearest_is_wrong(points, validation.labels).cpu()
    history = fit_head(
        head,
        _views(encoder, data, train, method, seed),
        target.cpu(),
        (validation.features, validation_target.cpu(), wrong),
        method.options(seed),
        progress=progress,
    )
    distance = nearest_distance(points).cpu()
    head.card = {
        "trained on": f"{len(train)} items of {len(torch.unique(train.labels))} classes",
        "measured": [
            {
                "data": f"validation, {len(validation)} items, which chose the epoch",
                "R@1": 1 - float(wrong.float().mean()),
                "R-AUROC": history.validation[history.best_epoch - 1],
                "distance": ood_auroc(distance[~wrong], distance[wrong]),
            }
        ],
    }
    return head, history


def _below(data: FitData, name: str) -> Path | None:
    return None if data.folder is None else data.folder / name


@torch.no_grad()
def _raw(encoder: Encoder, features: Dataset) -> Tensor:
    """Return raw embeddings (N, Z) of features, block by block."""
    weight = encoder.head.weight
    return torch.cat([encoder.head(block.to(weight)) for block in features.features.split(1 << 13)])


def _target(
    encoder: Encoder, features: Dataset, method: LossPrediction, setup: Setup | None, seed: int
) -> Tensor:
    """Return what the head is to predict for the items, (N,)."""
    if method.target == "retrieval":
        return retrieval_risk(unit_rows(_raw(encoder, features)), features.labels, method.neighbours)
    if method.target == "cross-entropy":
        # Classes of validation items are others: each set has a classifier of its own.
        classes, labels = torch.unique(features.labels, return_inverse=True)
        classifier = train_classifier(features.features, labels, len(classes), seed=seed)
        with torch.no_grad():
            losses = torch.cat(
                [
                    F.cross_entropy(classifier(rows.float()), label, reduction="none")
                    for rows, label in zip(features.features.split(4096), labels.split(4096), strict=True)
                ]
            )
        if float(losses.median()) < LEARNED_BY_HEART:
            warnings.warn(
                f"the classifier knows {len(losses)} items by heart (half of them have a cross-entropy below "
                f"{LEARNED_BY_HEART}), so that hardly anything is left to predict: take target='retrieval', or more "
                "items",
                stacklevel=2,
            )
        return losses
    if setup is None:
        raise ValueError('target is "pair-loss", which needs the loss of a Setup: pass setup')
    generator = torch.Generator().manual_seed(method.seed + seed)
    return pair_losses(_raw(encoder, features), setup.loss, sampled_pairs(features.labels, generator))


def _views(
    encoder: Encoder, data: FitData, train: Dataset, method: LossPrediction, seed: int
) -> list[Tensor]:
    """Return the features of every view of the training images; each is computed once."""
    if method.views == 1:
        return [train.features]
    images: Loader = data.train
    if not isinstance(images, Dataset) or images.preparation is None or images.preparation.augment is None:
        raise ValueError(
            f"views is {method.views}, but the training data have no augmentation: pass a Dataset of images prepared "
            "with augment=, or views=1"
        )
    return [
        _view(encoder, images, None if data.folder is None else data.folder / f"train-{view + 1}", seed, view)
        for view in range(method.views)
    ]


def _view(encoder: Encoder, images: Dataset, folder: Path | None, seed: int, view: int) -> Tensor:
    """Return the features of one augmented copy of every image, in order."""
    rows = list(torch.arange(len(images)).split(images.batch_size))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1_000_003 * (view + 1))
        generator = torch.Generator().manual_seed(seed + view + 1)
        return collect_features(encoder, images.batches(rows, generator), folder=folder).features


class RiskEmbedder(Embedder):
    """The points of the frozen encoder, with the predicted risk as their uncertainty.

    Args:
        encoder: whose features the head takes.
        head: trained.
        history: of its training, which `settings` tells.
    """

    def __init__(self, encoder: Encoder, head: RiskHead, history: RiskHistory | None = None) -> None:
        super().__init__(nn.ModuleList([head, encoder]))
        self.encoder = encoder
        self.head = head
        self.history = history

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        features = self.encoder.features(inputs)
        point = unit_rows(self.encoder.head(features))
        risk = self.head(features)
        kappa = risk.clamp(min=LEAST_RISK).reciprocal().to(point)
        return StochasticEmbedding(point, point, kappa, risk.to(point))

    def settings(self) -> dict[str, Any]:
        history = self.history
        if history is None:
            return {}
        return {"epoch": history.best_epoch, "validation_r_auroc": history.validation[history.best_epoch - 1]}
