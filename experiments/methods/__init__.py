"""The benchmark's rivals that classify; importing this makes softmax, softmax-ensemble, het-xl and sngp known."""

from __future__ import annotations

from experiments.methods.softmax.het_xl import HetXL
from experiments.methods.softmax.sngp import SNGP
from experiments.methods.softmax.softmax import Softmax, SoftmaxEnsemble
from laplacian_metric import methods

for _method in (Softmax, SoftmaxEnsemble, HetXL, SNGP):
    methods.register(_method)
