"""The options that several commands share, declared once, and how a command takes a group of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

if TYPE_CHECKING:
    from laplacian_metric.core.dataset import Dataset
    from laplacian_metric.data import Preparation
    from laplacian_metric.laplace.model_folder import ModelFolder

DATA = "A data set's name, a folder of images or a file of features; NAME:SPLIT picks a split."


def _read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Take the defaults of this command's options from a file; options on the command line win."""
    if path is None or ctx.resilient_parsing:
        return path
    from laplacian_metric.core.checked import near, read_yaml

    names = {
        flag.lstrip("-").replace("_", "-"): option.name
        for option in ctx.command.params
        for flag in option.opts
    }
    defaults = dict(ctx.default_map or {})
    for key, value in read_yaml(path).items():
        name = str(key).replace("_", "-")
        if name in ("config", "help") or name not in names:
            raise typer.BadParameter(
                f"{path.name} has {key!r}, which is no option of {ctx.info_name}; {near(name, sorted(names))}"
            )
        defaults[str(names[name])] = value
    ctx.default_map = defaults
    return path


def assignments(pairs: Iterable[str] | None) -> dict[str, Any]:
    """Return settings of the form KEY=VALUE, with dots in the keys, as nested values.

    Example:
        >>> assignments(["training.epochs=3", "loss.margin=0.5", "training.learning_rate=1e-3"])
        {'training': {'epochs': 3, 'learning_rate': 0.001}, 'loss': {'margin': 0.5}}
    """
    import yaml

    settings: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{pair!r} is no setting: write KEY=VALUE, such as training.epochs=3")
        try:
            value = yaml.safe_load(text)
            if isinstance(value, str):  # 1e-3 is text to YAML
                value = float(value)
        except yaml.YAMLError as error:
            raise ValueError(f"the value of {key} is no YAML: {text!r}") from error
        except ValueError:
            pass
        section, *inner = settings, *key.split(".")
        for part in inner[:-1]:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise ValueError(f"{pair!r}: {part} has a value already")
        section[inner[-1]] = value
    return settings


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output of an earlier call.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets; by default LAPLACIAN_METRIC_DATA, then the user's cache."),
]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave out images that do not decode.")]
Device = Annotated[
    str, typer.Option(help="Where networks compute: auto (a GPU if there is one), cpu, cuda, cuda:1, mps.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of all random choices.")]
Model = Annotated[Path, typer.Argument(help="A model folder, made by fit or train.")]
QueryModel = Annotated[
    Path | None, typer.Option("--model", help="The model of the index, which enables image queries.")
]
Sentences = Annotated[
    str | None, typer.Option(help="The sentence encoder of the index, which enables text queries.")
]
Address = Annotated[
    str | None, typer.Option(help="Address of the index's gallery with credentials, which are not saved.")
]
Gallery = Annotated[
    str | None,
    typer.Option(
        help="Labelled images to search, such as those of your index; by default the others of the data."
    ),
]


@dataclass(frozen=True)
class Images:
    """How images are read, and where the network computes."""

    data_dir: DataDir = None
    skip_broken: SkipBroken = False
    batch_size: Annotated[int, typer.Option(min=1, help="Images that are embedded at a time.")] = 100
    workers: Annotated[int, typer.Option(min=0, help="Processes that read image files.")] = 0
    device: Device = "cpu"
    precision: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option(help="Number format of the backbone; bfloat16 only if the hardware has it."),
    ] = "float32"

    def model(self, folder: Path) -> ModelFolder:
        """Load a model folder onto the device."""
        from laplacian_metric.encoder.precision import compute_in
        from laplacian_metric.laplace.model_folder import ModelFolder

        model = ModelFolder.load(folder, device=checked_device(self.device))
        compute_in(self.precision, model.encoder)
        return model

    def opening(self, preparation: Preparation | None) -> Any:
        """Return how data are opened for a model with this preparation."""
        from laplacian_metric.data.opening import Opening

        names = {field.name for field in fields(Opening)}
        return Opening(preparation, **{name: value for name, value in vars(self).items() if name in names})

    def open(self, place: str, model: ModelFolder, split: str = "test", every_image: bool = False) -> Dataset:
        """Open the data that a command line names."""
        from laplacian_metric.data.opening import open_source

        return open_source(place, self.opening(model.preparation), split, every_image=every_image)


@dataclass(frozen=True)
class LabelledImages(Images):
    """How labelled images or features are read."""

    labels: Annotated[
        Path | None, typer.Option(help="File with the labels of features, if they are not in the same file.")
    ] = None
    divide: Annotated[
        Literal["images", "classes"],
        typer.Option(
            help="How a folder without train, val and test is split: the images of every class, or whole classes."
        ),
    ] = "images"

    def open_other(self, place: str, model: ModelFolder, split: str, every_image: bool = False) -> Dataset:
        """Open further data, which the file with the labels does not belong to."""
        return replace(self, labels=None).open(place, model, split, every_image)

    def open_gallery(self, place: str | None, model: ModelFolder) -> Dataset | None:
        """Open the training split of the images that are searched, if they are named."""
        return None if place is None else self.open_other(place, model, "train")


@dataclass(frozen=True)
class Evaluating:
    """What a model is evaluated on besides its labelled images, and how precisely."""

    ood: Annotated[
        list[str] | None,
        typer.Option(
            "--ood", help="Out-of-distribution images, which a good uncertainty detects; may be repeated."
        ),
    ] = None
    samples: Annotated[
        int,
        typer.Option(
            min=0, help="Networks drawn from the posterior for the calibration error; 0 leaves it out."
        ),
    ] = 100
    resamples: Annotated[
        int, typer.Option(min=0, help="Bootstrap draws for the intervals; 0 leaves them out.")
    ] = 1000
    seed: Seed = 0

    def open_ood(self, images: LabelledImages, model: ModelFolder) -> list[Dataset]:
        """Open the out-of-distribution images."""
        return [
            images.open_other(place, model, "test", every_image=":" not in place) for place in self.ood or []
        ]


@dataclass(frozen=True)
class Printing:
    """How a command takes its options and prints its result."""

    as_json: AsJson = False
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            is_eager=True,
            callback=_read_config,
            help="YAML file with these options by name; options on the command line win.",
        ),
    ] = None


@dataclass(frozen=True)
class Output(Printing):
    """How a command prints its result and writes its files."""

    force: Force = False


def checked_device(name: str) -> Any:
    """Return a torch device, "auto" the best; one that is not available is refused before anything is computed.

    Example:
        >>> checked_device("cpu")
        device(type='cpu')
    """
    import torch

    from laplacian_metric.core.batch import best_device

    if name == "auto":
        return best_device()
    try:
        device = torch.device(name)
        torch.empty(1, device=device).sum().item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"there is no device {name!r} that torch can use here: take cpu, or auto") from error
    return device


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer, in which each parameter that is a group above becomes the group's options.

    Example:
        >>> def command(name: str, printing: Printing) -> None:
        ...     print(name, printing.as_json)
        >>> list(inspect.signature(with_options(command)).parameters)
        ['name', 'as_json', 'config']
        >>> with_options(command)(name="a", as_json=True, config=None)
        a True
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in groups
    ]
    for group in groups.values():
        types = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=types[field.name],
            )
            for field in fields(group)
        ]

    def command(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        function(**values)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
