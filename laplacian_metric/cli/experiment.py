"""`lam experiment`: the cells of published tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from laplacian_metric.cli import common, options

app = typer.Typer(help="Run cells of tables, and make the tables.", no_args_is_help=True)

CellsDir = Annotated[Path, typer.Option(help="Folder of the YAML files, one for each cell.")]
Work = Annotated[Path, typer.Option(help="Folder for networks and features; gigabytes.")]
Results = Annotated[Path, typer.Option(help="Folder of the result files.")]
Names = Annotated[
    list[str] | None,
    typer.Option("--cells", help="Names or patterns, such as fashion_mnist/*; may be repeated."),
]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="Instead of those that the cells name.")]


@app.command()
def run(
    cells_dir: CellsDir,
    work: Work,
    results: Results,
    cells: Names = None,
    seeds: Seeds = None,
    data_dir: options.DataDir = None,
    device: options.Device = "cpu",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of the processor; by default torch's choice.")
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run again what failed.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Do anew what was made with other settings.")
    ] = False,
    keep_features: Annotated[
        bool, typer.Option("--keep-features", help="Features stay after their last cell.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Run what has no result yet. Interrupted, the same command goes on; several at once share the work.

    Example: lam experiment run --cells-dir cells --work work --results results --cells "fashion_mnist/*"
    """
    import torch

    from laplacian_metric import runs
    from laplacian_metric.cli.steps import devices

    devices.device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        summary = runs.run(
            cells or ["*"],
            cells_dir=cells_dir,
            data_dir=data_dir,
            work=work,
            results=results,
            seeds=seeds or None,
            retry_failed=retry_failed,
            fresh=fresh,
            keep_features=keep_features,
            device=device,
            say=common.note,
        )
    except KeyboardInterrupt:
        common.error("interrupted; the same command goes on where it was")
        raise typer.Exit(common.INTERRUPTED) from None
    if as_json:
        common.print_json(vars(summary))
    if not summary.ok:
        raise typer.Exit(1)


@app.command("list")
def list_cells(
    cells_dir: CellsDir,
    work: Work,
    results: Results,
    cells: Names = None,
    seeds: Seeds = None,
    as_json: options.AsJson = False,
) -> None:
    """The state of every cell: done, failed, running, changed or to do.

    Example: lam experiment list --cells-dir cells --work work --results results
    """
    from laplacian_metric import runs

    found = runs.states(cells or ["*"], cells_dir=cells_dir, work=work, results=results, seeds=seeds or None)
    if as_json:
        common.print_json([{"cell": name, "seed": seed, "state": state} for name, seed, state in found])
        return
    rows = [(state, name, str(seed)) for name, seed, state in found]
    common.show(None, common.table(("state", "cell", "seed"), rows, numeric=2))


@app.command()
def tables(
    results: Results,
    description: Annotated[Path, typer.Option("--tables", help="YAML that says what goes into each table.")],
    published: Annotated[Path | None, typer.Option(help="YAML of what others have published.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Make this table; may be given several times.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for .md and .tex files; otherwise they are printed.")
    ] = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Make tables from result files, in Markdown and LaTeX.

    Example: lam experiment tables --results results --tables tables.yaml
    """
    from laplacian_metric.cli.steps.tabling import Made, make_tables
    from laplacian_metric.report.folder import output_folder

    made: list[Made] = make_tables(results, description, published, only or [])
    if out is not None:
        with output_folder(out, force) as folder:
            for one in made:
                (folder / f"{one.name}.md").write_text(one.markdown, encoding="utf-8")
                (folder / f"{one.name}.tex").write_text(one.latex, encoding="utf-8")
    if as_json:
        content: list[dict[str, Any]] = [one.to_dict() for one in made]
        common.print_json(content)
    elif out is None:
        for one in made:
            typer.echo(one.markdown)
    else:
        for one in made:
            common.note(f"{out / one.name}.md, .tex")
