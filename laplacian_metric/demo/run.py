"""The demo from end to end: compute, and write the page."""

from __future__ import annotations

import logging
from pathlib import Path

from laplacian_metric.core.output_folder import output_folder
from laplacian_metric.demo.compute import EPOCHS, REPORT_NAME, DemoResult, OnStage, compute
from laplacian_metric.demo.page import demo_page

LOGGER = logging.getLogger(__name__)


def run_demo(
    out: Path, force: bool = False, seed: int = 0, epochs: int = EPOCHS, on_stage: OnStage = LOGGER.info
) -> DemoResult:
    """Run the demo and write `out`/report.html; nothing is left in `out` unless all of it succeeded.

    Args:
        out: a folder that is new or empty.
        force: accept a folder that is not empty; only its report.html is replaced.
        seed: of the initial weights, the order of the images and the split of the validation images.
        epochs: passes over the training images.
        on_stage: called with the name of every stage when it begins.

    Raises:
        OutputFolderError: `out` cannot be written to.
    """
    with output_folder(out, force) as folder:
        result = compute(seed, epochs, on_stage)
        on_stage("writing the report")
        (folder / REPORT_NAME).write_text(demo_page(result).html(), encoding="utf-8")
    return result
