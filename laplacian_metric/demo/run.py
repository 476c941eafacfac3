"""The demo from end to end: compute, and write the page."""

from __future__ import annotations

import logging
from pathlib import Path

from laplacian_metric.demo.compute import DemoResult, compute
from laplacian_metric.demo.settings import EPOCHS, REPORT_NAME
from laplacian_metric.demo.story import tell
from laplacian_metric.demo.training import OnStage, OnStep
from laplacian_metric.report import output_folder

logger = logging.getLogger(__name__)


def run_demo(
    out: Path,
    force: bool = False,
    seed: int = 0,
    epochs: int = EPOCHS,
    on_step: OnStep | None = None,
    on_stage: OnStage = logger.info,
) -> DemoResult:
    """Run the demo and write `out`/report.html; nothing is left in `out` unless all of it succeeded.

    Args:
        out: a folder that is new or empty.
        force: accept a folder that is not empty; only its report.html is replaced.
        seed: decides the initial weights, the order of the images and which of them form the batch.
        epochs: how often every training image is seen.
        on_step: called after every training step with the steps done, their total, and the loss.
        on_stage: called with what begins when the training is over.

    Raises:
        OutputFolderError: `out` cannot be written to as asked.
    """
    with output_folder(out, force) as folder:
        result = compute(seed, epochs, on_step, on_stage)
        on_stage("writing the report")
        (folder / REPORT_NAME).write_text(tell(result).html(), encoding="utf-8")
    return result
