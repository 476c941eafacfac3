"""What a model's uncertainty is worth on labelled images and on strangers, and the page about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

import laplacian_metric
from laplacian_metric import metrics
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.data.named_inputs import Source
from laplacian_metric.laplace.features import Features
from laplacian_metric.laplace.model_folder import ModelFolder
from laplacian_metric.laplace.model_inputs import features_of, warn_if_seen
from laplacian_metric.metrics import Consensus, Evaluation, Uncertainties
from laplacian_metric.metrics.evaluation import OWN, ood_name
from laplacian_metric.metrics.ranking import rank
from laplacian_metric.metrics.refusals import Refusal
from laplacian_metric.report.evaluated import Evaluated

FORMAT, VERSION = "laplacian_metric evaluation", 1
DEPTHS = (1, 5, 10)
SHARES = (0, 10, 20, 30, 50)  # in percent, of refused queries


@dataclass(frozen=True, eq=False)
class Images:
    """Embedded images of one source, on the CPU."""

    source: Source
    features: Features
    embedding: StochasticEmbedding

    @staticmethod
    def of(model: ModelFolder, source: Source, progress: bool | None = None) -> Images:
        features = features_of(model.encoder, source, progress=progress)
        return Images(source, features, model.lam.embed_features(features).to("cpu"))


def evaluate(
    model: ModelFolder,
    source: Source,
    strangers: Sequence[Source] = (),
    *,
    name: str | None = None,
    samples: int = 100,
    resamples: int = 1000,
    seed: int = 0,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Every metric with its interval, as plain values: what a result file holds.

    Args:
        model: what is judged.
        source: labelled images; each is looked for among the others.
        strangers: images from elsewhere.
        name: what the result is called where several are compared; by default the name of the data.
        samples: joint samples for the calibration error; 0 leaves it out.
        resamples: of the bootstrap; 0 leaves the intervals out.
        seed: of both.
        progress: whether to show bars.
    """
    source.require_classes("an evaluation")
    seen = warn_if_seen(model, source, "the figures are better than those of new images will be")
    inside = Images.of(model, source, progress)
    agreed = _consensus(model, inside, samples, seed)
    ks = [k for k in DEPTHS if k < len(source)]
    ranking = rank(inside.embedding.point, source.known_labels(), max(ks), at_r=True)

    out = {title: Images.of(model, other, progress).embedding for title, other in titled(strangers).items()}
    evaluation = metrics.evaluate_ranking(
        ranking,
        inside.embedding.uncertainty,
        agreed=agreed,
        ood_uncertainty={title: e.uncertainty for title, e in out.items()},
        ks=ks,
        resamples=resamples,
        generator=torch.Generator().manual_seed(seed),
    )
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": name or source.name,
        "seed": seed_of(model),
        "data": {"name": source.title, "images": len(source), "seen": seen},
        "model": {"fingerprint": model.lam.fingerprint(), "about": dict(model.about)},
        "made_with": {"laplacian_metric": laplacian_metric.__version__, "torch": str(torch.__version__)},
        "settings": {"samples": samples, "resamples": resamples, "seed": seed},
        **evaluation.to_dict(),
        "strangers": {title: _of_strangers(evaluation, title) for title in out},
        "refusing": [_refusing(evaluation.refusals[share]) for share in SHARES],
    }


def _refusing(row: Refusal) -> dict[str, Any]:
    """The errors among what is answered, where the least certain queries are refused."""
    low, high = row.interval
    return {
        "refused": row.share,
        "threshold": row.threshold,
        "answered": row.answered,
        "wrong": row.wrong,
        "error": row.error,
        "low": low,
        "high": high,
        "strangers": row.ood,
    }


def _of_strangers(evaluation: Evaluation, title: str) -> dict[str, Any]:
    record = evaluation.to_dict()
    names = {f"ood_{name}": ood_name(name, title) for name in evaluation.scores[OWN].ood[title]}
    return {
        "images": evaluation.counts.images[title],
        "values": {name: record["values"][key] for name, key in names.items()},
        "intervals": {
            name: record["intervals"][key] for name, key in names.items() if key in record["intervals"]
        },
    }


def seed_of(model: ModelFolder) -> int:
    """The seed that a model was made with."""
    return int(dict(model.about.get("settings", {})).get("seed", 0) or 0)


def titled(strangers: Sequence[Source]) -> dict[str, Source]:
    """Each set by a name that no other has."""
    found: dict[str, Source] = {}
    for source in strangers:
        name = source.name if source.name not in found else source.title
        if name in found:
            raise ValueError(f"{source.title} is given twice as strangers")
        found[name] = source
    return found


def _consensus(model: ModelFolder, inside: Images, samples: int, seed: int) -> Consensus | None:
    if not samples:
        return None
    generator = torch.Generator(model.encoder.head.weight.device).manual_seed(seed)
    drawn = model.lam.sample_embeddings(inside.features, samples, generator=generator)
    return metrics.consensus((z.cpu() for z in drawn), inside.source.known_labels())


def evaluated(
    model: ModelFolder,
    source: Source,
    strangers: Sequence[Source] = (),
    *,
    title: str | None = None,
    thumbnails: bool = True,
    samples: int = 100,
    seed: int = 0,
    progress: bool | None = None,
) -> Evaluated:
    """What `laplacian_metric.report.run_report.run_report` makes a page of; arguments as for `evaluate`.

    Args:
        model: what is judged.
        source: labelled images.
        strangers: images from elsewhere.
        title: of the page.
        thumbnails: whether the page gets small pictures of the images.
        samples: joint samples for the calibration.
        seed: of these.
        progress: whether to show bars.
    """
    source.require_classes("a report")
    seen = warn_if_seen(model, source, "the figures are better than those of new images will be")
    inside = Images.of(model, source, progress)
    out = {name: Images.of(model, other, progress) for name, other in titled(strangers).items()}
    scores = {}
    if model.lam.confidence is not None:
        outside = {name: images.embedding.kappa.reciprocal() for name, images in out.items()}
        scores["1/kappa"] = Uncertainties(inside.embedding.kappa.reciprocal(), outside)
    norms = {name: -images.features.features.norm(dim=1).cpu() for name, images in out.items()}
    scores["norm of the features, no posterior"] = Uncertainties(
        -inside.features.features.norm(dim=1).cpu(), norms
    )
    return Evaluated(
        title=title or f"Which images of {source.name} can be trusted",
        embedding=inside.embedding,
        labels=source.known_labels(),
        class_names=source.class_names,
        thumbnails=source.thumbnails() if thumbnails else None,
        file_names=source.ids,
        ood={
            name: (images.embedding, images.source.thumbnails() if thumbnails else None)
            for name, images in out.items()
        },
        consensus=_consensus(model, inside, samples, seed) if _can_agree(source) else None,
        diagnostics=model.lam.diagnostics(),
        scores=scores,
        provenance=_provenance(model, source, seen),
    )


def _can_agree(source: Source) -> bool:
    """Whether any image has another of its class."""
    labels = source.known_labels()
    return len(torch.unique(labels)) < len(labels)


def _provenance(model: ModelFolder, source: Source, seen: dict[str, int]) -> list[tuple[str, str]]:
    fitted = dict(model.about.get("data", {}))
    lam = model.lam
    rows = [
        ("Images", source.title),
        ("Fitted to", f"{fitted['train']}, {fitted['images']} images" if fitted else "not said"),
        ("Images that were fitted to or calibrated by", str(sum(seen.values()))),
        ("Posterior's form", f"{lam.structure.value}, {lam.approximation.value}"),
        ("Prior precision", f"{lam.prior_precision:.4g}"),
        ("Uncertainty", "1/kappa" if lam.confidence is None else "1 - calibrated confidence"),
        ("Loss", ", ".join(f"{name} {value}" for name, value in _of_loss(lam.loss).items())),
    ]
    return rows


def _of_loss(loss: Any) -> dict[str, Any]:
    try:
        return {name: getattr(value, "value", value) for name, value in asdict(loss).items()}
    except TypeError:
        return {"class": type(loss).__name__}
