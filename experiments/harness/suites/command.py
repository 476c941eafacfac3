"""`lam benchmark`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laplacian_metric.cli import common, options

if TYPE_CHECKING:
    from experiments.harness.suites import Benchmark, Row

SUITE, QUICK = "url-small", "quick"
PAGE, TABLE, RECORD = "leaderboard.html", "leaderboard.csv", "leaderboard.json"


def benchmark(
    out: Annotated[Path, typer.Option(help=f"Folder for finished parts, {PAGE}, {TABLE} and {RECORD}.")],
    suite: Annotated[str, typer.Option(help="Name of a suite.")] = SUITE,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a small suite on installed images, in a minute or two.")
    ] = False,
    method: Annotated[list[str] | None, typer.Option(help="Run this entry; may be repeated.")] = None,
    track: Annotated[list[str] | None, typer.Option(help="Run this track; may be repeated.")] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Run this seed of the suite; may be repeated.")
    ] = None,
    encoder: Annotated[
        Path | None, typer.Option(help="Evaluate this model folder on the suite's images.")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="Evaluate an .npz file with embeddings, labels and uncertainty.")
    ] = None,
    data_dir: options.DataDir = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads on the CPU; by default torch's choice.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare uncertainties by the errors that they detect on classes that were never trained on.

    Run the same command again to resume.

    Example: lam benchmark --quick --out quick-benchmark
    """
    if encoder is not None and scores is not None:
        raise ValueError("--encoder and --scores are both given: judge one of them at a time")
    if method and (encoder is not None or scores is not None):
        raise ValueError(
            "--method runs entries of the suite, --encoder and --scores judge yours: leave --method out"
        )
    import torch

    from experiments.harness import suites

    if threads is not None:
        torch.set_num_threads(threads)
    chosen = suites.load(QUICK if quick else suite)
    run = suites.Benchmark(chosen, out, data_dir, tracks=track, entries=method, seeds=seed, say=common.note)
    own: list[Row] = []
    failed = False
    if scores is not None:
        own = run.add_scores(scores)
    elif encoder is not None:
        own = run.add_model(encoder)
    else:
        _announce(run)
        try:
            failed = not run.run().ok
        except KeyboardInterrupt:
            common.error("interrupted; run the same command again to resume")
            raise typer.Exit(common.INTERRUPTED) from None
    _written(run, own or run.added(), out, as_json)
    if failed:
        raise typer.Exit(1)


def _announce(run: Benchmark) -> None:
    missing = run.plan()
    trials = sum(choosing for _, choosing in missing)
    common.note(
        f"{len(missing)} parts to do: {trials} settings to try and {len(missing) - trials} parts to measure; about "
        f"{run.minutes(missing):.0f} minutes on one core that is free. Everything done is kept in {run.out}."
    )


def _written(run: Benchmark, own: list[Row], out: Path, as_json: bool) -> None:
    """Write the page, the table and the record, and show the main numbers."""
    from laplacian_metric.core.files import atomic_write
    from experiments.harness.tables.leaderboard import leaderboard, shown
    from experiments.harness.suites import as_csv, flattened, rows

    results = run.results()
    every = [*own, *rows(results, "V1"), *(row for row in rows(results, "V2") if row.seeds)]
    content: dict[str, Any] = {**results, "rows": [flattened(row) for row in every]}
    texts = {PAGE: leaderboard(results, own).html(), TABLE: as_csv(every), RECORD: common.as_json(content)}
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with atomic_write(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if as_json:
        common.print_json(content)
        return
    listed = [
        (
            row.track,
            row.title,
            row.score,
            row.group,
            shown(next(iter(row.recall.values()), None)),
            shown(next(iter(row.r_auroc.values()), None)),
            "–" if math.isnan(row.low) else f"{shown(row.low)} to {shown(row.high)}",
        )
        for row in every
        if row.seeds and row.rule != "V2"
    ]
    header = ("track", "method", "score", "sees", "R@1", "R-AUROC", "95 % interval")
    common.show(common.table(header, listed, slice(4, None)), f"leaderboard: {out / PAGE}")
