"""What a cell's networks embed with, for whoever wants to look further than its result file."""

from __future__ import annotations

from pathlib import Path

from laplacian_metric.runs.config import Cell
from laplacian_metric.runs.fitting import Fitted, Place, fit
from laplacian_metric.runs.images import ImageSets
from laplacian_metric.runs.reading import Cells
from laplacian_metric.runs.work import Work


def fitted(
    name: str,
    seed: int,
    *,
    cells_dir: Path,
    work: Path,
    data_dir: Path | None = None,
    device: str = "cpu",
    progress: bool | None = None,
) -> Fitted:
    """The embedder of a cell and the sets of inputs that it takes, by name: "train", "validation", "test" and others.

    Networks that are in ``work`` are used, and what is missing there is trained first, as `run` does; posteriors are
    fitted anew.

    Raises:
        Busy: another process is at the same cell and seed.
    """
    made: dict[str, ImageSets] = {}

    def images(cell: Cell) -> ImageSets:
        key = cell.data.model_dump_json()
        if key not in made:
            made[key] = ImageSets(cell.data, data_dir, cell.evaluation.batch_size)
        return made[key]

    cells = Cells(cells_dir)
    cell = cells[name]
    place = Place(cells, Work(work), data_dir, images, device, progress)
    with place.work.locked(cell.name, seed):
        return fit(place, cell, seed)
