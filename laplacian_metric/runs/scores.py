"""The uncertainties of a cell's images: those of its method, and trivial scores that need none."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from laplacian_metric import metrics
from laplacian_metric.core.batch import Batch, Loader, map_batches
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import Embedder, scores_of
from laplacian_metric.data.dataset import Dataset
from laplacian_metric.encoder import Encoder

EVERY = 5  # of the training images, so many are what the nearest distance is taken to

# Of every score the values (N,) for every set.
Scores = dict[str, dict[str, Tensor]]


def method_scores(
    embedder: Embedder, sets: Mapping[str, Dataset], known: Mapping[str, StochasticEmbedding]
) -> Scores:
    """The scores that an embedder has, for every set; of what is embedded already they are taken from there."""
    plain = type(embedder).scores is Embedder.scores
    scores: Scores = {}
    for name, inputs in sets.items():
        ready = plain and name in known
        for score, values in (scores_of(known[name]) if ready else embedder.scores(inputs)).items():
            scores.setdefault(score, {})[name] = values.detach().cpu()
    return scores


def trivial_scores(encoder: Encoder, sets: Mapping[str, Dataset], train: Dataset) -> Scores:
    """The norms before and after the head, and the distance to the nearest of every fifth training image."""
    reference = _norms_and_raw(encoder, train.select(torch.arange(0, len(train), EVERY)))[1]
    reference = nn.functional.normalize(reference)
    scores: Scores = {"feature norm": {}, "embedding norm": {}, "nearest distance": {}}
    for name, inputs in sets.items():
        norms, u = _norms_and_raw(encoder, inputs)
        scores["feature norm"][name] = norms
        scores["embedding norm"][name] = metrics.embedding_norm(u)
        scores["nearest distance"][name] = metrics.nearest_distance(
            nn.functional.normalize(u), database=reference
        )
    return scores


def norms(encoder: Encoder, inputs: Loader) -> dict[str, Tensor]:
    """The norms before and after the head, as the scores (N,) that they are by name."""
    features, u = _norms_and_raw(encoder, inputs)
    return {"feature norm": features, "embedding norm": metrics.embedding_norm(u)}


def _norms_and_raw(encoder: Encoder, inputs: Loader) -> tuple[Tensor, Tensor]:
    """|h| (N,) and u (N, Z), batch by batch: all features may be more than the memory holds."""

    def both(batch: Batch) -> tuple[Tensor, Tensor]:
        h = encoder.features(batch.inputs)
        return metrics.feature_norm(h).cpu(), encoder.head(h).cpu()

    norms, raw = zip(*map_batches(both, inputs, encoder, progress=False), strict=True)
    return torch.cat(norms), torch.cat(raw)
