"""Options that several commands have."""

from __future__ import annotations

import difflib
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer


class Divide(str, Enum):
    """How a folder without folders for splits is divided."""

    IMAGES = "images"
    CLASSES = "classes"


class Kind(str, Enum):
    """How an index searches."""

    FLAT = "flat"
    IVF = "ivf"
    HNSW = "hnsw"


class Head(str, Enum):
    """Which head a posterior is over."""

    KEEP = "keep"
    TRAINED = "trained"
    WHITENING = "whitening"
    IDENTITY = "identity"


class Structure(str, Enum):
    """What is kept of the covariances of the weights."""

    DIAGONAL = "diag"
    KRONECKER = "kron"
    LOW_RANK = "lowrank"
    FULL = "full"


class Approximation(str, Enum):
    """What is kept of the loss's Hessian."""

    FULL = "full"
    FIXED = "fixed"
    POSITIVE = "positive"
    CLIPPED = "clipped"


class Distance(str, Enum):
    """What the loss takes as the distance of two embeddings."""

    ARCCOS = "arccos"
    EUCLIDEAN = "euclidean"


def _read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Take the defaults of this command's options from a file; what is on the command line wins."""
    if path is None or ctx.resilient_parsing:
        return path
    from laplacian_metric.report.read_yaml import read_yaml

    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}")
    try:
        found = read_yaml(path)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(" ".join(str(error).split())) from error
    known = {_key(one): one.name for one in ctx.command.params if one.name not in ("config", "help")}
    defaults: dict[str, Any] = {}
    for key, value in found.items():
        name = str(key).replace("_", "-")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(known))}"
            raise typer.BadParameter(
                f"{path.name} has {key!r}, which is no option of {ctx.info_name}; {hint}"
            )
        defaults[str(known[name])] = value
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return path


def _key(parameter: Any) -> str:
    """What a parameter is called in a configuration: as its flag, without the dashes."""
    flags = [flag for flag in parameter.opts if flag.startswith("--")]
    return (flags[0][2:] if flags else str(parameter.name)).replace("_", "-").lower()


Config = Annotated[
    Path | None,
    typer.Option(
        "--config", is_eager=True, callback=_read_config, help="YAML with these options by name; flags win."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what an earlier call made.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the data sets; otherwise that of LAPLACIAN_METRIC_DATA and the user's cache."
    ),
]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave out images that do not decode.")]
BatchSize = Annotated[int, typer.Option(min=1, help="How many images are embedded at a time.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that read image files.")]
Device = Annotated[str, typer.Option(help="Where networks compute: cpu, cuda, cuda:1, mps.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Decides all random choices.")]
Labels = Annotated[
    Path | None, typer.Option(help="File with the labels of features, where these are not in the same file.")
]
DivideBy = Annotated[
    Divide,
    typer.Option(
        help="How a folder without train, val and test is divided: every class into parts, or whole classes."
    ),
]
Model = Annotated[Path, typer.Argument(help="A model folder, made by fit or train.")]
Samples = Annotated[
    int,
    typer.Option(
        min=0, help="Networks drawn from the posterior, for the calibration error; 0 leaves it out."
    ),
]
Resamples = Annotated[
    int, typer.Option(min=0, help="Draws of the bootstrap behind the intervals; 0 leaves them out.")
]
Strangers = Annotated[
    list[str] | None,
    typer.Option("--strangers", help="Images from elsewhere; may be given several times."),
]

DATA = "A data set's name, a folder of images or a file of features; NAME:SPLIT picks a part."


def pairs(given: list[str] | None) -> dict[str, Any]:
    """Options of the form KEY=VALUE."""
    from laplacian_metric.cli.steps.cells import assigned

    return assigned(given or [])
