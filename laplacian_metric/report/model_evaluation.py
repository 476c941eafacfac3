"""The evaluation of a model folder on labelled and on out-of-distribution (OOD) images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import tee
from typing import Any, Final, Literal

import torch
from pydantic import Field, StrictInt
from torch import Tensor

import laplacian_metric
from laplacian_metric import metrics
from laplacian_metric.core.dataset import Dataset, shared
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.laplace.frozen_features import features_of
from laplacian_metric.laplace.model_folder import ModelFolder, class_labels, warn_if_seen
from laplacian_metric.metrics import Consensus, Evaluation, Uncertainties
from laplacian_metric.metrics.positives import Positives
from laplacian_metric.metrics.query_records import QueryRecord, images_digest
from laplacian_metric.report.evaluated import Evaluated, Images, measure
from laplacian_metric.report.sections import SHARES
from laplacian_metric.trust import Answer

FORMAT: Final = "laplacian_metric evaluation"


class ModelEvaluation(Evaluation):
    """What `lam evaluate --out` writes: an evaluation, and of which model and images it is.

    Its ``refusals`` are those of 0, 10, 20, 30 and 50 %. ``queries`` has what was measured of each query, by which two
    models are compared on the same images.

    Example:
        >>> file = {"name": "a", "seed": 0, "retrieval": {"test": {"recall@1": 0.5}}}
        >>> ModelEvaluation.model_validate(file)["recall@1"]
        0.5
    """

    format: Literal["laplacian_metric evaluation"] = FORMAT
    version: Literal[1] = 1
    name: str
    seed: StrictInt
    data: Mapping[str, Any] = Field(default_factory=dict)
    model: Mapping[str, Any] = Field(default_factory=dict)
    made_with: Mapping[str, str] = Field(default_factory=dict)
    settings: Mapping[str, int] = Field(default_factory=dict)
    queries: QueryRecord | None = None


def evaluate(
    model: ModelFolder,
    source: Dataset,
    ood: Sequence[Dataset] = (),
    *,
    gallery: Dataset | None = None,
    name: str | None = None,
    samples: int = 100,
    resamples: int = 1000,
    seed: int = 0,
    progress: bool | None = None,
) -> ModelEvaluation:
    """Return every number of a model with its interval.

    Args:
        model: what is evaluated.
        source: labelled images; each is searched for among the others.
        ood: out-of-distribution images.
        gallery: labelled images that are searched in place of the others, as an index of them would be.
        name: of the result where several are compared; by default the name of the data.
        samples: joint samples for the calibration error; 0 leaves it out.
        resamples: of the bootstrap; 0 leaves the intervals out.
        seed: of both.
        progress: whether to show bars.
    """
    run = evaluated(
        model, source, ood, gallery=gallery, thumbnails=False, samples=samples, seed=seed, progress=progress
    )
    measured = measure(run, resamples=resamples, seed=seed)
    if measured.ranking is None:
        raise ValueError(f"{source.title} cannot be evaluated: {measured.reason}")
    digests = [_digest(images) for images in (source, *([] if gallery is None else [gallery]))]
    queries = QueryRecord.of(
        digests[0] if gallery is None else images_digest(digests),
        measured.ranking,
        run.queries.uncertainty,
        run.probability,
        {title: (_digest(images), run.ood[title].uncertainty) for title, images in titled(ood).items()},
    )
    of_gallery = {} if gallery is None else {"gallery": gallery.title, "items": len(gallery)}
    refusals = tuple(measured.evaluation.refusals[share] for share in SHARES)
    return ModelEvaluation(
        **{**dict(measured.evaluation), "refusals": refusals},
        queries=queries,
        name=name or source.name,
        seed=int(dict(model.about.get("settings", {})).get("seed", 0) or 0),
        data={
            "name": source.title,
            "images": len(source),
            "seen": {role: shared(source.digests(), digests) for role, digests in model.seen.items()},
            **of_gallery,
        },
        model={"fingerprint": model.lam.fingerprint(), "about": dict(model.about)},
        made_with={"laplacian_metric": laplacian_metric.__version__, "torch": str(torch.__version__)},
        settings={"samples": samples, "resamples": resamples, "seed": seed},
    )


def _digest(source: Dataset) -> str:
    """Return a digest of which images these are: by their content, of features by their ids where these were given."""
    by_id = source.holds_features and source.ids != tuple(map(str, range(len(source))))
    ids = source.ids if by_id else [f"{digest:x}" for digest in source.digests().tolist()]
    return images_digest(ids, None if source.labels is None else source.label_names.tolist())


def titled(sources: Sequence[Dataset]) -> dict[str, Dataset]:
    """Return each source by a name that no other has."""
    named: dict[str, Dataset] = {}
    for source in sources:
        name = source.name if source.name not in named else source.title
        if name in named:
            raise ValueError(f"ood has {source.title} twice")
        named[name] = source
    return named


@dataclass(frozen=True, eq=False)
class _Embedded:
    """Embedded images of one source, on the CPU, and what a calibrated `Trust` answers about them."""

    source: Dataset
    features: Dataset
    embedding: StochasticEmbedding

    @staticmethod
    def of(model: ModelFolder, source: Dataset, progress: bool | None) -> _Embedded:
        features = features_of(model.encoder, source, progress=progress)
        return _Embedded(source, features, model.lam.embed_features(features).to("cpu"))

    @property
    def rows(self) -> Tensor:
        """The features (N, H) in float32 on the CPU."""
        return self.features.features.float().cpu()

    def images(self, thumbnails: bool, answer: Answer | None, labels: Tensor | None = None) -> Images:
        """Return the images of a page; with an answer their uncertainty is 1 - probability."""
        embedding = self.embedding
        if answer is not None:
            embedding = replace(embedding, uncertainty=1 - torch.from_numpy(answer.probability))
        return Images(embedding, labels, self.source.thumbnails() if thumbnails else None, self.source.ids)


def evaluated(
    model: ModelFolder,
    source: Dataset,
    ood: Sequence[Dataset] = (),
    *,
    gallery: Dataset | None = None,
    title: str | None = None,
    thumbnails: bool = True,
    samples: int = 100,
    seed: int = 0,
    progress: bool | None = None,
) -> Evaluated:
    """Return what `laplacian_metric.report.run_report.run_report` makes a page of.

    Args:
        model: what is evaluated.
        source: labelled images.
        ood: out-of-distribution images.
        gallery: labelled images that are searched; by default each image is searched for among the others.
        title: of the page.
        thumbnails: whether the page gets small pictures of the images.
        samples: joint samples for the calibration.
        seed: of these.
        progress: whether to show bars.
    """
    for labelled in (source, gallery):
        if labelled is not None:
            labelled.require_classes("an evaluation")
    seen = warn_if_seen(model, source, "numbers on new images will be worse")
    inside = _Embedded.of(model, source, progress)
    items = None if gallery is None else _Embedded.of(model, gallery, progress)
    outside = {name: _Embedded.of(model, images, progress) for name, images in titled(ood).items()}
    answer, ood_answers = _answers(model, inside, items, outside)
    labels, class_names, item_labels = _labels(source, gallery)
    return Evaluated(
        title=title or f"Which images of {source.name} can be trusted",
        queries=inside.images(thumbnails, answer, labels),
        class_names=class_names,
        gallery=None if items is None else items.images(thumbnails, None, item_labels),
        ood={name: images.images(thumbnails, ood_answers.get(name)) for name, images in outside.items()},
        probability=None if answer is None else torch.from_numpy(answer.probability),
        consensus=_consensus(model, inside, items, labels, item_labels, samples, seed),
        diagnostics=model.lam.diagnostics(),
        scores=_scores(model, inside, items, outside, answer, ood_answers),
        provenance=_provenance(model, source, seen),
    )


def _answers(
    model: ModelFolder, inside: _Embedded, items: _Embedded | None, outside: Mapping[str, _Embedded]
) -> tuple[Answer | None, dict[str, Answer]]:
    """Return what the model's `Trust` answers about the queries and about each set of OOD images."""
    if model.trust is None:
        return None, {}
    searched = inside if items is None else items
    trust = model.trust.with_gallery(searched.rows, class_labels(searched.source))
    answer = trust.items() if items is None else trust(inside.rows)
    return answer, {name: trust(images.rows) for name, images in outside.items()}


def _labels(source: Dataset, gallery: Dataset | None) -> tuple[Tensor, Sequence[str] | None, Tensor | None]:
    """Return the labels of queries (N,) and items (M,), equal for the same class, and the names of the classes."""
    if gallery is None:
        return source.known_labels(), source.class_names or None, None
    if not source.class_names and not gallery.class_names:
        return source.known_labels(), None, gallery.known_labels()
    names = sorted({*class_labels(source), *class_labels(gallery)})
    numbers = {name: number for number, name in enumerate(names)}
    of_queries, of_items = (
        torch.tensor([numbers[name] for name in class_labels(images)]) for images in (source, gallery)
    )
    return of_queries, names, of_items


def _consensus(
    model: ModelFolder,
    inside: _Embedded,
    items: _Embedded | None,
    labels: Tensor,
    item_labels: Tensor | None,
    samples: int,
    seed: int,
) -> Consensus | None:
    """Return what the nearest items in jointly sampled spaces agree on; None without samples or right answers."""
    if not samples or not bool((Positives.from_labels(labels, item_labels).counts > 0).any()):
        return None
    generator = torch.Generator(model.lam.head.weight.device).manual_seed(seed)
    rows = inside.features.features
    if items is not None:
        rows = torch.cat([rows, items.features.features])
    drawn = model.lam.sample_embeddings(rows, samples, generator=generator)
    both = (z.cpu().split([len(labels), len(rows) - len(labels)]) for z in drawn)
    if items is None:
        return metrics.consensus((z for z, _ in both), labels)
    queries, searched = tee(both)
    return metrics.consensus(
        (z for z, _ in queries), labels, database=(z for _, z in searched), database_labels=item_labels
    )


def _scores(
    model: ModelFolder,
    inside: _Embedded,
    items: _Embedded | None,
    outside: Mapping[str, _Embedded],
    answer: Answer | None,
    ood_answers: Mapping[str, Answer],
) -> dict[str, Uncertainties]:
    """Return what the model's uncertainty is compared with: its other scores, and those that cost nothing."""
    scores = {}
    if answer is not None:
        scores["novelty"] = Uncertainties(
            torch.from_numpy(answer.novelty),
            {name: torch.from_numpy(one.novelty) for name, one in ood_answers.items()},
        )
        scores["1/kappa"] = Uncertainties(
            inside.embedding.kappa.reciprocal(),
            {name: images.embedding.kappa.reciprocal() for name, images in outside.items()},
        )
    searched = inside if items is None else items
    gallery = (searched.rows, class_labels(searched.source))
    if len(searched.rows) < 2:
        return scores
    free = metrics.trivial_scores(gallery, None if items is None else inside.rows, encoder=model.encoder)
    of_ood = {
        name: metrics.trivial_scores(gallery, images.rows, encoder=model.encoder)
        for name, images in outside.items()
    }
    return scores | {
        name: Uncertainties(values, {label: images[name] for label, images in of_ood.items()})
        for name, values in free.items()
    }


def _provenance(model: ModelFolder, source: Dataset, seen: dict[str, int]) -> list[tuple[str, str]]:
    data, lam = dict(model.about.get("data", {})), model.lam
    fitted = [f"{data[name]}{unit}" for name, unit in (("train", ""), ("images", " images")) if name in data]
    trust = "1/kappa" if model.trust is None else "1 - probability of Trust"
    return [
        ("Images", source.title),
        ("Fitted to", ", ".join(fitted) or "unknown"),
        ("Images that the model was fitted to or calibrated by", str(sum(seen.values()))),
        ("Form of the posterior", f"{lam.structure.value}, {lam.approximation.value}"),
        ("Prior precision", f"{lam.prior_precision:.4g}"),
        ("Uncertainty", trust),
        ("Loss", ", ".join(f"{name} {value}" for name, value in _of_loss(lam.loss).items())),
    ]


def _of_loss(loss: Any) -> dict[str, Any]:
    try:
        return {name: getattr(value, "value", value) for name, value in asdict(loss).items()}
    except TypeError:
        return {"class": type(loss).__name__}
