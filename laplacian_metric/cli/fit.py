"""`lam fit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from laplacian_metric.laplace.model_folder import ModelFolder


def fit(
    out: Annotated[Path, typer.Option(help="The model folder that is made.")],
    data: Annotated[str | None, typer.Option(help="A folder of images, or a data set's name.")] = None,
    features: Annotated[
        Path | None, typer.Option(help="Features instead: .npy, .npz or .safetensors, (N, H).")
    ] = None,
    labels: options.Labels = None,
    validation: Annotated[
        str | None,
        typer.Option(help="Other data to calibrate on; by default a part of the same is held out."),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="fashion-mnist, resnet50-gem-v1, timm:NAME, torchvision:NAME, ...")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="File of the encoder's weights.")] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Download published weights.")] = False,
    encoder_option: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE of the architecture; may be given several times.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Images are scaled to this.")] = None,
    channels: Annotated[int | None, typer.Option(help="1 for grey, 3 for colour.")] = None,
    head: Annotated[
        options.Head | None,
        typer.Option(
            help="The linear layer: keep what was loaded, or make one; trained where there is none."
        ),
    ] = None,
    dim: Annotated[int | None, typer.Option(min=2, help="Dimensions of a head that is made.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Of the training of a head.")] = 1000,
    margin: Annotated[float, typer.Option(help="Of the contrastive loss.")] = 0.7,
    distance: Annotated[options.Distance, typer.Option(help="Of the loss.")] = options.Distance.ARCCOS,
    structure: Annotated[
        options.Structure, typer.Option(help="Of the posterior's covariance.")
    ] = options.Structure.DIAGONAL,
    approximation: Annotated[
        options.Approximation, typer.Option(help="Of the loss's Hessian.")
    ] = options.Approximation.FIXED,
    rank: Annotated[int, typer.Option(min=1, help="Eigenvectors that lowrank keeps.")] = 50,
    temperature: Annotated[float, typer.Option(help="Divides how much the data count.")] = 1.0,
    prior: Annotated[
        str, typer.Option(help="marginal, validation, or the precision as a number.")
    ] = "marginal",
    confidence: Annotated[
        bool, typer.Option(help="Calibrate the probability that a match can be trusted.")
    ] = True,
    divide: options.DivideBy = options.Divide.IMAGES,
    cache: Annotated[
        Path | None, typer.Option(help="Keep features here, so that an interrupted fit goes on.")
    ] = None,
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    skip_broken: options.SkipBroken = False,
    batch_size: options.BatchSize = 100,
    workers: options.Workers = 0,
    device: options.Device = "cpu",
    force: options.Force = False,
    as_json: options.AsJson = False,
    config: options.Config = None,
) -> None:
    """Give an encoder that is there, or features, a posterior: what makes its embeddings know how sure they are.

    Nothing of the encoder is trained. Without a head of its own it gets one, trained on the features.

    Example: lam fit --encoder resnet50-gem-v1 --weights resnet50.safetensors --data photos --out model

    Example: lam fit --features features.npy --labels labels.npy --dim 32 --out model
    """
    if (data is None) == (features is None):
        raise ValueError("pass either --data, with an encoder, or --features")
    from laplacian_metric.cli.steps import devices, encoders, fitting
    from laplacian_metric.cli.steps.sources import Opening, open_both
    from laplacian_metric.laplace.model_folder import check_options, check_target

    check_target(out, force)
    where = devices.device(device)
    chosen = fitting.FitOptions(
        None if head is None else head.value,
        dim,
        steps,
        margin,
        distance.value,
        structure.value,
        approximation.value,
        rank,
        temperature,
        _prior(prior),
        confidence,
        seed,
        cache,
    )
    loaded, preparation = None, None
    if features is None:
        made_with = options.pairs(encoder_option)
        check_options(made_with)
        loaded = encoders.load_encoder(
            encoder, weights, pretrained=pretrained, dim=dim, options=made_with, seed=seed
        )
        recipe = loaded.encoder.recipe or {}
        preparation = encoders.preparation_for(
            str(recipe.get("name")), image_size=image_size, channels=channels
        )
    elif encoder or weights or pretrained:
        raise ValueError("--features come from an encoder: leave --encoder, --weights and --pretrained out")
    how = Opening(preparation, data_dir, divide.value, skip_broken, batch_size, workers, labels)
    train, held = open_both(str(features or data), how, validation, chosen.needs_validation)
    model = fitting.fit(train, held, chosen, loaded, preparation=preparation, device=where)
    model.save(out, overwrite=force)
    content = {"model": str(out), **model.about}
    if as_json:
        common.print_json(content)
    else:
        _show(model, out)


def _prior(text: str) -> str | float:
    if text in ("marginal", "validation"):
        return text
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--prior is {text!r}: marginal, validation or a number is needed") from None


def _show(model: ModelFolder, out: Path) -> None:
    """What was fitted, and what it is worth on validation images."""
    about = model.about
    data, found = about["data"], about["diagnostics"]
    rows: list[tuple[str, str]] = [
        ("fitted to", f"{data['images']} images of {data['classes']} classes ({data['train']})"),
        ("dimensions", str(model.encoder.dim)),
        ("prior precision", f"{model.lam.prior_precision:.4g}"),
        ("effective parameters", f"{found['effective_parameters']:.1f} of {found['parameters']}"),
        ("uncertainty", "1/kappa" if model.lam.confidence is None else "1 - confidence in the match"),
    ]
    measured: dict[str, Any] = about.get("validation") or {}
    if measured:
        rows += [
            ("recall@1, validation", common.number(measured["recall@1"])),
            ("R-AUROC, validation", common.number(measured["r_auroc"])),
        ]
    common.show(f"model: {out}", common.table(("", ""), rows, numeric=2))
