"""`lam fit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from laplacian_metric.laplace.model_folder import ModelFolder


@dataclass(frozen=True)
class Weights:
    """The weights of an encoder, and what it takes."""

    weights: Annotated[Path | None, typer.Option(help="File of the encoder's weights.")] = None
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Download published weights.")] = False
    encoder_option: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE of the architecture; may be repeated.")
    ] = None
    image_size: Annotated[int | None, typer.Option(min=1, help="Size to which images are scaled.")] = None
    channels: Annotated[int | None, typer.Option(help="1 for grey, 3 for colour.")] = None


@dataclass(frozen=True)
class Network(Weights):
    """The encoder."""

    encoder: Annotated[
        str | None, typer.Option(help="fashion-mnist, resnet50-gem-v1, timm:NAME, torchvision:NAME, ...")
    ] = None


@dataclass(frozen=True)
class Posterior:
    """The options of `FitOptions`, by their names."""

    head: Annotated[
        Literal["keep", "trained", "whitening", "identity"] | None,
        typer.Option(
            help="Head: keep the loaded one or make a new one; by default one is trained if none was loaded."
        ),
    ] = None
    dim: Annotated[int | None, typer.Option(min=2, help="Dimensions of a new head.")] = None
    steps: Annotated[int, typer.Option(min=1, help="Training steps of a new head.")] = 1000
    margin: Annotated[float, typer.Option(help="Margin of the contrastive loss.")] = 0.7
    distance: Annotated[
        Literal["arccos", "euclidean"], typer.Option(help="Distance of the contrastive loss.")
    ] = "arccos"
    power: Annotated[
        int,
        typer.Option(min=1, max=2, help="Power of the distance in the loss: 2, or 1 for the plain distance."),
    ] = 2
    structure: Annotated[
        Literal["diag", "kron", "lowrank", "full"],
        typer.Option(help="Structure of the posterior's covariance."),
    ] = "diag"
    approximation: Annotated[
        Literal["full", "fixed", "positive", "clipped"],
        typer.Option(help="Approximation of the loss's Hessian."),
    ] = "fixed"
    rank: Annotated[int, typer.Option(min=1, help="Eigenvectors that lowrank keeps.")] = 50
    temperature: Annotated[float, typer.Option(help="Divides the weight of the data.")] = 1.0
    prior: Annotated[
        str, typer.Option(help="How the prior precision is chosen: marginal, validation, or a number.")
    ] = "marginal"
    calibrate: Annotated[
        bool | None,
        typer.Option(
            "--calibrate/--no-calibrate",
            help="Calibrate the probability that the nearest image is right; by default if there are enough "
            "validation images. The model keeps the training features.",
        ),
    ] = None
    seed: options.Seed = 0
    cache: Annotated[
        Path | None, typer.Option(help="Folder that keeps features, so that an interrupted fit can resume.")
    ] = None


def fit(
    out: Annotated[Path, typer.Option(help="The model folder to write.")],
    network: Network,
    posterior: Posterior,
    images: options.LabelledImages,
    output: options.Output,
    data: Annotated[str | None, typer.Option(help="A folder of images, or a data set's name.")] = None,
    features: Annotated[
        Path | None, typer.Option(help="Features in place of images: .npy, .npz or .safetensors, (N, H).")
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(help="Other data to calibrate on; by default a part of the same data is held out."),
    ] = None,
) -> None:
    """Fit a posterior to an existing encoder or to exported features.

    The encoder itself is not trained. An encoder without a head gets a linear one, trained on the features.

    Example: lam fit --encoder resnet50-gem-v1 --weights resnet50.safetensors --data photos --out model

    Example: lam fit --features features.npy --labels labels.npy --dim 32 --out model
    """
    if (data is None) == (features is None):
        raise ValueError("pass either --data, with an encoder, or --features")
    if features is not None and (network.encoder or network.weights or network.pretrained):
        raise ValueError("--features come from an encoder: leave --encoder, --weights and --pretrained out")
    from laplacian_metric.core.artifact import check_target
    from laplacian_metric.core.checked import checked
    from laplacian_metric.data.opening import open_both
    from laplacian_metric.encoder.precision import compute_in
    from laplacian_metric.encoder.zoo import load_encoder, preparation_for
    from laplacian_metric.laplace.fit_model import FitOptions, fit_model
    from laplacian_metric.laplace.model_folder import ModelManifest, check_options

    check_target(out, ModelManifest, overwrite=output.force)
    device = options.checked_device(images.device)
    chosen = checked(FitOptions, **vars(posterior))
    loaded, preparation = None, None
    if features is None:
        architecture = options.assignments(network.encoder_option)
        check_options(architecture)
        loaded = load_encoder(
            network.encoder,
            network.weights,
            pretrained=network.pretrained,
            dim=posterior.dim,
            options=architecture,
            seed=posterior.seed,
        )
        compute_in(images.precision, loaded.encoder.to(device))
        name = str((loaded.encoder.recipe or {}).get("name"))
        preparation = preparation_for(name, image_size=network.image_size, channels=network.channels)
    opening = images.opening(preparation)
    wanted = chosen.needs_validation or chosen.calibrate is None
    try:
        train, held_out = open_both(str(features or data), opening, validation, wanted)
    except ValueError as error:
        if chosen.needs_validation:
            raise
        train, held_out = open_both(str(features or data), opening, validation, False)
        common.warn(f"warning: Trust is left out: {error}")
    model = fit_model(train, held_out, chosen, loaded, preparation=preparation, device=device)
    model.save(out, overwrite=output.force)
    if output.as_json:
        common.print_json({"model": str(out), **model.about})
    else:
        common.show(f"model: {out}", common.table(("", ""), _rows(model), slice(2, None)))


def _rows(model: ModelFolder) -> list[tuple[str, str]]:
    """Return what was fitted, and what it is worth on validation images."""
    data, diagnostics = model.about["data"], model.about["diagnostics"]
    rows = [
        ("fitted to", f"{data['images']} images of {data['classes']} classes ({data['train']})"),
        ("dimensions", str(model.encoder.dim)),
        ("prior precision", f"{model.lam.prior_precision:.4g}"),
        (
            "effective parameters",
            f"{diagnostics['effective_parameters']:.1f} of {diagnostics['parameters']}",
        ),
    ]
    if model.trust is None:
        return [*rows, ("Trust", "left out: no probability that the nearest image is right")]
    measured = model.about["validation"]
    rows += [
        ("recall@1 of validation images among the training images", common.number(measured["recall@1"])),
        ("calibration error of the probability", str(model.trust.calibration_error)),
    ]
    if measured["left_out"]:
        rows.append(
            ("validation images left out as duplicates of training images", str(measured["left_out"]))
        )
    left_out = [name for name, weight in model.trust.inputs.items() if isinstance(weight, str)]
    return [*rows, *[(f"input {name}", str(model.trust.inputs[name])) for name in left_out]]
