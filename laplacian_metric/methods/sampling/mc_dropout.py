"""Dropout that stays on: every draw of its masks is another network (Gal and Ghahramani, 2016)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from hessians.checks import Choice
from laplacian_metric.core.arguments import Draws, Probability
from laplacian_metric.core.embedding import StochasticEmbedding, unit_rows
from laplacian_metric.core.method import Embedder, FitData, Learner, Method, Setup, only
from laplacian_metric.core.modes import evaluating
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.dropout import Drop, Pieces, dropout
from laplacian_metric.methods.sampling.samples import DrawnEmbedder

CACHED_BYTES = 2**23


class Where(Choice):
    """Which layers have dropout before them."""

    ALL = "all"
    """Every linear layer and convolution but the first, and the head; only the head where the backbone's layers are in
    anything but ``nn.Sequential`` modules, as those of a ResNet are."""
    HEAD = "head"
    """The head."""


class Masks(Choice):
    """What the images have in common in one draw while they are embedded; in training each has masks of its own."""

    SHARED = "shared"
    """The masks: one draw is one network, which embeds all images."""
    INDEPENDENT = "independent"
    """Nothing: every image is embedded by another network."""


class Point(Choice):
    """The embedding that retrieval uses."""

    DETERMINISTIC = "deterministic"
    """That of the network without dropout."""
    MEAN = "mean"
    """The mean direction of the samples."""


@dataclass(frozen=True)
class MCDropout(Method):
    """Trains an encoder with dropout between its layers, and embeds with many draws of the masks.

    The modules of the encoder stay as they are, and so do their names: its checkpoints are those of the plain encoder.

    Attributes:
        rate: the probability that an entry is dropped.
        where: which layers have dropout before them.
        samples: how many draws the mean direction and kappa come from, at least 2.
        masks: what the images have in common in one draw.
        point: the embedding that retrieval uses.
        seed: of the draws: the same for every image, however images are cut into batches (with shared masks).

    Example:
        >>> MCDropout(masks="independent").rate
        0.2
    """

    name: ClassVar[str] = "mc-dropout"

    rate: Probability = 0.2
    where: Where = Where.ALL
    samples: Draws = 100
    masks: Masks = Masks.SHARED
    point: Point = Point.MEAN
    seed: int = 0

    def pieces(self, encoder: Encoder) -> Pieces:
        """The encoder, cut where dropout goes; the modules are its own."""
        return Pieces.of(encoder, only_head=self.where is Where.HEAD)

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        return MCDropoutLearner(only(encoders, self.name), self, setup)


class MCDropoutLearner(Learner):
    """The pair loss of embeddings with dropout, every image with masks of its own."""

    def __init__(self, encoder: Encoder, method: MCDropout, setup: Setup) -> None:
        super().__init__(encoder, encoder)
        self.method = method
        self.pair_loss = setup.loss
        self.pairs = setup.pairs

    def begin(self, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
        super().begin(optimizer, generator)
        self.drop = dropout(self.method.rate, generator)

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        if not hasattr(self, "drop"):
            raise RuntimeError("begin was not called: it gives the generator that the masks are drawn from")
        u = self.method.pieces(self.encoder).raw(inputs, self.drop)
        return self.pair_loss(u, self.pairs(u, labels))

    def embedder(self, data: FitData) -> Embedder:
        return MCDropoutEmbedder(self.encoder, self.method)


class MCDropoutEmbedder(DrawnEmbedder):
    """Mean direction and kappa of many draws of the masks; draw s is the same for every image and in every call.

    What comes before the first dropout is computed once for all draws.
    """

    def __init__(self, encoder: Encoder, method: MCDropout) -> None:
        super().__init__(encoder, method.samples)
        self.encoder = encoder
        self.method = method

    def encode(self, inputs: Any) -> tuple[Any, bool]:
        """Return what goes into the first dropout or the input, whichever is smaller, and whether it is the former."""
        h = self.method.pieces(self.encoder).begin(inputs)
        smaller = isinstance(inputs, Tensor) and inputs.nbytes < h.nbytes
        return (inputs, False) if smaller else (h, True)

    def embed_batch(self, inputs: Any) -> StochasticEmbedding:
        return self.distributions((inputs, False))

    def distributions(self, encoded: tuple[Any, bool]) -> StochasticEmbedding:
        pieces = self.method.pieces(self.encoder)
        generator = self._generator()
        before = generator.get_state()
        parts = []
        for h in self._begun(pieces, encoded):
            if self.method.masks is Masks.SHARED:
                generator.set_state(before)
            parts.append(self._embed_begun(pieces, h, generator))
        return StochasticEmbedding.cat(parts)

    def _begun(self, pieces: Pieces, encoded: tuple[Any, bool]) -> Sequence[Tensor]:
        """Inputs of the first dropout, in parts."""
        kept, begun = encoded
        return _in_cache(kept if begun else pieces.begin(kept))

    def _embed_begun(self, pieces: Pieces, h: Tensor, generator: torch.Generator) -> StochasticEmbedding:
        """Images, from the input h of the first dropout."""
        drop = self._drop(generator)
        point = None if self.method.point is Point.MEAN else unit_rows(pieces.finish(h, lambda x: x))
        return self.summed_up((unit_rows(pieces.finish(h, drop)) for _ in range(self.draws)), point)

    def settings(self) -> dict[str, Any]:
        """The rate, and how many layers have dropout before them."""
        return {"rate": self.method.rate, "layers": len(self.method.pieces(self.encoder).rest)}

    def sample_encoded(
        self, encoded: list[tuple[Any, bool]], samples: int, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        """Yield one draw after the other, each of all images."""
        pieces = self.method.pieces(self.encoder)
        generator = self._generator() if generator is None else generator
        for _ in range(samples):
            yield self._draw(pieces, encoded, generator)

    def _draw(self, pieces: Pieces, encoded: list[tuple[Any, bool]], generator: torch.Generator) -> Tensor:
        """All images under the same masks, those that the generator gives next."""
        drop = self._drop(generator)
        before = generator.get_state()
        drawn = []
        with evaluating(self.module):
            for batch in encoded:
                for h in self._begun(pieces, batch):
                    if self.method.masks is Masks.SHARED:
                        generator.set_state(before)
                    drawn.append(unit_rows(pieces.finish(h, drop)))
        return torch.cat(drawn)

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.method.seed)

    def _drop(self, generator: torch.Generator) -> Drop:
        return dropout(self.method.rate, generator, shared=self.method.masks is Masks.SHARED)


def _in_cache(h: Tensor) -> Sequence[Tensor]:
    """Rows (N, ...) in parts that stay near a processor from layer to layer, which is faster there."""
    if h.device.type != "cpu" or not h.numel():
        return [h]
    parts: Sequence[Tensor] = h.split(max(1, CACHED_BYTES * len(h) // h.nbytes))
    return parts
