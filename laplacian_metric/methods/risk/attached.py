"""An encoder with a risk head beside its own: inputs -> embeddings and uncertainties."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.encoder import unit_rows
from laplacian_metric.methods.risk.head import RiskHead
from laplacian_metric.methods.risk.loss_prediction import backbone_digest


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
