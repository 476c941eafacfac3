"""The metrics can be imported without anything heavy."""

from __future__ import annotations

from pathlib import Path

from tests.test_architecture import HEAVY, loaded_by


def test_importing_the_metrics_is_light(root: Path) -> None:
    loaded = loaded_by("import laplacian_metric.metrics", root)
    assert "laplacian_metric" in loaded
    assert loaded.isdisjoint({*HEAVY, "sklearn", "torchmetrics", "pytorch_metric_learning"})
