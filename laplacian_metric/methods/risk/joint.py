"""Loss prediction during training: the head and the encoder together, with and without a stop-gradient between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from laplacian_metric.core.arguments import Positive
from laplacian_metric.core.method import Embedder, FitData, Learner, Setup, all_pairs, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.risk.head import RiskHead
from laplacian_metric.methods.risk.loss_prediction import RiskEmbedder, RiskMethod
from laplacian_metric.methods.risk.targets import batch_retrieval_risk, pair_losses, risk_loss


@dataclass(frozen=True)
class JointLossPrediction(RiskMethod):
    """Trains an encoder and a risk head together: the loss of the encoder + weight times that of the head.

    Without the stop-gradient the head's loss changes the features too, and both losses compete for them: retrieval
    gets worse. It is here to show that; `LossPrediction` on the trained network costs it nothing.

    Attributes:
        target: see `LossPrediction`; neighbours, and the pairs of the pair loss, are those of the batch. With
            "cross-entropy" the encoder is trained with a linear classifier of its raw embeddings, else with the pair
            loss.
        loss: "l2", "ranking" or, for "retrieval", "bce"; None is "bce" for "retrieval" and "l2" for losses.
        stop_gradient: whether the head's loss leaves the features alone.
        weight: of the head's loss.
        neighbours: how many of the nearest "retrieval" looks at.
        hidden: units of each of two hidden layers.

    Example:
        >>> JointLossPrediction(target="cross-entropy", stop_gradient=False).weight
        1.0
    """

    name: ClassVar[str] = "joint-loss-prediction"

    stop_gradient: bool = True
    weight: Positive = 1.0

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        encoder = only(encoders, self.name)
        if self.target == "cross-entropy":
            if setup.num_classes is None or setup.num_classes < 2:
                raise ValueError(
                    f"num_classes is {setup.num_classes}: a classifier needs at least 2 classes; give Setup num_classes"
                )
            if setup.pairs is not all_pairs:
                raise ValueError(
                    "cross-entropy trains on no pairs, but a choice of pairs is given: leave it out"
                )
        return JointLearner(JointNetwork(encoder, self, setup), self, setup)


class JointNetwork(nn.Module):
    """An encoder, a risk head on its features and, for cross-entropy, a classifier of its raw embeddings."""

    def __init__(self, encoder: Encoder, method: JointLossPrediction, setup: Setup) -> None:
        super().__init__()
        weight, generator = encoder.head.weight, torch.Generator().manual_seed(setup.seed)
        self.head = RiskHead(
            encoder.num_features, hidden=method.hidden, target=method.target, generator=generator
        ).to(weight)
        self.classifier: nn.Linear | None = None
        if method.target == "cross-entropy":
            assert setup.num_classes is not None
            self.classifier = nn.Linear(encoder.dim, setup.num_classes).to(weight)
            with torch.no_grad():
                drawn = torch.randn(self.classifier.weight.shape, generator=generator)
                self.classifier.weight.copy_(drawn * encoder.dim**-0.5)
                self.classifier.bias.zero_()
        self.encoder = encoder


class JointLearner(Learner):
    """The loss of the embeddings + weight times the loss of the head, whose targets are those of the batch."""

    def __init__(self, network: JointNetwork, method: JointLossPrediction, setup: Setup) -> None:
        super().__init__(network, network.encoder)
        self.network = network
        self.method = method
        self.setup = setup

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        network, method = self.network, self.method
        features = network.encoder.features(inputs)
        u = network.encoder.head(features)
        if network.classifier is not None:
            target = F.cross_entropy(network.classifier(u), labels, reduction="none")
            value = target.mean()
        else:
            pairs = self.setup.pairs(u, labels)
            value = self.setup.loss(u, pairs)
            if method.target == "retrieval":
                target = batch_retrieval_risk(u, labels, method.neighbours)
            else:
                target = pair_losses(u, self.setup.loss, pairs)
        head = network.head
        logits = head.logits(features) if method.stop_gradient else head.logits_with_gradient(features)
        own = risk_loss(method.risk_loss, logits, target, is_share=head.is_share)
        total: Tensor = value + method.weight * own
        return total

    def embedder(self, data: FitData) -> Embedder:
        return RiskEmbedder(self.network.encoder, self.network.head)
