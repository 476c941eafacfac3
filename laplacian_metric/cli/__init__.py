"""The command `lam`. Each command parses its options, calls the library and prints; it imports torch only if needed."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from laplacian_metric import __version__
from laplacian_metric.cli import (
    common,
    demo,
    embed,
    evaluate,
    fit,
    index,
    options,
    pretrain_risk,
    query,
    serve,
    train,
)

app = typer.Typer(
    name="lam",
    cls=common.Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"laplacian_metric {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error comes from: lam --debug COMMAND.")
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import a module first, which registers methods or losses of your own; may be repeated.",
        ),
    ] = None,
) -> None:
    """Uncertainty for metric learning: which matches to trust, and retrieval that can refuse.

    fit or train makes a model folder, evaluate and report measure it, index and query search with it.
    """
    sys.path.insert(0, "")  # modules of the folder that the command is run in too, as `python -m` has them
    for module in modules or []:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as missing:
            if not f"{module}.".startswith(f"{missing.name}."):
                raise
            raise typer.BadParameter(
                f"there is no module {module!r} here: run the command in the folder that holds it",
                param_hint="'--import'",
            ) from None


for command in (
    demo.demo,
    fit.fit,
    train.train,
    pretrain_risk.pretrain_risk,
    embed.embed,
    index.index,
    query.query,
    serve.serve,
    evaluate.evaluate,
    evaluate.report,
    evaluate.compare,
):
    app.command()(options.with_options(command))


def main() -> None:
    """Entry point of the console script."""
    if sys.stdout is None:
        common.error("standard output is closed: the result cannot be printed")
        sys.exit(1)
    try:
        app()
    except KeyboardInterrupt:  # before a command has begun
        common.error("interrupted")
        sys.exit(common.INTERRUPTED)
