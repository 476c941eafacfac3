"""The evaluation of a model folder on labelled and on out-of-distribution (OOD) images, and the page about it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import tee
from typing import Any, Final, Literal

import torch
from pydantic import Field, StrictInt, model_validator
from torch import Tensor

import laplacian_metric
from laplacian_metric import metrics
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.laplace.frozen_features import features_of
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.laplace.model_inputs import class_labels, warn_if_seen
from laplacian_metric.metrics import Consensus, Evaluation, Uncertainties
from laplacian_metric.metrics.evaluation import OWN, TEST
from laplacian_metric.metrics.positives import Positives
from laplacian_metric.metrics.query_records import QueryRecord, images_digest
from laplacian_metric.report.evaluated import Evaluated, measure
from laplacian_metric.trust import Answer

LOGGER = logging.getLogger(__name__)
FORMAT: Final = "laplacian_metric evaluation"
SHARES = (0, 10, 20, 30, 50)  # in percent, of refused queries
CONSEQUENCE = "numbers on new images will be worse"
OF_RETRIEVAL = ("recall@", "map@", "r_precision")


class ModelEvaluation(Evaluation):
    """What `lam evaluate --out` writes: an evaluation, and of what it is.

    Its ``refusals`` are those of 0, 10, 20, 30 and 50 %. ``queries`` has what was measured of each query, by which two
    models are compared on the same images. Files of version 1 are read as well.

    Example:
        >>> file = {"name": "a", "seed": 0, "values": {"recall@1": 0.5}, "strangers": {}}
        >>> ModelEvaluation.model_validate(file)["recall@1"]
        0.5
    """

    format: Literal["laplacian_metric evaluation"] = FORMAT
    version: Literal[2] = 2
    name: str
    seed: StrictInt
    data: Mapping[str, Any] = Field(default_factory=dict)
    model: Mapping[str, Any] = Field(default_factory=dict)
    made_with: Mapping[str, str] = Field(default_factory=dict)
    settings: Mapping[str, int] = Field(default_factory=dict)
    queries: QueryRecord | None = None

    @model_validator(mode="before")
    @classmethod
    def _version_1(cls, content: Any) -> Any:
        """The first version had the numbers of the method's uncertainty only, and called OOD images strangers."""
        if not isinstance(content, Mapping) or "strangers" not in content:
            return content
        if not isinstance(content.get("values"), Mapping):
            raise ValueError("values are missing")
        values = dict(content["values"])
        retrieval = {name: values.pop(name) for name in list(values) if name.startswith(OF_RETRIEVAL)}
        ece = values.pop("retrieval_ece", None)
        ood = {
            label: {name.removeprefix("ood_"): value for name, value in images["values"].items()}
            for label, images in content["strangers"].items()
        }
        own_keys = ("name", "seed", "data", "model", "made_with", "settings", "intervals", "counts")
        return {
            **{key: content[key] for key in own_keys if key in content},
            "retrieval": {TEST: retrieval},
            "scores": {OWN: {**values, "ood": ood}},
            "calibration": None if ece is None else {"ece": ece},
        }


@dataclass(frozen=True, eq=False)
class Images:
    """Embedded images of one source, on the CPU, and what a calibrated `Trust` answers about them."""

    source: Dataset
    features: Dataset
    embedding: StochasticEmbedding
    answer: Answer | None = None

    @staticmethod
    def of(model: ModelFolder, source: Dataset, progress: bool | None = None) -> Images:
        features = features_of(model.encoder, source, progress=progress)
        return Images(source, features, model.lam.embed_features(features).to("cpu"))

    @property
    def rows(self) -> Tensor:
        """The features (N, H) in float32 on the CPU."""
        return self.features.features.float().cpu()

    def answered(self, answer: Answer) -> Images:
        """Return the images with answers; their uncertainty is 1 - probability."""
        uncertainty = 1 - torch.from_numpy(answer.probability)
        return replace(self, embedding=replace(self.embedding, uncertainty=uncertainty), answer=answer)


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
        name: what the result is called where several are compared; by default the name of the data.
        samples: joint samples for the calibration error; 0 leaves it out.
        resamples: of the bootstrap; 0 leaves the intervals out.
        seed: of both.
        progress: whether to show bars.
    """
    source.require_classes("an evaluation")
    seen = warn_if_seen(model, source, CONSEQUENCE)
    if gallery is not None:
        gallery.require_classes("an evaluation")
    embedded = _evaluated(
        model, source, ood, seen, gallery=gallery, samples=samples, seed=seed, progress=progress
    )
    measured = measure(embedded, resamples=resamples, seed=seed)
    if measured.ranking is None:
        raise ValueError(f"{source.title} cannot be evaluated: {measured.reason}")
    numbers = dict(measured.evaluation) | {
        "curves": None,
        "refusals": tuple(measured.evaluation.refusals[share] for share in SHARES),
    }
    others = {name: _which(images) for name, images in titled(ood).items()}
    queries = QueryRecord.of(
        _which(source) if gallery is None else images_digest([_which(source), _which(gallery)]),
        measured.ranking,
        measured.uncertainty,
        embedded.probability,
        {name: (digest, measured.ood[name].uncertainty) for name, digest in others.items()},
    )
    return ModelEvaluation(
        **numbers,
        queries=queries,
        name=name or source.name,
        seed=seed_of(model),
        data={
            "name": source.title,
            "images": len(source),
            "seen": seen,
            **({} if gallery is None else {"gallery": gallery.title, "items": len(gallery)}),
        },
        model={"fingerprint": model.lam.fingerprint(), "about": dict(model.about)},
        made_with={"laplacian_metric": laplacian_metric.__version__, "torch": str(torch.__version__)},
        settings={"samples": samples, "resamples": resamples, "seed": seed},
    )


def _which(source: Dataset) -> str:
    """Return a digest of which images these are: by their content, of features by their ids where these were given."""
    by_id = source.holds_features and source.ids != tuple(map(str, range(len(source))))
    ids = source.ids if by_id else [f"{digest:x}" for digest in source.digests().tolist()]
    return images_digest(ids, None if source.labels is None else source.label_names.tolist())


def seed_of(model: ModelFolder) -> int:
    """Return the seed that a model was fitted with."""
    return int(dict(model.about.get("settings", {})).get("seed", 0) or 0)


def titled(sources: Sequence[Dataset]) -> dict[str, Dataset]:
    """Return each source by a name that no other has."""
    named: dict[str, Dataset] = {}
    for source in sources:
        name = source.name if source.name not in named else source.title
        if name in named:
            raise ValueError(f"{source.title} is given twice as OOD images")
        named[name] = source
    return named


def _consensus(
    model: ModelFolder,
    inside: Images,
    items: Images | None,
    labels: Tensor,
    item_labels: Tensor | None,
    samples: int,
    seed: int,
) -> Consensus | None:
    """Return what the nearest items in jointly sampled spaces agree on; None without samples or right answers."""
    if not samples or not bool((Positives.from_labels(labels, item_labels).counts > 0).any()):
        return None
    generator = torch.Generator(model.lam.head.weight.device).manual_seed(seed)
    if items is None:
        embeddings = model.lam.sample_embeddings(inside.features, samples, generator=generator)
        return metrics.consensus((z.cpu() for z in embeddings), labels)
    rows = torch.cat([inside.features.features, items.features.features])
    both = (
        z.cpu().split([len(labels), len(rows) - len(labels)])
        for z in model.lam.sample_embeddings(rows, samples, generator=generator)
    )
    queries, searched = tee(both)
    return metrics.consensus(
        (z for z, _ in queries), labels, database=(z for _, z in searched), database_labels=item_labels
    )


def evaluated(
    model: ModelFolder,
    source: Dataset,
    ood: Sequence[Dataset] = (),
    *,
    title: str | None = None,
    thumbnails: bool = True,
    samples: int = 100,
    seed: int = 0,
    progress: bool | None = None,
) -> Evaluated:
    """Return what `laplacian_metric.report.run_report.run_report` makes a page of; arguments as for `evaluate`.

    Args:
        model: what is evaluated.
        source: labelled images.
        ood: out-of-distribution images.
        title: of the page.
        thumbnails: whether the page gets small pictures of the images.
        samples: joint samples for the calibration.
        seed: of these.
        progress: whether to show bars.
    """
    source.require_classes("a report")
    seen = warn_if_seen(model, source, CONSEQUENCE)
    return _evaluated(
        model,
        source,
        ood,
        seen,
        title=title,
        thumbnails=thumbnails,
        samples=samples,
        seed=seed,
        progress=progress,
    )


def _evaluated(
    model: ModelFolder,
    source: Dataset,
    ood: Sequence[Dataset],
    seen: dict[str, int],
    *,
    samples: int,
    seed: int,
    progress: bool | None,
    gallery: Dataset | None = None,
    title: str | None = None,
    thumbnails: bool = False,
) -> Evaluated:
    inside = Images.of(model, source, progress)
    items = None if gallery is None else Images.of(model, gallery, progress)
    outside = {name: Images.of(model, other, progress) for name, other in titled(ood).items()}
    searched = inside if items is None else items
    item_names = class_labels(searched.source)
    if model.trust is not None:
        calibrated_over = len(model.trust.gallery)
        if 2 * len(searched.rows) < calibrated_over:
            LOGGER.warning(
                "the probability was calibrated over %d images and is judged here among %d, where neighbours are"
                " further away: it is less well calibrated than in an index of as many images; evaluate on more, or"
                " search a gallery",
                calibrated_over,
                len(searched.rows),
            )
        trust = model.trust.with_gallery(searched.rows, item_names)
        inside = inside.answered(trust.items() if items is None else trust(inside.rows))
        outside = {name: images.answered(trust(images.rows)) for name, images in outside.items()}
    labels, item_labels = source.known_labels(), None
    if items is not None:
        item_labels = _same_numbers(source, item_names)
    return Evaluated(
        title=title or f"Which images of {source.name} can be trusted",
        embedding=inside.embedding,
        labels=labels,
        class_names=source.class_names,
        thumbnails=source.thumbnails() if thumbnails else None,
        file_names=source.ids,
        ood={
            name: (images.embedding, images.source.thumbnails() if thumbnails else None)
            for name, images in outside.items()
        },
        consensus=_consensus(model, inside, items, labels, item_labels, samples, seed),
        diagnostics=model.lam.diagnostics(),
        probability=None if inside.answer is None else torch.from_numpy(inside.answer.probability),
        scores=_scores(model, inside, outside, (searched.rows, item_names), of_items=items is None),
        provenance=_provenance(model, source, seen),
        gallery=None if items is None or item_labels is None else (items.embedding, item_labels),
    )


def _same_numbers(source: Dataset, names: Sequence[str]) -> Tensor:
    """Return the number in ``source`` of each item's class (M,); classes that it does not have get further numbers."""
    numbers = dict(zip(class_labels(source), source.known_labels().tolist(), strict=True))
    first = max(numbers.values()) + 1
    further = {name: first + number for number, name in enumerate(sorted(set(names) - set(numbers)))}
    return torch.tensor([(numbers | further)[name] for name in names])


def _scores(
    model: ModelFolder,
    inside: Images,
    outside: Mapping[str, Images],
    gallery: tuple[Tensor, Sequence[str]],
    *,
    of_items: bool,
) -> dict[str, Uncertainties]:
    """Return what the model's uncertainty is compared with: its other scores, and those that cost nothing.

    With ``of_items`` the images are the gallery, and each is searched for among the others.
    """
    scores = {}
    if inside.answer is not None:
        novelty = {
            name: images.answer.novelty for name, images in outside.items() if images.answer is not None
        }
        scores["novelty"] = Uncertainties(
            torch.from_numpy(inside.answer.novelty),
            {name: torch.from_numpy(values) for name, values in novelty.items()},
        )
    if inside.answer is not None or model.lam.confidence is not None:
        scores["1/kappa"] = Uncertainties(
            inside.embedding.kappa.reciprocal(),
            {name: images.embedding.kappa.reciprocal() for name, images in outside.items()},
        )
    if len(gallery[1]) < 2:
        return scores
    trivial = metrics.trivial_scores(gallery, None if of_items else inside.rows, encoder=model.encoder)
    of_ood = {
        name: metrics.trivial_scores(gallery, images.rows, encoder=model.encoder)
        for name, images in outside.items()
    }
    return scores | {
        f"{name}, no method": Uncertainties(values, {ood: images[name] for ood, images in of_ood.items()})
        for name, values in trivial.items()
    }


def _provenance(model: ModelFolder, source: Dataset, seen: dict[str, int]) -> list[tuple[str, str]]:
    data, lam = dict(model.about.get("data", {})), model.lam
    fitted = [f"{data[name]}{unit}" for name, unit in (("train", ""), ("images", " images")) if name in data]
    rows = [
        ("Images", source.title),
        ("Fitted to", ", ".join(fitted) or "not said"),
        ("Images that were fitted to or calibrated by", str(sum(seen.values()))),
        ("Posterior's form", f"{lam.structure.value}, {lam.approximation.value}"),
        ("Prior precision", f"{lam.prior_precision:.4g}"),
        ("Uncertainty", _uncertainty(model)),
        ("Loss", ", ".join(f"{name} {value}" for name, value in _of_loss(lam.loss).items())),
    ]
    return rows


def _uncertainty(model: ModelFolder) -> str:
    if model.trust is not None:
        return f"1 - probability of Trust, whose calibration error was {model.trust.calibration_error}"
    return "1/kappa" if model.lam.confidence is None else "1 - confidence in the match"


def _of_loss(loss: Any) -> dict[str, Any]:
    try:
        return {name: getattr(value, "value", value) for name, value in asdict(loss).items()}
    except TypeError:
        return {"class": type(loss).__name__}
