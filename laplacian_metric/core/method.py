"""What a method is: a way to turn an image into a distribution on the sphere, and how it is learned.

A `Method` holds the options of one. From an encoder it makes a `Learner`, which is what the training loop trains; a
trained learner makes an `Embedder`, which turns images into a `StochasticEmbedding`. The methods are in
`laplacian_metric.methods`, one file each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from hessians import Pairs
from hessians.checks import Choice
from hessians.pair_loss import PairLoss
from laplacian_metric.core.batch import Batch, Loader, map_batches
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.gaussian import Gaussians

if TYPE_CHECKING:
    from laplacian_metric.encoder import Encoder


class Start(Choice):
    """What a method starts from."""

    SCRATCH = "scratch"
    """An encoder with initial weights, all of which are trained."""
    NETWORK = "network"
    """A trained encoder whose weights go on being trained."""
    FROZEN = "frozen"
    """A trained encoder whose backbone stays as it is, so that its features can be computed once."""
    NETWORKS = "networks"
    """Several trained encoders."""


def all_pairs(u: Tensor, labels: Tensor) -> Pairs:
    """Every pair of a batch."""
    return Pairs.from_labels(labels)


class Keep(Choice):
    """Which epoch's weights are kept."""

    RETRIEVAL = "retrieval"
    """The one in which validation images are retrieved best."""
    LOSS = "loss"
    """The one with the lowest loss on validation images: for what does not change the points."""
    LAST = "last"
    """The last one: for what is made of the whole training."""


@dataclass(frozen=True)
class Setup:
    """What a method is told besides its own options.

    Attributes:
        loss: of pairs of deterministic embeddings; what the network is, or was, trained with.
        num_images: how many images it is trained on.
        num_classes: of the training images, whose labels are 0 to ``num_classes`` - 1, for losses with a row for each
            class, such as proxies; None where nobody said.
        weight_decay: of the training.
        seed: of what the method initialises itself.
        pairs: which pairs of a batch, given raw embeddings (N, Z) and labels (N,), are trained on.
    """

    loss: PairLoss
    num_images: int
    weight_decay: float = 0.0
    seed: int = 0
    pairs: Callable[[Tensor, Tensor], Pairs] = all_pairs
    num_classes: int | None = None


@dataclass(frozen=True)
class FitData:
    """What a trained learner may look at to become an embedder. Test images are not among it.

    Attributes:
        train: the training images without augmentation, in order: a data set, or a list of batches (inputs, labels),
            which `map_batches` reads.
        validation: other images, of the same form.
        folder: where something large, such as features, may be kept; None for memory only.
    """

    train: Loader
    validation: Loader
    folder: Path | None = None


class Embedder(ABC):
    """Turns images into distributions on the sphere.

    Args:
        module: everything that has weights; it is put into evaluation mode while images are embedded.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @abstractmethod
    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        """One batch, without joint samples; called in evaluation mode, without gradients, on the module's device."""

    def embed(
        self,
        inputs: Any,
        *,
        samples: int = 0,
        generator: torch.Generator | None = None,
        progress: bool | None = None,
    ) -> StochasticEmbedding:
        """Embed images (a tensor, or a tuple or dictionary of the backbone's inputs), a data set's or a loader's.

        A loader yields inputs, or tuples whose first entry they are; it is read once. With ``samples`` the embedding
        has joint samples (samples, N, Z), of the same images.
        """

        def one(batch: Batch) -> tuple[Any, StochasticEmbedding]:
            encoded = self.encode(batch.inputs)
            return encoded if samples else None, self.distributions(encoded)

        parts = map_batches(one, inputs, self.module, progress=progress)
        e = StochasticEmbedding.cat([part for _, part in parts])
        if not samples:
            return e
        drawn = self.sample_encoded([encoded for encoded, _ in parts], samples, generator)
        return e.with_samples(torch.stack(list(drawn)))

    def sample_embeddings(
        self, inputs: Any, samples: int, *, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        """Return joint samples one after the other, (N, Z) unit rows each; a loader is read once."""
        encoded = map_batches(lambda batch: self.encode(batch.inputs), inputs, self.module)
        return self.sample_encoded(encoded, samples, generator)

    def encode(self, inputs: Any) -> Any:
        """Return what of a batch its embedding and its joint samples come from: here the embedding itself.

        A method that draws weights is a `JointEmbedder` and keeps what all draws have in common, such as features.
        """
        return self.embed_batch(inputs)

    def distributions(self, encoded: Any) -> StochasticEmbedding:
        """Return the embedding of a batch from what `encode` returned."""
        e: StochasticEmbedding = encoded
        return e

    def sample_encoded(
        self, encoded: list[Any], samples: int, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        """Yield joint samples (N, Z) of all batches, from what `encode` returned for each.

        Here the images are independent of each other; a method that draws weights gives all images the same draw.
        """
        e = StochasticEmbedding.cat(encoded)
        for _ in range(samples):
            yield e.sample(1, generator=generator)[0]

    def scores(self, inputs: Any) -> dict[str, Tensor]:
        """Every score (N,) of how unsure the method is of images, or of a loader's: "own" is its uncertainty.

        Beside it are 1/kappa and, where there are Gaussians of the raw embeddings, the sum of their variances.
        """
        return scores_of(self.embed(inputs))

    def settings(self) -> dict[str, Any]:
        """What was chosen while it was fitted, as plain values."""
        return {}

    def similarity(self, queries: StochasticEmbedding, gallery: StochasticEmbedding) -> Tensor | None:
        """The method's own score of how well images match, (Q, G); None where it is the cosine of the points."""
        return None

    def other_similarities(
        self, queries: StochasticEmbedding, gallery: StochasticEmbedding
    ) -> dict[str, Tensor]:
        """Further scores (Q, G) by which it may retrieve, by name: what is measured beside its own."""
        return {}


class JointEmbedder(Embedder):
    """Base of embedders that give all images the same draws: what a draw needs of the images is kept of the pass."""

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        return self.distributions(self.encode(inputs))

    @abstractmethod
    def encode(self, inputs: Any) -> Any: ...

    @abstractmethod
    def distributions(self, encoded: Any) -> StochasticEmbedding: ...

    @abstractmethod
    def sample_encoded(
        self, encoded: list[Any], samples: int, generator: torch.Generator | None
    ) -> Iterator[Tensor]: ...


def scores_of(e: StochasticEmbedding) -> dict[str, Tensor]:
    """The scores (N,) that an embedding has by itself.

    Example:
        >>> z = torch.tensor([[1.0, 0.0]])
        >>> scores_of(StochasticEmbedding(z, z, torch.tensor([4.0]), torch.tensor([0.3])))
        {'own': tensor([0.3000]), '1/kappa': tensor([0.2500])}
    """
    scores = {"own": e.uncertainty, "1/kappa": e.kappa.reciprocal()}
    return scores if e.gaussians is None else {**scores, "variance": e.variance.sum(1)}


class Learner(ABC):
    """What the training loop trains: a module and the loss of a batch.

    A checkpoint keeps the module's state dictionary, what `state` returns, the optimizer's state and that of the
    generator which `begin` was given.

    Args:
        module: everything that has weights, frozen ones included.
        encoder: of the points by which validation images are retrieved; a learner without one defines `points`.

    Attributes:
        same_draws: whether all of many processes have to draw the same numbers.
        keep: which epoch's weights are kept.
        needs_labels: whether training images need labels; where not, labels have no part in the training.
        refresh: after how many steps of an epoch, at most, `choose` is asked again; None where batches are read as they
            were dealt.
        euclidean: whether points are compared by their distance as they are, rather than by their direction.
    """

    same_draws: ClassVar[bool] = False
    keep: ClassVar[Keep] = Keep.RETRIEVAL
    needs_labels: ClassVar[bool] = True
    refresh: int | None = None
    euclidean: bool = False
    encoder: Encoder

    def __init__(self, module: nn.Module, encoder: Encoder | None = None) -> None:
        self.module = module
        if encoder is not None:
            self.encoder = encoder

    def parameters(self) -> list[nn.Parameter]:
        """Those that are trained."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def begin(self, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
        """Called once before the first step, or before a resumed one; the generator is for the learner's draws."""
        self.optimizer = optimizer
        self.generator = generator

    @abstractmethod
    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        """The loss of a batch, a differentiable scalar. The module is in the mode that `train_mode` puts it into."""

    def train_mode(self) -> None:
        """Put what is trained into training mode; a learner with frozen parts leaves those in evaluation mode."""
        self.module.train()

    def step(self) -> None:
        """Take a step of the optimizer; the gradients are there already."""
        self.optimizer.step()

    def choose(self, images: Dataset, rows: Sequence[Tensor]) -> list[Tensor]:
        """The positions that are read in place of those of the next batches, as many batches; see `refresh`.

        Called at the beginning of every epoch, whenever a checkpoint was written inside of one and after so many steps,
        without gradients and in evaluation mode, with all training images and the positions (B,) of each batch. Draws
        come from the generator that `begin` gave.
        """
        return list(rows)

    def end_epoch(self) -> None:  # noqa: B027 (most learners have nothing to do here)
        """Called after the last step of every epoch, before validation."""

    def points(self, inputs: Any) -> Tensor:
        """Return the deterministic embeddings (N, Z), unit or raw, by which validation images are retrieved."""
        return self.encoder.raw(inputs)

    def state(self) -> dict[str, Tensor]:
        """Whatever a resumed training or a loaded checkpoint needs besides the module."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        if state:
            raise ValueError(
                f"the checkpoint holds {', '.join(sorted(state))}, which {type(self).__name__} does not keep: it is "
                "of another method"
            )

    @abstractmethod
    def embedder(self, data: FitData) -> Embedder:
        """What embeds images with the module as it is now."""


class Method(ABC):
    """A way to turn an image into a distribution; a subclass is a frozen dataclass of its own options.

    Attributes:
        name: what the registry calls it.
        start: what it starts from.
        trains: whether there is anything for the training loop to do.
        has_uncertainty: whether its embeddings tell anything of how sure they are.
        needs_labels: whether labels have a part in its training.
    """

    name: ClassVar[str]
    start: ClassVar[Start] = Start.SCRATCH
    trains: ClassVar[bool] = True
    has_uncertainty: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True

    @abstractmethod
    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        """What is trained, with the head that the method needs.

        Args:
            encoders: one, or several where the method starts from several networks. They become part of the learner.
            setup: what the method is told.
        """


def only(encoders: Sequence[Encoder], method: str) -> Encoder:
    """The one encoder of a method that takes one.

    Example:
        >>> only([], "pfe")
        Traceback (most recent call last):
        ...
        ValueError: pfe takes one encoder, 0 are given
    """
    if len(encoders) != 1:
        raise ValueError(f"{method} takes one encoder, {len(encoders)} are given")
    return encoders[0]


class CertainEmbedder(Embedder):
    """One whose embeddings have no spread: every joint sample is the same."""

    def sample_encoded(
        self, encoded: list[Any], samples: int, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        z = StochasticEmbedding.cat([self.distributions(part) for part in encoded]).point
        for _ in range(samples):
            yield z


class PointEmbedder(CertainEmbedder):
    """The encoder's points."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder)
        self.encoder = encoder

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        return without_spread(self.encoder.raw(inputs))


def without_spread(u: Tensor, gaussians: Gaussians | None = None) -> StochasticEmbedding:
    """The directions of (N, Z), each of which is certain."""
    z = unit_rows(u)
    certain = z.new_full((len(z),), torch.inf)
    return StochasticEmbedding(z, z, certain, certain.reciprocal(), gaussians)
