"""Fit a posterior to an existing encoder or to features, as a model that can be saved."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from hessians import ContrastiveLoss
from laplacian_metric.core.arguments import Positive
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.images import Preparation
from laplacian_metric.encoder import Encoder, identity_head, train_head, whitening_head
from laplacian_metric.encoder.zoo import LoadedEncoder
from laplacian_metric.laplace.frozen_features import features_of
from laplacian_metric.laplace.model_folder import ModelFolder, class_labels
from laplacian_metric.laplace.options import LamOptions
from laplacian_metric.laplace.posthoc import LAM
from laplacian_metric.trust.calibration import LEAST_QUERIES
from laplacian_metric.trust.trust import Trust

LOGGER = logging.getLogger(__name__)
T = TypeVar("T")
FEW_ERRORS = 10  # of validation images, below which a calibration is hardly more than a constant
DIM = 64  # of a head that is trained or whitens, unless it is given


@dataclass(frozen=True, kw_only=True)
class FitOptions(LamOptions):
    """How a posterior is fitted, beside the settings of the `LAM`.

    Attributes:
        head: "keep" takes the encoder's head; "trained" trains one on the features, "whitening" computes one from their
            covariance, "identity" leaves them as they are. None keeps a head that was
            trained to embed, and trains one in place of a classifier.
        dim: of a trained or whitening head; by default 64, or the number of features if that is smaller.
        steps: training steps of a head.
        margin, distance, power: of the loss.
        prior: "marginal", "validation", or a number.
        calibrate: calibrate `Trust` on validation images: the probability that the nearest training image is right.
            The model keeps the training features. None calibrates where there are enough validation images.
        seed: of all random choices.
        cache: a folder that keeps features, so that an interrupted pass can resume; None keeps them in memory.
    """

    head: Literal["keep", "trained", "whitening", "identity"] | None = None
    dim: Annotated[int, Field(ge=2)] | None = None
    steps: int = 1000
    margin: float = 0.7
    distance: str = "arccos"
    power: int = 2
    prior: Positive | Literal["marginal", "validation"] = "marginal"
    calibrate: bool | None = None
    seed: int = 0
    cache: Path | None = None

    def __post_init__(self) -> None:
        if self.dim is not None and self.head in ("keep", "identity"):
            raise ValueError(
                f"dim is given, but a head that is {self.head!r} has its own: leave one of both out"
            )

    @property
    def needs_validation(self) -> bool:
        """Whether nothing can be fitted without validation images."""
        return bool(self.calibrate) or self.prior == "validation"

    def loss(self) -> ContrastiveLoss:
        """Return the loss that the curvature is of, and that a head is trained with."""
        return ContrastiveLoss(
            margin=self.margin, distance=self.distance, negatives="active", power=self.power
        )


def fit_model(
    train: Dataset,
    validation: Dataset | None,
    options: FitOptions,
    loaded: LoadedEncoder | None = None,
    *,
    preparation: Preparation | None = None,
    device: torch.device | str = "cpu",
    about: dict[str, Any] | None = None,
    progress: bool | None = None,
) -> ModelFolder:
    """Fit a posterior, choose its prior and calibrate it; return the model.

    Args:
        train: images, or features where there is no encoder.
        validation: other images of the same distribution; None where none are needed.
        options: see `FitOptions`.
        loaded: the encoder; None for features.
        preparation: of images.
        device: where networks compute.
        about: further values for the model's description.
        progress: whether to show bars; None asks the terminal.
    """
    train.require_classes("a fit")
    _check_head(options, loaded)
    if options.calibrate and validation is not None and len(validation) < LEAST_QUERIES:
        raise ValueError(
            f"{validation.title} has {len(validation)} images to calibrate on, at least {LEAST_QUERIES} are needed: "
            "add images, pass others with --validation, or --no-calibrate"
        )
    backbone = nn.Identity() if loaded is None else loaded.encoder.backbone
    width = train.inputs.shape[1] if train.holds_features else loaded.encoder.num_features  # type: ignore[union-attr]
    carrier = loaded.encoder if loaded is not None else Encoder(backbone, identity_head(width))
    carrier = carrier.to(device).eval()
    train_features = _features(carrier, train, options, progress)
    held_out = None if validation is None else _features(carrier, validation, options, progress)
    encoder = Encoder(
        backbone, _head(options, carrier, loaded, train_features, progress), normalize=carrier.normalize
    )
    encoder = encoder.to(device).eval()
    if loaded is not None and loaded.encoder.recipe is not None:
        encoder.recipe = {"name": loaded.encoder.recipe["name"], "dim": encoder.dim}
    lam = _posterior(encoder, options, train_features, held_out, progress)
    trust = None
    if options.calibrate or (options.calibrate is None and validation is not None):
        trust = _calibrated(
            encoder, options, (train_features, train), (_needed(held_out), _needed(validation))
        )
    seen = {"train": train.digests()}
    if validation is not None:
        seen["validation"] = validation.digests()
    return ModelFolder(
        lam,
        preparation,
        {} if loaded is None else loaded.options,
        train.class_names,
        {
            **(about or {}),
            **_about(train, validation, replace(options, head=_kind(options, loaded)), lam),
            **({} if trust is None else _calibration(trust, len(_needed(validation)))),
        },
        seen,
        trust,
    )


def _features(carrier: Encoder, source: Dataset, options: FitOptions, progress: bool | None) -> Dataset:
    """Return the features of images, or those that a file has, on the encoder's device."""
    folder = None if options.cache is None else options.cache / source.title.replace(":", "-")
    features = features_of(carrier, source, folder, progress)
    if features is not source:
        return features
    return features.with_inputs(features.inputs.to(carrier.head.weight))


def _posterior(
    encoder: Encoder, options: FitOptions, train: Dataset, held_out: Dataset | None, progress: bool | None
) -> LAM:
    """Return the posterior fitted to features, with the prior that was asked for."""
    chosen = options.prior if isinstance(options.prior, float) else options.prior_precision
    lam = LAM.of(encoder, options.loss(), replace(options, prior_precision=chosen))
    generator = torch.Generator().manual_seed(options.seed)
    lam.fit_features(train, generator=generator, progress=progress)
    if options.prior == "validation":
        lam.optimize_prior_precision("validation", _needed(held_out), generator=generator)
    elif chosen is None:
        lam.optimize_prior_precision()
    return lam


def _calibrated(
    encoder: Encoder,
    options: FitOptions,
    train: tuple[Dataset, Dataset],
    validation: tuple[Dataset, Dataset],
) -> Trust | None:
    """Return Trust over training images, calibrated on validation images; each is a pair of features and images.

    Without enough validation images it is left out, unless it was asked for.
    """
    gallery, queries = (
        (features.features.float().cpu(), class_labels(images)) for features, images in (train, validation)
    )
    try:
        trust = Trust.fit(gallery, queries, encoder=encoder)
    except ValueError as error:
        if options.calibrate:
            raise
        LOGGER.warning("Trust is left out: %s", error)
        return None
    right = trust.calibration.right
    if (wrong := int((~right).sum())) < FEW_ERRORS:
        LOGGER.warning(
            "only %d of the %d validation images have a wrong nearest image, so that the probability has learned little"
            " about wrong answers: calibrate on more images, or on harder ones",
            wrong,
            len(right),
        )
    return trust


def _needed(held_out: T | None) -> T:
    if held_out is None:
        raise ValueError(
            "validation images are needed for what is chosen on them: pass some, or --no-calibrate"
        )
    return held_out


def _check_head(options: FitOptions, loaded: LoadedEncoder | None) -> None:
    if options.head == "keep" and (loaded is None or loaded.head == "new"):
        what = "features have no head"
        if loaded is not None:
            what = "the weights have no head" + (
                "" if options.dim is None else f" of {options.dim} dimensions"
            )
        raise ValueError(f"head is 'keep', but {what} to keep: take trained, whitening or identity")


def _kind(
    options: FitOptions, loaded: LoadedEncoder | None
) -> Literal["keep", "trained", "whitening", "identity"]:
    """Return the kind of head that the model gets."""
    if options.head is not None:
        return options.head
    if loaded is None or loaded.head == "new":
        return "trained"
    if loaded.head == "classifier":
        LOGGER.info(
            "the classifier of %d classes is cut off, and a head trained on the features below it; --head keep would "
            "embed in its logits",
            loaded.encoder.dim,
        )
        return "trained"
    return "keep" if options.dim in (None, loaded.encoder.dim) else "trained"


def _head(
    options: FitOptions,
    carrier: Encoder,
    loaded: LoadedEncoder | None,
    train: Dataset,
    progress: bool | None,
) -> nn.Linear:
    kind = _kind(options, loaded)
    if kind == "keep":
        return carrier.head
    width = carrier.num_features
    if kind == "identity":
        return identity_head(width, device=carrier.head.weight.device)
    dim = min(DIM, width) if options.dim is None else options.dim
    features: Tensor = train.features
    if kind == "whitening":
        return whitening_head(features, dim)
    return train_head(
        features,
        train.labels.to(features.device),
        options.loss(),
        dim,
        steps=options.steps,
        generator=torch.Generator().manual_seed(options.seed),
        progress=progress,
    )


def _about(train: Dataset, validation: Dataset | None, options: FitOptions, lam: LAM) -> dict[str, Any]:
    """Return the description of the model."""
    return {
        "data": {
            "train": train.title,
            "images": len(train),
            "classes": len(torch.unique(train.known_labels())),
            "validation": None if validation is None else validation.title,
            "validation_images": 0 if validation is None else len(validation),
        },
        "settings": {
            **{
                name: getattr(value, "value", value)
                for name, value in vars(options).items()
                if name != "cache"
            },
            "prior_precision": lam.prior_precision,
            "dim": lam.encoder.dim,
        },
        "diagnostics": lam.diagnostics().to_dict(),
    }


def _calibration(trust: Trust, queries: int) -> dict[str, Any]:
    """Return how often the nearest training image of validation images is right, and how well that is predicted."""
    right, error = trust.calibration.right, trust.calibration_error
    return {
        "validation": {
            "recall@1": float(right.mean()),
            "queries": len(right),
            "left_out": queries - len(right),
            "calibration_error": None if error is None else vars(error),
            "inputs": trust.inputs,
        }
    }
