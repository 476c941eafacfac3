"""The command `lam`: puts the commands together. Each imports what it needs when it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from laplacian_metric import __version__
from laplacian_metric.cli import (
    common,
    compare,
    data,
    demo,
    embed,
    evaluate,
    experiment,
    fit,
    index,
    query,
    report,
    train,
)

app = typer.Typer(
    name="lam",
    cls=common.Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        Console().print(f"laplacian_metric {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error comes from: lam --debug COMMAND.")
    ] = False,
) -> None:
    """Uncertainty for metric learning: which embeddings to trust, and retrieval that can refuse.

    A session: fit or train makes a model folder; evaluate and report say what it is worth; index and query use it.
    """


app.command()(demo.demo)
app.command()(fit.fit)
app.command()(train.train)
app.command()(embed.embed)
app.command()(index.index)
app.command()(query.query)
app.command()(evaluate.evaluate)
app.command()(report.report)
app.command()(compare.compare)
app.add_typer(experiment.app, name="experiment")
app.add_typer(data.app, name="data")


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except KeyboardInterrupt:  # before a command has begun
        common.error("interrupted")
        sys.exit(common.INTERRUPTED)
