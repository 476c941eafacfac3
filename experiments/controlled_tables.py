"""Tables and the figure of the controlled experiment."""

from __future__ import annotations

import json
import math
from pathlib import Path

from benchmarks.common import save, show, write_text
from experiments.controlled import CELLS, LEVELS, information_at_the_truth, load
from experiments.controlled_process import Cell

TITLE = "Concentrations learned from data whose true concentrations are known"
NOTE = (
    "Pairs that are uniform by construction, see experiments/controlled.py; kappa_pos 20. 'cos': cosines of all pairs "
    "of 4,000 test images against the true ones (root mean square and mean absolute difference, rank correlation); "
    "'angle': median degrees between predicted and true means after a rotation fitted on other images; 'k': the same "
    "for concentrations; 'cover': how often the credible caps of 50, 90 and 95 % contain the true latent point; "
    "'nats': log(batch) minus the loss at the end, which is how much is known about which images belong together, and "
    "the same of the true distributions. Published, on another process (mean absolute difference and rank of cosines; "
    "of k): MCInfoNCE .04, .99; 6.15, .82. ELK .02, 1.00; 21.7, .92. HIB .18, .82; 1e14, -.02. InfoNCE .83, .99."
)
INFORMATION = "What a batch can teach: information of the true distributions"
INFORMATION_NOTE = (
    "log(192) minus the cross-entropy of the exact posterior of the true distributions, in nats: how much they say "
    "about which of 192 images belongs to which; log(192) is 5.26. A loss has no more than that to learn from. Mean of "
    "20 batches of the process that is uniform by construction, kappa_pos 20."
)
DIMENSIONS = (2, 10, 20, 32, 40, 48, 64, 128)
RANGES = ((16.0, 32.0), (64.0, 128.0), (math.inf, math.inf))


def informations(out: Path, cells: list[Cell]) -> list[float]:
    """Return the information of each cell's true distributions; what was computed before is read from a file.

    It is a matter of the dimension, the range of concentrations and the batch alone.
    """
    path = out / "results" / "controlled_information.json"
    kept: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    names = [f"D {cell.dim}, k {cell.low:g}-{cell.high:g}, batch {cell.batch}" for cell in cells]
    for name, cell in zip(names, cells, strict=True):
        if name not in kept:
            kept[name] = information_at_the_truth(cell)
            write_text(path, json.dumps(kept, indent=1))
    return [kept[name] for name in names]


def table(out: Path) -> list[Path]:
    """Write the table and the figure of what has finished; return their paths."""
    finished = load(out)
    uniform = [cell for cell, _ in finished if cell.process == "uniform"]
    nats = dict(zip(uniform, informations(out, uniform), strict=True))
    rows = [
        {
            "cell": cell.name,
            "D": cell.dim,
            "true k": f"{cell.low:g}-{cell.high:g}",
            "steps": cell.steps,
            "nats": math.log(cell.batch) - result["last loss"] if cell.loss == "positivity" else None,
            "nats at the truth": nats.get(cell),
            "cos RMSE": result["cos rmse"],
            "cos MAE": result["cos mae"],
            "cos rank": result["cos rank"],
            "angle": result["angle"],
            "k RMSE": result.get("k rmse"),
            "k MAE": result.get("k mae"),
            "k rank": result.get("k rank"),
            "median k": result["k median"],
            **{f"cover {p:.0%}": c for p, c in zip(LEVELS, result["coverage"], strict=True)},
        }
        for cell, result in finished
    ]
    if not rows:
        raise SystemExit(f"{out} has no finished cells: python -m experiments.controlled run --out {out}")
    missing = [cell.name for cell in CELLS if cell.name not in {row["cell"] for row in rows}]
    note = NOTE + (f" Not run yet: {', '.join(missing)}." if missing else "")
    show(TITLE, rows)
    information = []
    for dim in DIMENSIONS:
        cells = [Cell("positivity", dim=dim, low=low, high=high) for low, high in RANGES]
        names = [f"k {low:g}-{high:g}" for low, high in RANGES]
        information.append({"D": dim} | dict(zip(names, informations(out, cells), strict=True)))
    show(INFORMATION, information)
    return [
        *save(out, "controlled", TITLE, rows, note),
        *save(out, "controlled_information", INFORMATION, information, INFORMATION_NOTE),
        draw(out),
    ]


def draw(out: Path) -> Path:
    """Draw true against predicted concentrations, and coverage, of the first cell of each loss."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
    basic = Cell("elk")
    for cell, result in load(out):
        if cell != Cell(cell.loss, batch=cell.batch):
            continue
        true, learned = zip(*result["k pairs"], strict=True)
        left.scatter(true, learned, s=5, alpha=0.6, label=cell.loss)
        right.plot(LEVELS, result["coverage"], marker="o", label=cell.loss)
    left.axline((basic.low, basic.low), slope=1, color="black", linewidth=0.8)
    left.set(xlabel="true concentration", ylabel="learned concentration", yscale="log", xscale="log")
    right.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    right.set(
        xlabel="credible cap", ylabel="share of true latent points inside", xlim=(0.4, 1), ylim=(0, 1.02)
    )
    right.legend(fontsize="x-small")
    path = out / "plots" / "controlled.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
