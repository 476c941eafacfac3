"""A risk head: features of a frozen encoder -> how likely the item is to be retrieved wrongly; kept in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from numpy.typing import NDArray
from pydantic import Field, JsonValue
from torch import Tensor, nn
from torch.nn import functional as F

from hessians.checks import check_finite, check_matrix
from laplacian_metric.core import artifact
from laplacian_metric.core.artifact import ArtifactError, Manifest
from laplacian_metric.core.tensor_file import digest
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.encoder import unit_rows
from laplacian_metric.encoder.heads import random_head
from laplacian_metric.methods.risk.targets import Target, link

WEIGHTS = "weights.safetensors"
SLOPE = 0.01
ROWS_AT_ONCE = 1 << 14
LEAST_RISK = 1e-6


class HeadManifest(Manifest):
    """What the folder of a head says about it."""

    FORMAT: ClassVar[str] = "laplacian_metric risk head"
    PAYLOADS: ClassVar[tuple[str, ...]] = (WEIGHTS,)

    width: int = Field(ge=1)
    hidden: int = Field(ge=1)
    target: Literal["retrieval", "pair-loss", "cross-entropy"]
    encoder: str | None  # the digest of the backbone, where the features came from an encoder
    card: dict[str, JsonValue]


class RiskHead(nn.Module):
    """Two hidden layers on features of length sqrt(H): h (N, H) -> risk (N,).

    The risk is a share of wrong neighbours, from 0 to 1, or a loss, from 0 on, by its target.

    Args:
        width: H.
        hidden: units of each hidden layer.
        target: what is predicted, see `LossPrediction`.
        generator: of the initial weights.

    Attributes:
        encoder: the digest of the backbone that the features come from, None where nobody said.
        card: what is known about it: what it was trained on, and what it was worth on which data.

    Example:
        >>> head = RiskHead(4, hidden=8, generator=torch.Generator().manual_seed(0))
        >>> risk = head(torch.randn(3, 4))
        >>> tuple(risk.shape), bool(((risk > 0) & (risk < 1)).all())
        ((3,), True)
    """

    def __init__(
        self,
        width: int,
        *,
        hidden: int = 512,
        target: Target = "retrieval",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if min(width, hidden) < 1:
            raise ValueError(f"width is {width} and hidden {hidden}, at least 1 of each is needed")
        self.width, self.hidden, self.target = width, hidden, target
        layers: list[nn.Module] = []
        for inputs, outputs in ((width, hidden), (hidden, hidden), (hidden, 1)):
            layers += [random_head(inputs, outputs, generator=generator), nn.LeakyReLU(SLOPE)]
        self.layers = nn.Sequential(*layers[:-1])
        self.encoder: str | None = None
        self.card: dict[str, Any] = {}

    @property
    def is_share(self) -> bool:
        """Whether the risk is a share of neighbours rather than a loss."""
        return self.target == "retrieval"

    def logits(self, features: Tensor) -> Tensor:
        """Return what the link makes risks of, (N,); the features (N, H) get no gradient."""
        return self.logits_with_gradient(features.detach())

    def logits_with_gradient(self, features: Tensor) -> Tensor:
        """Return the logits (N,), by which the features (N, H) are changed too where they are trained."""
        if features.ndim != 2 or features.shape[1] != self.width:
            raise ValueError(
                f"features has shape {tuple(features.shape)}, (N, {self.width}) is needed: this head is for another "
                "encoder"
            )
        rows = F.normalize(features.to(next(self.parameters())), dim=1) * self.width**0.5
        logits: Tensor = self.layers(rows).squeeze(1)
        return logits

    def forward(self, features: Tensor) -> Tensor:
        return link(self.logits(features), is_share=self.is_share)

    @torch.no_grad()
    def predict(self, features: Tensor | NDArray[Any]) -> Tensor:
        """Return the risks (N,) of features (N, H), block by block: they may be mapped from a file."""
        rows = torch.as_tensor(features)
        check_matrix("features", rows)
        return torch.cat([self(block) for block in rows.split(ROWS_AT_ONCE)])

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False, half: bool = True) -> Path:
        """Write the head into a folder; ``half`` keeps the weights in float16, in half of the space.

        Example:
            >>> import tempfile
            >>> head = RiskHead(4, hidden=8)
            >>> with tempfile.TemporaryDirectory() as place:
            ...     again = RiskHead.load(head.save(Path(place) / "risk"))
            >>> features = torch.randn(5, 4)
            >>> torch.allclose(again(features), head(features), atol=1e-2)
            True
        """
        tensors = {
            name: tensor.half() if half and name.startswith("layers.") else tensor
            for name, tensor in self.state_dict().items()
        }
        for name, tensor in tensors.items():
            check_finite(name, tensor)
        manifest = HeadManifest(
            width=self.width, hidden=self.hidden, target=self.target, encoder=self.encoder, card=self.card
        )
        payloads = {WEIGHTS: tensors}
        return artifact.save(folder, manifest, payloads, overwrite=overwrite)

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> RiskHead:
        """Return the head of a folder, in evaluation mode."""
        with artifact.load(folder, HeadManifest) as opened:
            manifest = opened.manifest
            tensors = opened.tensors(WEIGHTS)
        head = RiskHead(manifest.width, hidden=manifest.hidden, target=manifest.target)
        expected = {name: tensor.shape for name, tensor in head.state_dict().items()}
        if {name: tensor.shape for name, tensor in tensors.items()} != expected:
            raise ArtifactError(f"{WEIGHTS} in {folder} holds other tensors than its manifest describes")
        head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        head.encoder, head.card = manifest.encoder, dict(manifest.card)
        return head.eval()

    def extra_repr(self) -> str:
        return f"target={self.target!r}"


def check_start(head: nn.Module) -> None:
    """Refuse a head whose units all begin alike: each gets the same gradient, so that it never trains.

    Example:
        >>> head = RiskHead(4, hidden=8)
        >>> check_start(head)
        >>> _ = nn.init.zeros_(head.layers[2].weight)
        >>> check_start(head)
        Traceback (most recent call last):
        ...
        ValueError: the weights of layers.2 are the same for all of its 8 units, ...
    """
    layers = {name: layer for name, layer in head.named_modules() if isinstance(layer, nn.Linear)}
    for name, layer in layers.items():
        zero = not bool(layer.weight.any())
        if zero or (len(layer.weight) > 1 and bool((layer.weight == layer.weight[0]).all())):
            raise ValueError(
                f"the weights of {name} are the same for all of its {len(layer.weight)} units, which then get the same "
                "gradient and never differ: start from random weights, such as those of RiskHead(...)"
            )


def backbone_digest(encoder: Encoder) -> str:
    """Return the digest of what computes the features: a head belongs to it, whatever the linear head is."""
    return digest(encoder.backbone, {})


class RiskEncoder(nn.Module):
    """inputs -> embeddings (N, Z), those of the encoder to the bit, and risks (N,)."""

    def __init__(self, encoder: Encoder, head: RiskHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        features = self.encoder.features(inputs)
        u = self.encoder.head(features)
        with torch.no_grad():
            return (unit_rows(u) if self.encoder.normalize else u), self.head(features)


def with_head(encoder: Encoder | nn.Module, head: RiskHead, *, check: bool = True) -> RiskEncoder:
    """Return an encoder that says how likely each embedding is to be retrieved wrongly.

    Args:
        encoder: an `Encoder`, or any module that returns features (N, H), which are then the embeddings too.
        head: trained on features of this encoder.
        check: refuse a head that was trained on another backbone's features, where it knows of which.

    Example:
        >>> encoder = Encoder(nn.Flatten(), nn.Linear(12, 3))
        >>> model = with_head(encoder, RiskHead(12, hidden=8))
        >>> embedding, uncertainty = model(torch.rand(5, 3, 2, 2))
        >>> tuple(embedding.shape), tuple(uncertainty.shape)
        ((5, 3), (5,))
    """
    if not isinstance(encoder, Encoder):
        encoder = Encoder.with_head(encoder, head.width)
    if encoder.num_features != head.width:
        raise ValueError(
            f"the encoder has {encoder.num_features} features and the head takes {head.width}: it is for "
            "another encoder"
        )
    if check and head.encoder is not None and backbone_digest(encoder) != head.encoder:
        raise ValueError(
            "the head was trained on the features of another backbone, or of other weights of this one: train a head "
            "for it, or pass check=False if its features are the same"
        )
    return RiskEncoder(encoder, head)
