"""Encoders: whatever embeds images, texts or features, cut into a backbone and a linear head.

The head is what a posterior over the last layer is about; everything before it is the backbone. An encoder comes from
any module, from a file of weights, from a name, or from a model that has no linear layer at its end and gets one.
"""

from __future__ import annotations

from laplacian_metric.encoder.checkpoint import save_encoder
from laplacian_metric.encoder.encoder import Encoder
from laplacian_metric.encoder.heads import identity_head, random_head, train_head, whitening_head
from laplacian_metric.encoder.libraries import SentenceBackbone
from laplacian_metric.encoder.zoo import ReadyMade, encoder_names, register

__all__ = [
    "Encoder",
    "ReadyMade",
    "SentenceBackbone",
    "encoder_names",
    "identity_head",
    "random_head",
    "register",
    "save_encoder",
    "train_head",
    "whitening_head",
]
