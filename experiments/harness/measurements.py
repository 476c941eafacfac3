"""Everything that is measured of a fitted cell: its scores, and the evaluation. Test images choose nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from experiments.harness.cell_fitting import Fitted
from experiments.harness.image_sets import CORRUPTED, CROPPED, OUT, TEST, TRAIN, VALIDATION, Sets
from experiments.harness.place_matching import Matching, matching
from experiments.harness.sections import EvaluationSection
from laplacian_metric import metrics
from laplacian_metric.core.batch import Batch, Loader, map_batches
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.method import Embedder, Method, scores_of
from laplacian_metric.encoder import Encoder
from laplacian_metric.metrics import Consensus, Evaluation, Uncertainties
from laplacian_metric.metrics.evaluation import OWN


def evaluate(
    fitted: Fitted,
    method: type[Method],
    section: EvaluationSection,
    out: list[str],
    entropy: Tensor | None = None,
) -> dict[str, Any]:
    """Return the measured part of a result.

    Args:
        fitted: what embeds, and what.
        method: whose embedder it is.
        section: what is measured.
        out: the labels of the sets of out-of-distribution images.
        entropy: of the labels that people gave to the test images, (N,).
    """
    embedder = fitted.embedder
    wanted = [TEST, VALIDATION, *[CORRUPTED] * section.corrupted, *[CROPPED] * section.crop_test]
    sets = {name: fitted.sets[name] for name in [*wanted, *(OUT + label for label in out)]}
    embedded = {name: embedder.embed(sets[name]).to("cpu") for name in (TEST, VALIDATION)}
    matchings = {name: matching(fitted.sets.images[name]) for name in embedded}
    scores: Scores = {}
    if method.has_uncertainty:
        scores |= method_scores(embedder, sets, embedded)
    if not method.has_uncertainty if section.trivial is None else section.trivial:
        scores |= trivial_scores(fitted.encoder, sets, fitted.sets[TRAIN])
    # Where some images are no queries, the values of queries alone.
    whose = {TEST: TEST, CROPPED: TEST, VALIDATION: VALIDATION}
    of_queries = {
        score: {
            name: matchings[whose[name]].of_queries(values) if name in whose else values
            for name, values in by_set.items()
        }
        for score, by_set in scores.items()
    }
    agreed = None
    # Neighbours can only agree on a class.
    if section.samples and method.has_uncertainty and not matchings[TEST].by_distance:
        generator = torch.Generator().manual_seed(section.seed)
        draws = embedder.sample_embeddings(sets[TEST], section.samples, generator=generator)
        agreed = metrics.consensus((z.cpu() for z in draws), sets[TEST].labels)
    test, validation = (
        _evaluation(name, embedded[name], matchings[name], of_queries, section, agreed, entropy)
        for name in (TEST, VALIDATION)
    )
    own = of_queries[OWN][TEST] if OWN in scores else None
    record = _record(test, validation)
    record["retrieval"] |= _own_retrieval(embedder, embedded[TEST], matchings[TEST], own, section)
    record["counts"]["images"] = {name.removeprefix(OUT): len(inputs) for name, inputs in sets.items()}
    record["settings"] = embedder.settings()
    if section.verification is not None:
        from experiments.harness.verified_pairs import verify  # which takes the norms from here

        record["verification"] = verify(fitted, section.verification, has_uncertainty=method.has_uncertainty)
    return record


def _record(test: Evaluation, validation: Evaluation) -> dict[str, Any]:
    """The evaluation of the test images as plain values, and beside it what validation images say of each score."""
    record = test.model_dump(mode="json", by_alias=True, exclude={"refusals", "reliability"})
    record["retrieval"][VALIDATION] = validation.retrieval[TEST]
    for name, score in validation.scores.items():
        record["scores"][name] |= {
            "validation_r_auroc": score.values["r_auroc"],
            "corrupted_auroc": score.ood.get(CORRUPTED, {}).get("auroc"),
        }
    return record


def _evaluation(
    name: str,
    embedding: StochasticEmbedding,
    matching: Matching,
    scores: Scores,
    section: EvaluationSection,
    agreed: Consensus | None,
    entropy: Tensor | None,
) -> Evaluation:
    """The evaluation of the test or the validation images; the latter's OOD images are corrupted ones of them."""
    ks = _ks(section, matching.gallery_size(len(embedding)))
    ranking = matching.rank(embedding.point, max(ks))
    if name == VALIDATION:
        uncertainties = {
            score: Uncertainties(
                values[VALIDATION], {CORRUPTED: values[CORRUPTED]} if CORRUPTED in values else {}
            )
            for score, values in scores.items()
        }
        return metrics.evaluate_ranking(ranking, scores=uncertainties, ks=ks, resamples=0, drawn=())
    uncertainties = {
        score: Uncertainties(
            values[TEST],
            {which.removeprefix(OUT): values[which] for which in values if which.startswith(OUT)},
            values.get(CROPPED),
        )
        for score, values in scores.items()
    }
    return metrics.evaluate_ranking(
        ranking,
        scores=uncertainties,
        agreed=agreed,
        label_entropy=entropy,
        ks=ks,
        resamples=section.resamples,
        generator=torch.Generator().manual_seed(section.seed),
        drawn=("curves",),
    )


# --- retrieval ---


def _ks(section: EvaluationSection, number: int) -> list[int]:
    """Those that a ranking among so many others has."""
    ks = [k for k in section.ks if k <= number]
    if not ks:
        raise ValueError(f"{number} other images are too few for any of ks, {list(section.ks)}")
    return ks


def _own_retrieval(
    embedder: Embedder,
    test: StochasticEmbedding,
    matching: Matching,
    uncertainty: Tensor | None,
    section: EvaluationSection,
) -> dict[str, dict[str, float] | None]:
    """Retrieval by the method's own similarity, None where it has none, and by its others.

    With the calibration error by rank of the method's uncertainty, since the answers are other ones.
    """

    def similarities(queries: StochasticEmbedding, database: StochasticEmbedding) -> dict[str, Tensor]:
        own = embedder.similarity(queries, database)
        others = embedder.other_similarities(queries, database)
        named = {f"{name}_similarity": values for name, values in others.items()}
        return named if own is None else {"own_similarity": own, **named}

    def one(name: str, queries: StochasticEmbedding, database: StochasticEmbedding) -> Tensor:
        return similarities(queries, database)[name]

    retrieval: dict[str, dict[str, float] | None] = {"own_similarity": None}
    ks = _ks(section, matching.gallery_size(len(test)))
    for name in similarities(test[:2], test[:2]):
        ranking = matching.rank_by(partial(one, name), test, max(ks))
        values = metrics.evaluate_ranking(ranking, uncertainty, ks=ks, resamples=0, drawn=()).values
        retrieval[name] = {
            key: value
            for key, value in values.items()
            if key.startswith(("recall@", "map@", "ece@", "r_precision"))
        }
    return retrieval


def label_entropy(sets: Sets, human: Tensor | None) -> Tensor:
    """The entropy of people's labels for the test images, (N,), from their distribution (N, C)."""
    if human is None:
        raise ValueError(
            "evaluation.label_entropy needs what people said about the test images, which this data set does not "
            "have: leave it out, or get the human labels"
        )
    entropy = metrics.label_entropy(human)
    if len(entropy) != len(sets[TEST]):
        raise ValueError(f"there are human labels for {len(entropy)} of {len(sets[TEST])} test images")
    return entropy


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


def trivial_scores(encoder: Encoder | None, sets: Mapping[str, Dataset], train: Dataset) -> Scores:
    """The norms before and after the head, and the distance to the nearest of every fifth training image."""
    if encoder is None:
        raise ValueError(
            "trivial scores are those of one network, and this method has several: leave evaluation.trivial out"
        )
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
