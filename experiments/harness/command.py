"""`lam experiment`: the cells of published tables."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from laplacian_metric.cli import common, options

app = typer.Typer(help="Run the cells of tables, and make the tables.", no_args_is_help=True)

Results = Annotated[Path, typer.Option(help="Folder of the result files.")]
CellsDir = Annotated[Path, typer.Option(help="Folder of the YAML files, one for each cell.")]
Work = Annotated[Path, typer.Option(help="Folder for networks and features; takes gigabytes.")]
Cells = Annotated[
    list[str] | None,
    typer.Option("--cells", help="Names or patterns, such as fashion_mnist/*; may be repeated."),
]
Seeds = Annotated[
    list[int] | None, typer.Option("--seed", help="Seeds to run instead of those in the cells.")
]


@app.command()
def run(
    cells_dir: CellsDir,
    work: Work,
    results: Results,
    cells: Cells = None,
    seeds: Seeds = None,
    data_dir: options.DataDir = None,
    device: options.Device = "cpu",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads on the CPU; by default torch's choice.")
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed cells again.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard unfinished work with other settings.")
    ] = False,
    keep_features: Annotated[
        bool, typer.Option("--keep-features", help="Keep features after their last cell.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Run every cell that has no result. Run the same command again to resume; several at once share the work.

    Example: lam experiment run --cells-dir cells --work work --results results --cells "fashion_mnist/*"
    """
    import torch

    from experiments import harness as runs

    options.checked_device(device)
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
        common.error("interrupted; run the same command again to resume")
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
    cells: Cells = None,
    seeds: Seeds = None,
    as_json: options.AsJson = False,
) -> None:
    """List the state of every cell: done, failed, running, changed or to do.

    Example: lam experiment list --cells-dir cells --work work --results results
    """
    from experiments import harness as runs

    states = runs.states(cells or ["*"], cells_dir=cells_dir, work=work, results=results, seeds=seeds or None)
    if as_json:
        common.print_json([{"cell": name, "seed": seed, "state": state} for name, seed, state in states])
        return
    rows = [(state, name, str(seed)) for name, seed, state in states]
    common.show(common.table(("state", "cell", "seed"), rows, slice(2, None)))


@app.command()
def tables(
    results: Results,
    description: Annotated[Path, typer.Option("--tables", help="YAML that describes the tables.")],
    published: Annotated[Path | None, typer.Option(help="YAML of published numbers.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Make this table; may be repeated.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for .md and .tex files; otherwise they are printed.")
    ] = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Make tables from result files, in Markdown and LaTeX.

    Example: lam experiment tables --results results --tables tables.yaml
    """
    from laplacian_metric.core.files import output_folder
    from experiments.harness.tables.descriptions import read_published, read_tables
    from experiments.harness.tables.table_text import latex, markdown
    from experiments.harness.tables.tables import build_table
    from experiments.harness.results import read_results

    descriptions = read_tables(description, only or [])
    others: dict[str, Any] = {} if published is None else read_published(published)
    all_results = read_results(results)
    built = [build_table(one, all_results, others) for one in descriptions]
    if out is not None:
        with output_folder(out, force) as folder:
            for table in built:
                (folder / f"{table.name}.md").write_text(markdown(table), encoding="utf-8")
                (folder / f"{table.name}.tex").write_text(latex(table), encoding="utf-8")
    if as_json:
        common.print_json([asdict(table) for table in built])
    elif out is None:
        common.show(*map(markdown, built))
    else:
        common.note("\n".join(f"{out / table.name}.md, .tex" for table in built))
