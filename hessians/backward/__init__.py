"""Custom backward passes: how each kind of layer turns back-propagated columns into the diagonal of its parameters."""

from hessians.backward.attention import MultiheadAttentionRule
from hessians.backward.convolution import ConvolutionRule, TransposedConvolutionRule
from hessians.backward.embedding import EmbeddingRule
from hessians.backward.linear import LinearRule
from hessians.backward.local import LocalRule
from hessians.backward.normalization import (
    BatchNormRule,
    GroupNormRule,
    InstanceNormRule,
    LayerNormRule,
    RMSNormRule,
)
from hessians.backward.rules import (
    Call,
    Cotangents,
    DirectRule,
    Layer,
    Layout,
    Rule,
    find_rule,
    register_rule,
)

__all__ = [
    "BatchNormRule",
    "Call",
    "ConvolutionRule",
    "Cotangents",
    "DirectRule",
    "EmbeddingRule",
    "GroupNormRule",
    "InstanceNormRule",
    "Layer",
    "LayerNormRule",
    "Layout",
    "LinearRule",
    "LocalRule",
    "MultiheadAttentionRule",
    "RMSNormRule",
    "Rule",
    "TransposedConvolutionRule",
    "find_rule",
    "register_rule",
]
