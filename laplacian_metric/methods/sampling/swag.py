"""A Gaussian over the weights from the path that training takes (SWAG; Maddox et al., 2019)."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.func import functional_call

from hessians.checks import Choice
from laplacian_metric.core.arguments import Count, Draws, NotNegative
from laplacian_metric.core.batch import Batch, Loader, map_batches, repeatable
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.method import Embedder, FitData, Keep, Learner, Method, Setup, Start, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.layers import batch_norm_statistics, tracking_layers
from laplacian_metric.methods.sampling.samples import DrawnEmbedder
from laplacian_metric.methods.sampling.weight_moments import WeightMoments

Weights = dict[str, Tensor]


class Which(Choice):
    """Which weights are trained and drawn."""

    ALL = "all"
    """All that require a gradient."""
    HEAD = "head"
    """Those of the head; the backbone stays as it is, in evaluation mode."""


class BatchNorm(Choice):
    """The statistics of batch norm layers under drawn weights."""

    UPDATE = "update"
    """Computed anew on the training images for every draw, and for the mean weights."""
    KEEP = "keep"
    """Those of the last weights, which are wrong for others, and cost nothing."""


@dataclass(frozen=True)
class SWAG(Method):
    """Goes on training an encoder, usually at a constant learning rate, and keeps moments of the weights on its way.

    A draw is mean + sqrt(scale/2) (sqrt(variance) z1 + D z2 / sqrt(K - 1)) with the last K deviations from the running
    mean in the columns of D, and mean + sqrt(scale variance) z1 with ``rank`` 0. The point is the embedding by the mean
    weights. The last epoch is kept, which has seen all snapshots, and not the one that retrieves best.

    Attributes:
        weights: which weights are trained and drawn.
        rank: the largest K; 0 for the variances alone.
        collect_every: steps from one snapshot to the next; None takes one after every epoch.
        burn_in: epochs before the first snapshot.
        scale: of the covariance; 1 is what the paper has.
        samples: how many draws the mean direction and kappa come from, at least 2.
        seed: of the draws, which are the same for all images.
        batch_norm: the statistics of batch norm layers under drawn weights.

    Example:
        >>> SWAG(weights="head").rank
        20
    """

    name: ClassVar[str] = "swag"
    start: ClassVar[Start] = Start.NETWORK

    weights: Which = Which.ALL
    rank: Annotated[int, Field(ge=0)] = 20
    collect_every: Count | None = None
    burn_in: Annotated[int, Field(ge=0)] = 0
    scale: NotNegative = 1.0
    samples: Draws = 100
    seed: int = 0
    batch_norm: BatchNorm = BatchNorm.UPDATE

    def __post_init__(self) -> None:
        if self.rank == 1:
            raise ValueError(
                "rank is 1: a covariance takes 2 deviations or more, and 0 uses the variances alone"
            )

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return SWAGLearner(only(encoders, self.name), self, setup)


def _as_vector(weights: Iterable[Tensor]) -> Tensor:
    """Return weights one after the other (P,), in the order of their indices; they may be channels-last."""
    return torch.cat([weight.detach().contiguous().view(-1) for weight in weights])


class SWAGLearner(Learner):
    """The pair loss, with a snapshot of the weights now and then."""

    keep: ClassVar[Keep] = Keep.LAST

    def __init__(self, encoder: Encoder, method: SWAG, setup: Setup) -> None:
        super().__init__(encoder, encoder)
        self.method = method
        self.pair_loss = setup.loss
        self.pairs = setup.pairs
        trained = self._trained()
        if not trained:
            where = "the head" if method.weights is Which.HEAD else "the encoder"
            raise ValueError(
                f"no weight of {where} requires a gradient: there is nothing to train or to draw"
            )
        self.moments = WeightMoments(_as_vector(trained.values()), method.rank)
        self.steps = 0
        self.epochs = 0

    def _trained(self) -> dict[str, nn.Parameter]:
        """What is trained and drawn, by its name in the encoder."""
        only_head = self.method.weights is Which.HEAD
        return {
            name: parameter
            for name, parameter in self.encoder.named_parameters()
            if parameter.requires_grad and (name.startswith("head.") or not only_head)
        }

    def parameters(self) -> list[nn.Parameter]:
        return list(self._trained().values())

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.method.weights is Which.ALL):
            features = self.encoder.features(inputs)
        u = self.encoder.head(features)
        return self.pair_loss(u, self.pairs(u, labels))

    def train_mode(self) -> None:
        self.module.train()
        if self.method.weights is Which.HEAD:
            self.encoder.backbone.eval()

    def step(self) -> None:
        super().step()
        self.steps += 1
        every = self.method.collect_every
        if every is not None and self.steps % every == 0 and self.epochs >= self.method.burn_in:
            self.collect()

    def end_epoch(self) -> None:
        self.epochs += 1
        if self.method.collect_every is None and self.epochs > self.method.burn_in:
            self.collect()

    def collect(self) -> None:
        """Take a snapshot of the weights as they are."""
        self.moments.add(_as_vector(self.parameters()))

    def state(self) -> dict[str, Tensor]:
        counters = {"steps": torch.tensor(self.steps), "epochs": torch.tensor(self.epochs)}
        return {**self.moments.state(), **counters}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        missing = sorted(self.state().keys() - state.keys())
        if missing:
            raise ValueError(f"the checkpoint has no {', '.join(missing)}: it is not of swag")
        self.moments.restore(state)
        self.steps, self.epochs = int(state["steps"]), int(state["epochs"])

    def embedder(self, data: FitData) -> Embedder:
        if not self.moments.count:
            raise ValueError(
                f"no snapshot was taken in {self.epochs} epochs and {self.steps} steps: train longer than burn_in "
                f"({self.method.burn_in} epochs), or lower collect_every"
            )
        if self.moments.count == 1:
            warnings.warn("one snapshot was taken, which has no spread: every draw is the same", stacklevel=2)
        shapes = {name: parameter.shape for name, parameter in self._trained().items()}
        return SWAGEmbedder(self.encoder, self.method, copy.copy(self.moments), shapes, data.train)


class SWAGEmbedder(DrawnEmbedder):
    """Mean direction and kappa of many draws of the weights; draw s is the same for every image and in every call.

    Args:
        encoder: its weights are left as they are.
        method: its options.
        moments: of the weights that are drawn.
        shapes: of these weights, in their order in the moments, by their names in the encoder.
        train: the training images, for the statistics of batch norm layers.
    """

    def __init__(
        self,
        encoder: Encoder,
        method: SWAG,
        moments: WeightMoments,
        shapes: Mapping[str, torch.Size],
        train: Loader,
    ) -> None:
        super().__init__(encoder, method.samples)
        self.encoder = encoder
        self.method = method
        self.moments = moments
        self.shapes = dict(shapes)
        self.train = train
        updates = method.weights is Which.ALL and method.batch_norm is BatchNorm.UPDATE
        self._has_statistics = updates and bool(tracking_layers(encoder))
        self._statistics: dict[int, Weights] = {}  # by the number of the draw, -1 for the mean

    def encode(self, inputs: Any) -> Any:
        """Return the features (N, H) where only the head is drawn, otherwise the inputs."""
        return self.encoder.features(inputs) if self.method.weights is Which.HEAD else inputs

    def distributions(self, encoded: Any) -> StochasticEmbedding:
        point = self._finish(encoded, self._network(self.moments.mean, -1))
        return self.summed_up(
            (self._finish(encoded, weights) for weights in self._networks(self.draws)), point
        )

    def settings(self) -> dict[str, Any]:
        return {"snapshots": self.moments.count}

    def sample_embeddings(
        self, inputs: Any, samples: int, *, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        """Return one draw after the other, each of all images.

        Of a loader the features are held where only the head is drawn, and otherwise the inputs; a list and a data set
        are read again for every draw.
        """
        if self.method.weights is Which.HEAD:
            return super().sample_embeddings(inputs, samples, generator=generator)
        return self._drawn(repeatable(inputs), samples, generator)

    def sample_encoded(
        self, encoded: list[Any], samples: int, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        return self._drawn([Batch(part) for part in encoded], samples, generator)

    def _drawn(self, batches: Any, samples: int, generator: torch.Generator | None) -> Iterator[Tensor]:
        for weights in self._networks(samples, generator):
            parts = map_batches(
                partial(self._of_batch, weights=weights), batches, self.module, progress=False
            )
            yield torch.cat(parts)

    def _of_batch(self, batch: Batch, weights: Weights) -> Tensor:
        return self._finish(batch.inputs, weights)

    def _finish(self, h: Any, weights: Weights) -> Tensor:
        """The unit embeddings (N, Z) by these weights."""
        if self.method.weights is Which.HEAD:
            own = {name.removeprefix("head."): weight for name, weight in weights.items()}
            return unit_rows(functional_call(self.encoder.head, own, (h,)))
        return unit_rows(functional_call(self.encoder, weights, (h,)))

    def _networks(self, count: int, generator: torch.Generator | None = None) -> Iterator[Weights]:
        """Drawn weights one after the other; the same ones each time without a generator."""
        repeated = generator is None
        generator = torch.Generator().manual_seed(self.method.seed) if generator is None else generator
        for number in range(count):
            theta = self.moments.draw(generator, self.method.scale)
            yield self._network(theta, number if repeated else None)

    def _network(self, theta: Tensor, number: int | None) -> Weights:
        """Weights (P,) by name, with the batch norm statistics that belong to them; those of a number are kept."""
        weights, start = {}, 0
        for name, shape in self.shapes.items():
            like = self.encoder.get_parameter(name)
            weights[name] = theta[start : start + shape.numel()].reshape(shape).to(like)
            start += shape.numel()
        if not self._has_statistics:
            return weights
        statistics = None if number is None else self._statistics.get(number)
        if statistics is None:
            statistics = batch_norm_statistics(self.encoder, weights, self.train)
            if number is not None:
                self._statistics[number] = statistics
        return {**weights, **statistics}
