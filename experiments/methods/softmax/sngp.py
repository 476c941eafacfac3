"""SNGP: a Gaussian process by random features over a network with bounded layers (Liu et al., 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from experiments.methods.softmax.base import SoftmaxLearner, SoftmaxNetwork, classes_of
from experiments.methods.softmax.probabilities import Score
from laplacian_metric.core.arguments import Count, NotNegative, Positive
from laplacian_metric.core.batch import Batch, map_batches
from laplacian_metric.core.method import Embedder, FitData, Learner, Method, Setup, only
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.heads import random_head

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
FIRST_STEPS = 20  # of the power iteration at the start; then one for each batch


@dataclass(frozen=True)
class SNGP(Method):
    """Trains an encoder whose layers have bounded spectral norms, and a Gaussian process over its embeddings.

    The process has random features phi (L,) of the raw embedding, and logits that are linear in them; its precision is
    ridge I + the sum of phi phi' over training images. A logit is divided by sqrt(1 + f v), v = phi' Sigma phi, in
    the scores; the cross-entropy is that of the plain logits. On frozen features no layer has a norm to be bounded:
    there it is an RFF-GP.

    Attributes:
        score: a score of the probabilities, see `Softmax`, or "variance", v itself.
        bound: of the spectral norm of each layer's weights; None leaves them. An encoder of
            features has none.
        features: L.
        layer_norm: whether embeddings are standardised before the random features.
        length_scale: of the kernel; None is sqrt(Z), the length of a standardised embedding.
        ridge: the precision before any image.
        momentum: of a running precision, such as 0.999; None sums over all images of an epoch, from its beginning.
        mean_field: f.
        temperature: see `Softmax`.

    Example:
        >>> SNGP().bound, SNGP(momentum=0.999).momentum
        (6.0, 0.999)
    """

    name: ClassVar[str] = "sngp"

    score: Score | Literal["variance"] = "entropy"
    bound: Positive | None = 6.0
    features: Count = 1024
    layer_norm: bool = True
    length_scale: Positive | None = None
    ridge: Positive = 1.0
    momentum: Annotated[float, Field(gt=0, lt=1)] | None = None
    mean_field: NotNegative = math.pi / 8
    temperature: Positive | None = None

    def learner(self, encoders: Sequence[Encoder], setup: Setup) -> Learner:
        encoder, classes = only(encoders, self.name), classes_of(setup, self.name)
        return SNGPLearner(SNGPNetwork(encoder, classes, self, setup), self)


class SNGPNetwork(SoftmaxNetwork):
    """An encoder with bounded layers, random features of its embeddings, and their precision."""

    frequencies: Tensor
    phases: Tensor
    precision: Tensor
    seen: Tensor
    is_complete: Tensor

    def __init__(self, encoder: Encoder, num_classes: int, method: SNGP, setup: Setup) -> None:
        super().__init__(num_classes)
        self.encoder, self.method, self.num_images = encoder, method, setup.num_images
        dim, like, count = encoder.dim, encoder.head.weight, method.features
        generator = torch.Generator().manual_seed(setup.seed)
        scale = dim**0.5 if method.length_scale is None else method.length_scale
        self.register_buffer("frequencies", orthogonal_features(dim, count, generator).to(like) / scale)
        self.register_buffer("phases", (2 * math.pi * torch.rand(count, generator=generator)).to(like))
        # In float64: a sum over a whole data set, which is inverted.
        start = method.ridge * torch.eye(count, dtype=torch.float64, device=like.device)
        self.register_buffer("precision", start)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64, device=like.device))
        self.register_buffer("is_complete", torch.tensor(False, device=like.device))
        self.classifier = random_head(count, num_classes, generator=generator).to(like)
        self._factor: tuple[tuple[int, int], Tensor] | None = None
        if method.bound is not None and not encoder.takes_features:
            bound_layers(encoder, method.bound, generator)

    @property
    def kind(self) -> str:
        """What the method is on this encoder: "SNGP" with bounded layers, else "RFF-GP"."""
        return "SNGP" if any(map(parametrize.is_parametrized, self.encoder.modules())) else "RFF-GP"

    def random_features(self, u: Tensor) -> Tensor:
        """Return phi = sqrt(2/L) cos(Omega u + b), (N, L), of raw embeddings (N, Z)."""
        rows = F.layer_norm(u, u.shape[1:]) if self.method.layer_norm else u
        return math.sqrt(2 / len(self.phases)) * torch.cos(rows @ self.frequencies.T + self.phases)

    @torch.no_grad()
    def accumulate(self, phi: Tensor) -> None:
        """Count the random features (N, L) of further training images to the precision."""
        ridge = self.method.ridge
        if bool(self.is_complete) and self.method.momentum is None:  # an epoch begins
            self.precision.copy_(ridge * torch.eye(len(self.precision)))
            self.seen.zero_()
        self.is_complete.fill_(False)
        product = (phi.mT @ phi).to(self.precision)
        if self.method.momentum is None:
            self.precision += product
        else:
            eye = ridge * torch.eye(len(product), dtype=product.dtype, device=product.device)
            whole = eye + product * (self.num_images / len(phi))
            self.precision.lerp_(whole, 1 - self.method.momentum)
        self.seen += len(phi)

    def variance(self, phi: Tensor) -> Tensor:
        """Return v = phi' Sigma phi, (N,), of random features (N, L)."""
        version = self.precision.data_ptr(), self.precision._version
        if self._factor is None or self._factor[0] != version:
            self._factor = version, torch.linalg.cholesky(self.precision)
        rows = torch.linalg.solve_triangular(self._factor[1], phi.to(self.precision).mT, upper=False)
        variance: Tensor = rows.square().sum(0).to(phi)
        return variance

    def points(self, inputs: Any) -> Tensor:
        return self.encoder.raw(inputs)

    def draws(self, inputs: Any, generator: torch.Generator | None) -> Tensor:
        phi = self.random_features(self.encoder.raw(inputs))
        if self.training:
            self.accumulate(phi)
        logits: Tensor = self.classifier(phi)
        return logits[None]

    def embed(self, inputs: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        u = self.encoder.raw(inputs)
        phi = self.random_features(u)
        variance = self.variance(phi)
        logits = self.classifier(phi) / (1 + self.method.mean_field * variance).sqrt()[:, None]
        return u, logits[None], {"variance": variance}


class SNGPLearner(SoftmaxLearner):
    """Trains with the plain logits and keeps the precision up, which starts again in every epoch."""

    network: SNGPNetwork

    def __init__(self, network: SNGPNetwork, method: SNGP) -> None:
        super().__init__(network, method.score, method.temperature)

    def begin(self, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise ValueError("sngp sums its precision in one process: train it without torch.distributed")
        super().begin(optimizer, generator)

    def end_epoch(self) -> None:
        self.network.is_complete.fill_(True)

    def embedder(self, data: FitData) -> Embedder:
        network = self.network
        if not int(
            network.seen
        ):  # nothing was trained here: the precision of the images by the weights as they are

            def add(batch: Batch) -> None:
                network.accumulate(network.random_features(network.encoder.raw(batch.inputs)))

            map_batches(add, data.train, network, title="precision")
        return super().embedder(data)


def orthogonal_features(dim: int, count: int, generator: torch.Generator) -> Tensor:
    """Return frequencies (L, Z) of a Gaussian kernel: orthogonal directions with the lengths of normal vectors.

    Example:
        >>> omega = orthogonal_features(3, 3, torch.Generator().manual_seed(0))
        >>> product = omega @ omega.T
        >>> bool((product - product.diag().diag()).abs().max() < 1e-5)
        True
    """
    blocks = []
    for _ in range(-(-count // dim)):
        q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator))
        lengths = torch.randn(dim, dim, generator=generator).norm(dim=1)
        blocks.append((q * r.diagonal().sign()).mT * lengths[:, None])
    return torch.cat(blocks)[:count]


class Bounded(nn.Module):
    """W -> W min(1, c/sigma), with the greatest singular value sigma by a power iteration, one step a batch."""

    left: Tensor
    right: Tensor

    def __init__(self, weight: Tensor, bound: float, generator: torch.Generator) -> None:
        super().__init__()
        matrix = weight.detach().flatten(1)
        self.bound = bound
        self.register_buffer(
            "left", F.normalize(torch.randn(len(matrix), generator=generator), dim=0).to(matrix)
        )
        self.register_buffer("right", torch.zeros(matrix.shape[1]).to(matrix))
        for _ in range(FIRST_STEPS):
            self._step(matrix)

    @torch.no_grad()
    def _step(self, matrix: Tensor) -> None:
        self.right.copy_(F.normalize(matrix.mT @ self.left, dim=0))
        self.left.copy_(F.normalize(matrix @ self.right, dim=0))

    def forward(self, weight: Tensor) -> Tensor:
        matrix = weight.flatten(1)
        if self.training:
            self._step(matrix)
        # Copies: the next step changes the vectors in place, and the gradient needs them as they were.
        sigma = self.left.clone() @ matrix @ self.right.clone()
        return weight * (self.bound / sigma.clamp(min=self.bound))


def bound_layers(module: nn.Module, bound: float, generator: torch.Generator) -> None:
    """Bound the spectral norm of every linear layer and convolution of a module, in place.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> _ = layer.weight.data.copy_(torch.tensor([[9.0, 0.0], [0.0, 1.0]]))
        >>> bound_layers(layer, 3.0, torch.Generator().manual_seed(0))
        >>> layer.weight.detach().round(decimals=3)
        tensor([[3.0000, 0.0000],
                [0.0000, 0.3330]])
    """
    for part in list(module.modules()):
        if isinstance(part, LAYERS) and not parametrize.is_parametrized(part, "weight"):
            bounded = Bounded(part.weight, bound, generator)
            parametrize.register_parametrization(part, "weight", bounded.train(part.training))
