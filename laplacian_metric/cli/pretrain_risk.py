"""`lam pretrain-risk`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from laplacian_metric.cli import common, options
from laplacian_metric.cli.fit import Weights

if TYPE_CHECKING:
    from laplacian_metric.data import Preparation
    from laplacian_metric.encoder import Encoder
    from laplacian_metric.methods.risk import RiskHead


@dataclass(frozen=True)
class Head:
    """The options of `LossPrediction`, by their names."""

    target: Annotated[
        Literal["retrieval", "pair-loss", "cross-entropy"],
        typer.Option(help="Target of the prediction: the share of wrong neighbours, or a loss."),
    ] = "retrieval"
    neighbours: Annotated[
        int, typer.Option(min=1, help="Neighbours of which the share of wrong ones is predicted.")
    ] = 10
    loss: Annotated[
        Literal["bce", "l2", "ranking"] | None,
        typer.Option(help="Loss of the head; by default bce for retrieval, else l2."),
    ] = None
    hidden: Annotated[int, typer.Option(min=1, help="Units of each of two hidden layers.")] = 512
    epochs: Annotated[int, typer.Option(min=1, help="Epochs at most; validation items choose one.")] = 6
    seed: options.Seed = 0


def pretrain_risk(
    source: Annotated[
        str, typer.Argument(help="A model folder, the name of an encoder, or a file of features.")
    ],
    out: Annotated[Path, typer.Option(help="The folder of the head to write.")],
    head: Head,
    network: Weights,
    images: options.LabelledImages,
    output: options.Output,
    data: Annotated[
        str | None,
        typer.Option(help="A folder of images, a data set's name, or features for a model of them."),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            help="Other data to choose the epoch by; by default a part of the same data is held out."
        ),
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps the features of images.")] = None,
) -> None:
    """Train a head that predicts from features how likely an item is to be retrieved wrongly.

    The encoder is not changed. `laplacian_metric.methods.risk.with_head(encoder, load(OUT))` uses the head.

    Example: lam pretrain-risk features.npz --divide classes --out risk

    Example: lam pretrain-risk resnet50-gem-v1 --weights resnet50.safetensors --data photos --out risk
    """
    from laplacian_metric.core.array_files import SUFFIXES
    from laplacian_metric.core.artifact import check_target
    from laplacian_metric.core.method import FitData, Setup
    from laplacian_metric.data.opening import open_both
    from laplacian_metric.methods.risk import LossPrediction, pretrain
    from laplacian_metric.methods.risk.head import HeadManifest
    from laplacian_metric.methods.risk.shipped import card

    check_target(out, HeadManifest, overwrite=output.force)
    method = LossPrediction(**vars(head))
    is_features = Path(source).suffix.lower() in SUFFIXES
    if is_features == (data is not None):
        raise ValueError(
            f"{source} has the features already: leave --data out"
            if is_features
            else f"--data is needed: what {source} embeds, a folder of images or a data set's name"
        )
    encoder, preparation = (None, None) if is_features else _encoder(source, network, images, head.seed)
    train, held_out = open_both(str(data or source), images.opening(preparation), validation, True)
    assert held_out is not None
    if encoder is None:
        encoder = _of_features(train.inputs.shape[1])
    from hessians import ContrastiveLoss

    setup = Setup(ContrastiveLoss(), len(train), seed=head.seed)
    trained, _ = pretrain(encoder, FitData(train, held_out, cache), method, setup)
    trained.card = {"data": train.title, **trained.card}
    trained.save(out, overwrite=output.force)
    if output.as_json:
        common.print_json({"head": str(out), "width": trained.width, **trained.card})
    else:
        common.show(f"head: {out}", card(trained), _reading(trained))


def _of_features(width: int) -> Encoder:
    """Return the encoder whose embeddings are the features."""
    from torch import nn

    from laplacian_metric.encoder import Encoder

    return Encoder.with_head(nn.Identity(), width)


def _encoder(
    source: str, network: Weights, images: options.LabelledImages, seed: int
) -> tuple[Encoder, Preparation | None]:
    """Return the encoder of a model folder or of a name, and how images are prepared for it."""
    from laplacian_metric.encoder import Encoder, identity_head
    from laplacian_metric.encoder.zoo import load_encoder, preparation_for

    device = options.checked_device(images.device)
    if Path(source).is_dir():
        model = images.model(Path(source))
        return model.encoder, model.preparation
    loaded = load_encoder(
        source,
        network.weights,
        pretrained=network.pretrained,
        options=options.assignments(network.encoder_option),
        seed=seed,
    )
    encoder = loaded.encoder
    if loaded.head != "trained":  # a classifier, or random: the features are the better embedding
        encoder = Encoder(encoder.backbone, identity_head(encoder.num_features))
    name = str((loaded.encoder.recipe or {}).get("name"))
    preparation = preparation_for(name, image_size=network.image_size, channels=network.channels)
    return encoder.to(device).eval(), preparation


def _reading(head: RiskHead) -> str:
    """Return what the numbers mean for whoever decides whether to use the head."""
    measured = head.card["measured"][0]
    if measured["R-AUROC"] <= measured["distance"]:
        return (
            "The plain distance to the nearest item says more about wrong neighbours than this head does: use the head "
            "where there is no gallery to search, or together with the distance in Trust."
        )
    return "The head says more about wrong neighbours than the plain distance to the nearest item does."
