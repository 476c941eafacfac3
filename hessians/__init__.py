"""Curvature of pair losses: exact generalised Gauss-Newton matrices at the cost of a matrix product."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ImportError('hessians needs torch: pip install ".[lam]" in a clone of the repository')

from hessians.contrastive import ContrastiveLoss
from hessians.info_nce import InfoNCELoss
from hessians.kronecker import KroneckerFactors, last_layer_kronecker
from hessians.last_layer import last_layer_ggn_diagonal
from hessians.network import ggn_diagonal
from hessians.pairs import Pairs

__all__ = [
    "ContrastiveLoss",
    "InfoNCELoss",
    "KroneckerFactors",
    "Pairs",
    "ggn_diagonal",
    "last_layer_ggn_diagonal",
    "last_layer_kronecker",
]
