"""A classifier over the embeddings: entropy, maximum and energy of its softmax; several heads, dropout, an ensemble."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.methods.softmax.base import SoftmaxLearner, SoftmaxNetwork, classes_of
from experiments.methods.softmax.probabilities import Score
from laplacian_metric.core.arguments import Count, Draws, Positive, Probability
from laplacian_metric.core.embedding import unit_rows
from laplacian_metric.core.method import Learner, Method, Setup, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.dropout import Pieces, dropout
from laplacian_metric.encoder.heads import random_head


@dataclass(frozen=True)
class Softmax(Method):
    """Trains an encoder with a linear classifier of its raw embeddings, by cross-entropy.

    With several heads the cross-entropy is that of their mean probabilities; the encoder is one, so that this is no
    ensemble of networks (see `SoftmaxEnsemble`). With dropout the probabilities are means over draws of the masks, and
    retrieval uses the embedding without dropout.

    Attributes:
        score: "entropy", "maximum" (1 - the greatest probability), "energy" (-logsumexp of the logits) or, of several
            heads or draws, "disagreement" (Jensen-Shannon divergence). The others are among the embedder's scores.
        heads: how many classifiers.
        dropout: the probability that an entry is dropped, before every layer but the first one.
        samples: draws of the masks that images are embedded with.
        temperature: divides the logits; None maximises the likelihood of validation images of training classes; it is
            1 where there are none.

    Example:
        >>> Softmax(heads=10).score
        'entropy'
    """

    name: ClassVar[str] = "softmax"

    score: Score = "entropy"
    heads: Count = 1
    dropout: Probability = 0.0
    samples: Count = 10
    temperature: Positive | None = None

    def __post_init__(self) -> None:
        if self.score == "disagreement" and self.heads == 1 and not (self.dropout and self.samples > 1):
            raise ValueError(
                'score is "disagreement", which one head alone does not have: raise heads or dropout'
            )

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        encoder, classes = only(encoders, self.name), classes_of(setup, self.name)
        network = MultiHead(encoder, classes, self.heads, self.dropout, self.samples, setup.seed)
        return SoftmaxLearner(network, self.score, self.temperature)


class MultiHead(SoftmaxNetwork):
    """One encoder with one or several linear classifiers of its raw embeddings, and dropout where asked for."""

    def __init__(
        self, encoder: Encoder, num_classes: int, heads: int, rate: float, samples: int, seed: int
    ) -> None:
        super().__init__(num_classes)
        self.encoder, self.heads, self.rate, self.samples, self.seed = encoder, heads, rate, samples, seed
        generator = torch.Generator().manual_seed(seed)
        self.classifier = random_head(encoder.dim, heads * num_classes, generator=generator).to(
            encoder.head.weight
        )

    def points(self, inputs: Any) -> Tensor:
        return self.encoder.raw(inputs)

    def classified(self, u: Tensor) -> Tensor:
        """Return the logits (heads, N, C) of raw embeddings (N, Z)."""
        logits: Tensor = self.classifier(u)
        return logits.view(len(u), self.heads, self.num_classes).transpose(0, 1)

    def draws(self, inputs: Any, generator: torch.Generator | None) -> Tensor:
        if not self.rate:
            return self.classified(self.encoder.raw(inputs))
        return self.classified(Pieces.of(self.encoder).raw(inputs, dropout(self.rate, generator)))

    def embed(self, inputs: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        if not self.rate:
            u = self.encoder.raw(inputs)
            return u, self.classified(u), {}
        pieces = Pieces.of(self.encoder)
        begun = pieces.begin(inputs)
        drop = dropout(self.rate, torch.Generator().manual_seed(self.seed), shared=True)
        drawn = [self.classified(pieces.finish(begun, drop)) for _ in range(self.samples)]
        return pieces.finish(begun, lambda x: x), torch.cat(drawn), {}


@dataclass(frozen=True)
class SoftmaxEnsemble(Method):
    """Trains several networks with a classifier each, from initial weights of their own, and averages probabilities.

    Every member has its own loss; they see the same batches. Retrieval uses the members' embeddings side by side, whose
    cosines are the averages of theirs.

    Attributes:
        score: see `Softmax`.
        members: how many networks.
        redraw: whether all members but the first get initial weights of their own, drawn as their layers draw them.
            With False, for encoders that were trained already, only classifiers differ at the start.
        temperature: see `Softmax`.

    Example:
        >>> SoftmaxEnsemble(members=3).members
        3
    """

    name: ClassVar[str] = "softmax-ensemble"

    score: Score = "entropy"
    members: Draws = 5
    redraw: bool = True
    temperature: Positive | None = None

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        encoder, classes = only(encoders, self.name), classes_of(setup, self.name)
        network = Members(encoder, classes, self.members, setup.seed, self.redraw)
        return SoftmaxLearner(network, self.score, self.temperature)


class Members(SoftmaxNetwork):
    """Networks with a classifier each."""

    def __init__(self, encoder: Encoder, num_classes: int, members: int, seed: int, redraw: bool) -> None:
        super().__init__(num_classes)
        encoders = [encoder, *(copy.deepcopy(encoder) for _ in range(members - 1))]
        networks = []
        for number, member in enumerate(encoders):
            if number and redraw:
                redrawn(member, seed + 1_000_003 * number)
            networks.append(MultiHead(member, num_classes, 1, 0.0, 1, seed + 1_000_003 * number))
        self.members = nn.ModuleList(networks)

    def points(self, inputs: Any) -> Tensor:
        return self.embed(inputs)[0]

    def draws(self, inputs: Any, generator: torch.Generator | None) -> Tensor:
        return torch.cat([member.draws(inputs, generator) for member in self.members])  # type: ignore[operator]

    def member_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the members' own cross-entropies, so that each is trained as if it were alone."""
        return torch.stack([F.cross_entropy(member, labels) for member in logits]).sum()

    def embed(self, inputs: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        parts = [member.embed(inputs) for member in self.members]  # type: ignore[operator]
        beside = torch.cat([unit_rows(u) for u, _, _ in parts], dim=1) / math.sqrt(len(parts))
        return beside, torch.cat([logits for _, logits, _ in parts]), {}


def redrawn(module: nn.Module, seed: int) -> None:
    """Draw the weights of a module anew, as its layers do at their start; torch's global generator stays as it was.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> before = layer.weight.clone()
        >>> redrawn(layer, 0)
        >>> torch.equal(before, layer.weight)
        False
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, part in module.named_modules():
            if any(True for _ in part.parameters(recurse=False)):
                reset = getattr(part, "reset_parameters", None)
                if not callable(reset):
                    raise ValueError(
                        f"{name or type(part).__name__} has weights and no reset_parameters, so that members cannot "
                        "get initial weights of their own: pass redraw=False"
                    )
                reset()
